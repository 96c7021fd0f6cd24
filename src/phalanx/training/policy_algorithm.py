"""Base class for algorithms that train a policy network in an environment."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.episodes import record_episodes
from phalanx.core.evaluation import EpisodeEvalCommandConfig, EpisodeEvaluationConfig, EvaluationResult
from phalanx.formatting import format_count
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.statistics import describe_seeds
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, jit_method
from phalanx.training.code_identity import identify_code
from phalanx.training.config import PolicyRunConfig
from phalanx.training.device_mesh import DeviceMesh
from phalanx.training.optimizer import adam, lr_schedule

State = TypeVar("State", bound=TrainState)
AnyPolicyAlgorithm = TypeVar("AnyPolicyAlgorithm", bound="PolicyAlgorithm[Any]")


class PolicyAlgorithm(Algorithm[State], Generic[State]):
    """Base class for algorithms that train a policy network in an environment.

    Args:
        config: Settings for the run.
        environment: Environment to train in. If None, it is created from the config's `env` section.
        network: Function or class that creates the policy network from a key. If None, the environment's own
            network is created from the config's `network` section.
        mesh: Devices to train on. If None, all devices are used.
    """

    def __init__(
        self,
        config: PolicyRunConfig,
        environment: Environment | None = None,
        network: Callable[[Key], PolicyNetwork] | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        environment = config.make_environment() if environment is None else environment
        super().__init__(config, environment, mesh)
        self.optimizer = adam(config.optimizer)
        """Adam with gradient clipping, but without the learning rate: algorithms multiply its updates by
        `learning_rate`."""
        self.make_network = network or default_network(config, environment)
        self._has_default_network = network is None
        shape = eqx.filter_eval_shape(self.make_network, jax.random.key(0))
        self.network_structure = eqx.filter(
            shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True
        )

    @classmethod
    def for_evaluation(cls: type[AnyPolicyAlgorithm], config: Any) -> AnyPolicyAlgorithm:
        return cls(config, mesh=DeviceMesh(jax.devices()[:1]))

    @classmethod
    def eval_settings_type(cls, config: Any, env: str | None = None) -> type[Config] | None:
        environment = config.environment_type
        if environment is None:
            return None
        # Only the default evaluation reads the seed.
        is_default = environment.evaluate is Environment.evaluate
        if is_default and environment.evaluation_config is EpisodeEvaluationConfig:
            return environment.eval_config or EpisodeEvalCommandConfig
        return environment.eval_config or environment.evaluation_config

    @property
    def _compilation_key(self) -> tuple[Any, ...]:
        return *super()._compilation_key, self.network_structure

    def network(self, params: PyTree) -> PolicyNetwork:
        """Return the policy network with the given parameters."""
        return eqx.combine(params, self.network_structure)

    def learning_rate(self, step: Int32[Array, ""]) -> Float[Array, ""]:
        """Compute the learning rate of update `step`, counted from 0."""
        return lr_schedule(self.config.optimizer, self.config.num_updates)(step)

    @jit_method
    def init_params(self, key: Key) -> PyTree:
        """Create initial parameters.

        This method is compiled separately from the reset of the environments. In a joint program, the number
        of environments could affect XLA's optimizations and thus the rounding of the parameters.
        """
        return eqx.filter(self.make_network(key), eqx.is_array)

    def policy(self, state: State) -> PolicyNetwork:
        """Return the trained policy network."""
        return self.network(state.params)

    def evaluate(self, state: State, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the policy with the environment's `evaluate` method."""
        return self.environment.evaluate(self.policy(state), self._evaluation_settings(settings), final)

    def _evaluation_settings(self, settings: Config) -> Any:
        """Convert settings to the environment's `evaluation_config` class.

        This is necessary if the environment was passed as an object, because the `evaluation` section of the
        config then has only the settings that are common to all environments.
        """
        expected = self.environment.evaluation_config
        if self.config.environment_type is None and type(settings) is EpisodeEvaluationConfig:
            return settings if expected is EpisodeEvaluationConfig else expected(every=settings.every)
        return settings

    def sample_episodes(self, state: State, key: Key, update: int) -> list[dict[str, Any]]:
        """Run `logging.num_samples` episodes with sampled actions and return their records."""
        environment = self.environment.at_step(update * self.config.num_steps)
        episodes = record_episodes(
            environment,
            self.policy(state),
            key,
            self.config.logging.num_samples,
            environment.max_episode_steps,
            episode_num=update,
        )
        return environment.render_episodes(episodes)

    def metadata(self, state: State) -> dict[str, Any]:
        return self.environment.metadata()

    def code_identity(self) -> dict[str, Any]:
        objects = [type(self), type(self.environment), *self.config.environment_types]
        return identify_code(objects, self.network_structure, is_default_network=self._has_default_network)

    def data_fingerprint(self) -> str:
        return self.environment.fingerprint()

    def export(self, state: State, folder: Path) -> None:
        """Call the environment's `export_policy`, which can write files for other programs to `folder`."""
        settings = self._evaluation_settings(self.config.evaluation)
        self.environment.export_policy(self.policy(state), folder, settings)

    def summarize(self, result: TrainResult) -> list[str]:
        """Return lines of text that compare the greedy evaluations before and after training.

        Results for task groups, pass@k and baselines are included if the evaluations contain them. With
        several seeds, values are means over the seeds.
        """
        greedy = [record for record in result.evaluations if record["mode"] == "greedy"]
        if not greedy:
            return super().summarize(result)
        metric = "success_rate" if "success_rate" in greedy[0] else "episode_return"
        first, last = (
            [record for record in greedy if record["step"] == step]
            for step in (greedy[0]["step"], greedy[-1]["step"])
        )
        style = ".1%" if metric == "success_rate" else ".3f"

        def mean(records: Sequence[Any]) -> str:
            return format(statistics.fmean(record[metric] for record in records), style)

        name = f"{metric.replace('_', ' ').capitalize()} ({last[0]['split']}{_format_size(last)})"
        lines = [f"{name}: {mean(first)} before, {mean(last)} after"]
        if len(last) > 1 and metric == "success_rate":
            lines.append(f"  {describe_seeds([record[metric] for record in last], style)}")
        groups = last[0].get("groups", {})
        for group in groups:
            before, after = (
                mean([record["groups"][group] for record in records]) for records in (first, last)
            )
            lines.append(f"  {group:<{max(map(len, groups))}}  {before:>6} -> {after:>6}")
        # The evaluations of an extended run also include sampled attempts from its previous end.
        final = [record for record in result.evaluations if record["step"] == last[0]["step"]]
        sampled = [record["pass_at_k"] for record in final if record.get("pass_at_k")]
        if sampled:
            rates = ", ".join(
                f"pass@{k} {statistics.fmean(record[k] for record in sampled):.1%}" for k in sampled[0]
            )
            lines.append(f"Sampled attempts ({last[0]['split']}): {rates}")
        baselines = last[0].get("baselines", {})
        if baselines:
            rates = ", ".join(f"{name.replace('_', ' ')} {value:.1%}" for name, value in baselines.items())
            lines.append(f"Baselines: {rates}")
        return lines


def _format_size(records: Sequence[dict[str, Any]]) -> str:
    """Format the number of evaluated episodes as a suffix, such as `, 20 episodes`.

    Return an empty string if the number is unknown.

    Args:
        records: Records of the same evaluation, one per seed.
    """
    number = records[0].get("num_episodes", records[0].get("episodes"))
    if number is None:
        return ""
    return f", {format_count(number, 'episode')}{' per seed' if len(records) > 1 else ''}"


def default_network(
    config: PolicyRunConfig, environment: Environment | None = None
) -> Callable[[Key], PolicyNetwork]:
    """Return a function that creates the environment's policy network from a key.

    Args:
        config: Settings for the run.
        environment: Environment that was passed to the algorithm as an object. None if the config describes
            the environment.
    """
    environment_type = config.environment_type or type(environment)
    assert issubclass(environment_type, Environment)
    settings, network_config = config.environment_settings, config.network
    if config.environment_type is None:
        settings = getattr(environment, "config", None)
        network_config = (environment_type.network_config or Config)()

    def create(key: Key) -> PolicyNetwork:
        network: PolicyNetwork | None = environment_type.default_network(settings, network_config, key)
        if network is None:
            raise ValueError(
                f"{environment_type.__name__} has no default network: define default_network, or pass a "
                "network to the algorithm"
            )
        return network

    return create
