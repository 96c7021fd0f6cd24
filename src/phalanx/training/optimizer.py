"""Optimizers and learning-rate schedules."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]
from jaxtyping import Array, Float, PyTree
from optax.contrib import MuonDimensionNumbers, muon  # type: ignore[import-untyped]
from pydantic import Field

from phalanx.config import Config

ScheduleName = Literal["constant", "linear", "cosine"]


class OptimizerConfig(Config):
    """Settings for the optimizer, the learning-rate schedule and gradient clipping."""

    name: Literal["adamw", "adagrad", "muon"] = "adamw"
    """Optimizer. `adamw` is Adam with decoupled weight decay. `muon` (Jordan et al., 2024) orthogonalizes the
    updates of the matrices in transformer blocks and uses AdamW for all other parameters. Its updates have
    about the same size as those of AdamW, so the same learning rate can be used."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Peak learning rate, reached after the warm-up."""
    end_learning_rate: float = Field(default=1e-4, ge=0)
    """Learning rate at the end of training. Not used if `lr_schedule` is `constant`."""
    lr_schedule: ScheduleName = "cosine"
    """Shape of the decay from `learning_rate` to `end_learning_rate`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of optimizer steps over which the learning rate rises linearly to `learning_rate`. In algorithms
    whose learning rate changes once per update, such as PPO, this is a number of updates."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay for matrices. Biases and norm scales are not decayed. `adagrad` ignores this
    setting."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Maximum global norm of the gradients. Larger gradients are scaled down. None disables clipping."""
    grad_accum_steps: int = Field(default=1, ge=1)
    """Number of batches whose gradients are accumulated for one optimizer step. The result is the same as
    that of a step on one large batch with the rows of all these batches. Only SFT uses this setting."""
    b2: float = Field(default=0.999, gt=0, lt=1)
    """Decay rate of Adam's moving average of squared gradients."""
    eps: float = Field(default=1e-8, gt=0)
    """Small constant added to the denominator in Adam."""

    def check_supported(self, *names: str) -> None:
        """Raise ValueError if the optimizer is not in `names`, or if `grad_accum_steps` is not 1.

        Algorithms that support only some optimizers, and no gradient accumulation, call this method.
        """
        if self.name not in names or self.grad_accum_steps != 1:
            raise ValueError(
                f"optimizer: only {' or '.join(names)} without gradient accumulation is supported here"
            )


def scheduled_value(
    schedule: ScheduleName, start: float, end: float, progress: Float[Array, ""] | float
) -> Float[Array, ""]:
    """Interpolate between `start` and `end` according to a schedule, with `progress` from 0 to 1."""
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    match schedule:
        case "constant":
            return jnp.full_like(progress, start)
        case "linear":
            return start + (end - start) * progress
        case "cosine":
            return end + (start - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


def lr_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the step number, which is counted from 0.

    The warm-up and the decay together take `num_steps` steps.
    """
    warmup_steps = min(config.warmup_steps, num_steps - 1)
    start, end = config.learning_rate, config.end_learning_rate

    def decay(step: Any) -> Array:
        return scheduled_value(config.lr_schedule, start, end, step / (num_steps - warmup_steps))

    if not warmup_steps:
        return decay
    warmup = optax.linear_schedule(start / config.warmup_steps, start, warmup_steps)
    return optax.join_schedules([warmup, decay], [warmup_steps])


def adam(config: OptimizerConfig) -> optax.GradientTransformation:
    """Create Adam with gradient clipping and weight decay, but without scaling by the learning rate.

    Algorithms use this function if they apply the learning rate themselves, for example because it changes
    once per update instead of once per optimizer step.
    """
    max_norm = config.max_grad_norm
    parts = [
        optax.identity() if max_norm is None else optax.clip_by_global_norm(max_norm),
        optax.scale_by_adam(b2=config.b2, eps=config.eps),
    ]
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_is_matrix))
    return optax.chain(*parts)


def make_optimizer(config: OptimizerConfig, num_steps: int) -> optax.GradientTransformation:
    """Create the optimizer, including its learning-rate schedule, for `num_steps` optimizer steps."""
    schedule = lr_schedule(config, num_steps)
    if config.name == "muon":
        optimizer = muon(
            schedule,
            adam_b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            weight_decay_mask=_is_matrix,
            adam_weight_decay=config.weight_decay,
            muon_weight_dimension_numbers=_stacked_matrices,
            # Scales Muon's updates to the typical size of AdamW's.
            consistent_rms=0.2,
        )
    elif config.name == "adagrad":
        optimizer = optax.adagrad(schedule)
    else:
        optimizer = optax.adamw(
            schedule, b2=config.b2, eps=config.eps, weight_decay=config.weight_decay, mask=_is_matrix
        )
    if config.max_grad_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def _is_matrix(params: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


def _stacked_matrices(params: PyTree) -> PyTree:
    """Return Muon's dimension numbers for stacked matrices of transformer blocks, and None for other arrays.

    A stacked matrix is an array with the axes layer, input and output.
    """
    return jax.tree.map(lambda leaf: MuonDimensionNumbers(1, 2) if leaf.ndim == 3 else None, params)
