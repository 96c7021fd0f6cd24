"""The code blocks of the batched logging design, as they stand there but for their import lines.

What they are held against is in `test_batched_logging_design.py`; three methods of one name stand in classes here.
"""
# The blocks keep the design's own quotes, layout and habits.
# ruff: noqa
# fmt: off

import logging
from typing import Any, Dict, List, Literal

import equinox as eqx
import jax.numpy as jnp

logger = logging.getLogger("phalanx.logging")

BATCHED_YAML = '''
# @package logging
# Batched logging configuration for high-performance training

# Core logging settings (inherited from base)
structured_logging: true
log_format: "json"
log_level: "INFO"
compression: true
include_full_states: false

# Batched Training Specifics
batched_logging_enabled: true
log_frequency: 10 # Log aggregated metrics every N updates

# Representative Sampling (for detailed logs)
sampling_enabled: true
num_samples: 3 # Number of environments to sample
sample_frequency: 50 # Log samples every N updates

# Aggregated Metrics Selection
log_aggregated_rewards: true
log_aggregated_similarity: true
log_loss_metrics: true
log_gradient_norms: true
log_episode_lengths: true
log_success_rates: true
'''


class LoggingConfig(eqx.Module):
    """All logging behavior and formats."""
    
    # Core logging settings
    structured_logging: bool = True
    log_format: Literal["json", "text", "structured"] = "json"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    compression: bool = True
    include_full_states: bool = False

    # What to log (specific content flags)
    log_operations: bool = False
    log_grid_changes: bool = False
    log_rewards: bool = False
    log_episode_start: bool = True
    log_episode_end: bool = True
    log_key_moments: bool = True

    # Logging frequency and timing
    log_frequency: int = 10

    # Batched logging settings [NEW]
    batched_logging_enabled: bool = False
    sampling_enabled: bool = True
    num_samples: int = 3
    sample_frequency: int = 50
    
    # Aggregated metrics selection [NEW]
    log_aggregated_rewards: bool = True
    log_aggregated_similarity: bool = True
    log_loss_metrics: bool = True
    log_gradient_norms: bool = True
    log_episode_lengths: bool = True
    log_success_rates: bool = True

    # REMOVED: All async logging fields
    # queue_size, worker_threads, batch_size, flush_interval, enable_compression


def log_batch_step(self, batch_data: Dict[str, Any]) -> None:
    """Log data from a batched training step.
    
    Args:
        batch_data: Dictionary containing:
            - update_step: Current training update number
            - episode_returns: Array of episode returns [batch_size]
            - episode_lengths: Array of episode lengths [batch_size]
            - similarity_scores: Array of similarity scores [batch_size]
            - policy_loss: Scalar policy loss
            - value_loss: Scalar value loss
            - gradient_norm: Scalar gradient norm
            - success_mask: Boolean array of episode successes [batch_size]
    """
    update_step = batch_data.get("update_step", 0)

    # Log aggregated metrics at specified frequency
    if (self.config.logging.batched_logging_enabled and 
        update_step % self.config.logging.log_frequency == 0):
        
        aggregated_metrics = self._aggregate_batch_metrics(batch_data)
        
        for handler_name, handler in self.handlers.items():
            try:
                if hasattr(handler, 'log_aggregated_metrics'):
                    handler.log_aggregated_metrics(aggregated_metrics, update_step)
            except Exception as e:
                logger.warning(f"Handler {handler_name} failed in log_aggregated_metrics: {e}")

    # Log sampled episode summaries at specified frequency
    if (self.config.logging.sampling_enabled and 
        update_step % self.config.logging.sample_frequency == 0):
        
        sampled_episodes = self._sample_episodes_from_batch(batch_data)
        
        for episode_data in sampled_episodes:
            self.log_episode_summary(episode_data)  # Reuse existing method


def _aggregate_batch_metrics(self, batch_data: Dict[str, Any]) -> Dict[str, float]:
    """Calculate aggregate metrics from batch data using JAX operations."""
    import jax.numpy as jnp
    
    metrics = {}
    
    # Episode returns aggregation
    if 'episode_returns' in batch_data and self.config.logging.log_aggregated_rewards:
        returns = batch_data['episode_returns']
        metrics.update({
            'reward_mean': float(jnp.mean(returns)),
            'reward_std': float(jnp.std(returns)),
            'reward_max': float(jnp.max(returns)),
            'reward_min': float(jnp.min(returns))
        })
    
    # Similarity scores aggregation
    if 'similarity_scores' in batch_data and self.config.logging.log_aggregated_similarity:
        similarities = batch_data['similarity_scores']
        metrics.update({
            'similarity_mean': float(jnp.mean(similarities)),
            'similarity_std': float(jnp.std(similarities)),
            'similarity_max': float(jnp.max(similarities)),
            'similarity_min': float(jnp.min(similarities))
        })
    
    # Episode lengths aggregation
    if 'episode_lengths' in batch_data and self.config.logging.log_episode_lengths:
        lengths = batch_data['episode_lengths']
        metrics.update({
            'episode_length_mean': float(jnp.mean(lengths)),
            'episode_length_std': float(jnp.std(lengths)),
            'episode_length_max': float(jnp.max(lengths)),
            'episode_length_min': float(jnp.min(lengths))
        })
    
    # Success rate calculation
    if 'success_mask' in batch_data and self.config.logging.log_success_rates:
        success_mask = batch_data['success_mask']
        metrics['success_rate'] = float(jnp.mean(success_mask))
    
    # Training loss metrics (scalars)
    if 'policy_loss' in batch_data and self.config.logging.log_loss_metrics:
        metrics['policy_loss'] = float(batch_data['policy_loss'])
    
    if 'value_loss' in batch_data and self.config.logging.log_loss_metrics:
        metrics['value_loss'] = float(batch_data['value_loss'])
    
    # Gradient norms
    if 'gradient_norm' in batch_data and self.config.logging.log_gradient_norms:
        metrics['gradient_norm'] = float(batch_data['gradient_norm'])
    
    return metrics


def _sample_episodes_from_batch(self, batch_data: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Extract sample of episode summaries from batch for detailed logging.
    
    Note: This focuses on episode-level data rather than step-by-step data,
    as intermediate states are not typically stored in batched training for
    performance reasons.
    """
    import jax
    import jax.numpy as jnp
    
    num_samples = self.config.logging.num_samples
    batch_size = batch_data['episode_returns'].shape[0]
    
    # Sample all if requested samples >= batch size
    if num_samples >= batch_size:
        sample_indices = jnp.arange(batch_size)
    else:
        # Deterministic sampling based on update step for reproducibility
        key = jax.random.PRNGKey(batch_data.get("update_step", 0))
        sample_indices = jax.random.choice(
            key, batch_size, shape=(num_samples,), replace=False
        )
    
    sampled_episodes = []
    for i in sample_indices:
        # Reconstruct episode summary data for existing log_episode_summary method
        episode_summary = {
            "episode_num": batch_data.get("update_step", 0),  # Use update step as episode identifier
            "total_reward": float(batch_data['episode_returns'][i]),
            "total_steps": int(batch_data['episode_lengths'][i]) if 'episode_lengths' in batch_data else 0,
            "final_similarity": float(batch_data['similarity_scores'][i]) if 'similarity_scores' in batch_data else 0.0,
            "success": bool(batch_data['success_mask'][i]) if 'success_mask' in batch_data else False,
            "environment_id": int(i),
            "task_id": batch_data.get('task_ids', [f"batch_task_{i}"])[i] if 'task_ids' in batch_data else f"batch_task_{i}",
            
            # Optional: Include final states if available for SVG visualization
            "initial_state": batch_data.get('initial_states', [None])[i] if 'initial_states' in batch_data else None,
            "final_state": batch_data.get('final_states', [None])[i] if 'final_states' in batch_data else None,
        }
        sampled_episodes.append(episode_summary)
    
    return sampled_episodes


class WandbBlock:
    def log_aggregated_metrics(self, metrics: Dict[str, float], step: int) -> None:
        """Log aggregated batch metrics to wandb."""
        if self.run is None:
            return
        
        try:
            # Add batch prefix to distinguish from individual step metrics
            batch_metrics = {f"batch/{key}": value for key, value in metrics.items()}
            self.run.log(batch_metrics, step=step)
            logger.debug(f"Logged {len(batch_metrics)} batch metrics to wandb")
        except Exception as e:
            logger.warning(f"Wandb batch logging failed: {e}")


class FileBlock:
    def log_aggregated_metrics(self, metrics: Dict[str, float], step: int) -> None:
        """Log aggregated metrics to file."""
        try:
            # Create batch metrics file if it doesn't exist
            batch_metrics_file = self.output_dir / "batch_metrics.jsonl"
            
            # Append metrics with timestamp
            import time
            import json
            
            log_entry = {
                "timestamp": time.time(),
                "step": step,
                "metrics": metrics
            }
            
            with open(batch_metrics_file, 'a') as f:
                f.write(json.dumps(log_entry) + '\n')
                
            logger.debug(f"Logged batch metrics to {batch_metrics_file}")
        except Exception as e:
            logger.warning(f"File batch logging failed: {e}")


class RichBlock:
    def log_aggregated_metrics(self, metrics: Dict[str, float], step: int) -> None:
        """Display aggregated metrics to console."""
        try:
            from rich.table import Table
            
            # Create metrics table
            table = Table(title=f"Batch Metrics - Step {step}")
            table.add_column("Metric", style="cyan")
            table.add_column("Value", style="green")
            
            # Group metrics by category
            reward_metrics = {k: v for k, v in metrics.items() if k.startswith('reward_')}
            similarity_metrics = {k: v for k, v in metrics.items() if k.startswith('similarity_')}
            training_metrics = {k: v for k, v in metrics.items() if k in ['policy_loss', 'value_loss', 'gradient_norm']}
            
            # Add metrics to table
            for category, category_metrics in [
                ("Rewards", reward_metrics),
                ("Similarity", similarity_metrics), 
                ("Training", training_metrics)
            ]:
                if category_metrics:
                    table.add_row(f"[bold]{category}[/bold]", "")
                    for key, value in category_metrics.items():
                        display_key = key.replace('_', ' ').title()
                        table.add_row(f"  {display_key}", f"{value:.4f}")
            
            self.console.print(table)
        except Exception as e:
            logger.warning(f"Rich batch logging failed: {e}")


batch_data = {
    # Training metadata
    "update_step": int,  # Current training update number
    
    # Environment metrics (arrays with shape [batch_size])
    "episode_returns": jnp.ndarray,  # Episode returns
    "episode_lengths": jnp.ndarray,  # Episode lengths
    "similarity_scores": jnp.ndarray,  # Final similarity scores
    "success_mask": jnp.ndarray,  # Boolean success indicators
    
    # Training metrics (scalars)
    "policy_loss": float,  # Policy loss
    "value_loss": float,  # Value loss
    "gradient_norm": float,  # Gradient norm
    
    # Optional: Additional training metrics
    "entropy": float,  # Policy entropy
    "explained_variance": float,  # Value function explained variance
    "learning_rate": float,  # Current learning rate
    
    # Optional: Episode-level data for detailed logging (if available)
    "task_ids": List[str],  # Task identifiers for each environment
    "initial_states": List[Any],  # Initial states for SVG visualization
    "final_states": List[Any],  # Final states for SVG visualization
}


def validate_batched_logging_config(config: LoggingConfig) -> List[str]:
    """Validate batched logging configuration."""
    errors = []
    
    if config.num_samples <= 0:
        errors.append("num_samples must be positive")
    
    if config.sample_frequency <= 0:
        errors.append("sample_frequency must be positive")
    
    if config.log_frequency <= 0:
        errors.append("log_frequency must be positive")
    
    if config.num_samples > 1000:
        logger.warning(f"num_samples is very large: {config.num_samples}")
    
    return errors
