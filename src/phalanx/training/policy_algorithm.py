"""Base class for algorithms that train a policy network in an environment."""

import concurrent.futures
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import equinox as eqx
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jaxtyping import Array, Float, Int32, PyTree

from phalanx.config import Config
from phalanx.core.environment import Environment, Key
from phalanx.core.episodes import draw_episodes, record_episodes
from phalanx.core.evaluation import EvaluationResult
from phalanx.core.policy_episodes import record_policy_episodes
from phalanx.core.policy_from_spaces import policy_from_spaces
from phalanx.core.spec import EnvSpec
from phalanx.formatting import format_count
from phalanx.import_path import import_object
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import write_json
from phalanx.logging.report.policy_episodes import FILE_NAME as POLICY_EPISODES
from phalanx.nn.policy_network import PolicyNetwork
from phalanx.statistics import describe_seeds
from phalanx.training.algorithm import Algorithm, TrainResult, TrainState, jit_method
from phalanx.training.code_identity import identify_code
from phalanx.training.config import PolicyRunConfig
from phalanx.training.device_mesh import create_mesh
from phalanx.training.optimizer import adam, lr_schedule

State = TypeVar("State", bound=TrainState)


class PolicyAlgorithm(Algorithm[State], Generic[State]):
    """Base class for algorithms that train a policy network in an environment.

    Args:
        config: Settings for the run.
        environment: Environment to train in. If None, it is created from the config's `env` section.
        network: Function or class that creates the policy network from a key. If None, the network of the
            environment's spec is created from the config's `network` section.
        mesh: Devices to train on. If None, all devices are used.
    """

    trains_value: ClassVar[bool] = True
    """Whether the values that the network estimates are trained. If not, the report does not show them."""

    def __init__(
        self,
        config: PolicyRunConfig,
        environment: Environment | None = None,
        network: Callable[[Key], PolicyNetwork] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        super().__init__(config, config.env.make() if environment is None else environment)
        self.mesh = create_mesh() if mesh is None else mesh
        self.spec: EnvSpec = config.env.spec
        self.tasks = self.spec.tasks(self.environment, config.seed)
        """Source of the environments for training and evaluation."""
        self.optimizer = adam(config.optimizer)
        """Adam with gradient clipping, but without the learning rate: algorithms multiply its updates by
        `learning_rate`."""
        self.make_network = network or default_network(config, self.environment)
        self._has_default_network = network is None and not config.network_path
        _, self.network_structure = network_shapes(self.make_network)
        # A thread prepares the tasks of the next update while XLA's threads compute the current one.
        self._worker: concurrent.futures.ThreadPoolExecutor | None = None
        self._environments: dict[int, concurrent.futures.Future[Environment]] = {}
        self._types: Any = None

    @classmethod
    def evaluation_type(cls, config: Any, env: str | None = None) -> type[Config] | None:
        spec = config.env.spec
        return (spec.eval_command or spec.evaluation).config if config.env.id else None

    @property
    def _program_key(self) -> tuple[Any, ...]:
        # The module itself may not be hashable, for example if it has a list of layers.
        leaves, structure = jax.tree.flatten(self.network_structure)
        return *super()._program_key, structure, tuple(leaves), self.mesh

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(cancel_futures=True)
        self._worker, self._environments = None, {}

    def place(self, state: State, specs: PyTree = P()) -> State:  # noqa: B008 - immutable
        """Copy a state to the devices of the mesh. The first update is compiled for this placement.

        Args:
            state: The state.
            specs: How its arrays are distributed over the devices. By default, all devices have copies.
        """
        shardings = jax.tree.map(functools.partial(NamedSharding, self.mesh), specs)
        return jax.device_put(state, shardings, may_alias=False)

    def training_environment(self, update: int) -> Environment:
        """Return the environment for an update, counted from 0. A thread prepares the one for the next
        update.

        Raises:
            ValueError: If it would need another compiled program than the environments of other updates.
        """
        self._worker = self._worker or concurrent.futures.ThreadPoolExecutor(1, "tasks")
        self._environments = {n: found for n, found in self._environments.items() if n >= update - 1}
        for wanted in (update, min(update + 1, max(update, self.num_updates - 1))):
            if wanted not in self._environments:
                self._environments[wanted] = self._worker.submit(self.tasks.training, wanted)
        environment = self._environments[update].result()
        types = jax.tree.flatten(jax.tree.map(jax.typeof, environment))
        self._types = self._types or types
        if types != self._types:
            raise ValueError(
                f"the task source of {type(environment).__name__} changed its settings or the shapes of its "
                "arrays, so every update would be compiled again: return environments that differ only in "
                "the values of their arrays"
            )
        return environment

    def network(self, params: PyTree) -> PolicyNetwork:
        """Return the policy network with the given parameters."""
        return eqx.combine(params, self.network_structure)

    def learning_rate(self, step: Int32[Array, ""]) -> Float[Array, ""]:
        """Compute the learning rate of update `step`, counted from 0."""
        return lr_schedule(self.config.optimizer, self.config.num_updates)(step)

    @jit_method(optimize=False)
    def init_params(self, key: Key) -> PyTree:
        """Create initial parameters."""
        return eqx.filter(self.make_network(key), eqx.is_array)

    def policy(self, state: State) -> PolicyNetwork:
        """Return the trained policy network."""
        return self.network(state.params)

    def evaluate(self, state: State, settings: Config, final: bool) -> Sequence[EvaluationResult]:
        """Evaluate the policy as the environment's spec describes.

        In `phalanx eval`, the settings have the class that `evaluation_type` returns.
        """
        evaluation = self.spec.evaluation
        if self.spec.eval_command and isinstance(settings, self.spec.eval_command.config):
            evaluation = self.spec.eval_command
        return evaluation.run(self.tasks, self.policy(state), settings, final)

    def sample_episodes(self, state: State, key: Key, update: int) -> list[dict[str, Any]]:
        """Run `logging.num_samples` episodes with sampled actions and return their records.

        Environments that cannot be rendered have none.
        """
        environment = self.training_environment(max(update - 1, 0))
        if not environment.render_modes:
            return []
        policy, count, task_name = self.policy(state), self.config.logging.num_samples, self.spec.task_name
        episodes = record_episodes(environment, policy, key, count, episode_num=update, task_name=task_name)
        return (self.spec.episode_view or draw_episodes)(environment, episodes)

    def metadata(self, state: State) -> dict[str, Any]:
        return self.tasks.metadata

    def export(self, state: State, folder: Path) -> None:
        """Record episodes of the trained policy for the report, if the run is complete."""
        update = int(state.step)
        if update < self.num_updates or not self.config.logging.sample_frequency:
            return
        found = record_policy_episodes(
            self.spec, self.tasks, self.policy(state), self.config.evaluation, has_values=self.trains_value
        )
        if found is not None:
            with atomic_write(folder / POLICY_EPISODES, "w", checksum=True) as file:
                record = {"format": 1, "update": update, **found}
                write_json(file, record, allow_nan=False, separators=(",", ":"))

    def fingerprint(self) -> str:
        return self.tasks.fingerprint

    def _code(self) -> dict[str, Any]:
        objects = [type(self), type(self.environment), *self.config.environment_types]
        return identify_code(objects, self.network_structure, is_default_network=self._has_default_network)

    def summarize(self, result: TrainResult) -> list[str]:
        """Return lines of text that compare the greedy evaluations before and after training.

        Results for task groups, pass@k and baselines are included if the evaluations contain them. With
        several seeds, values are means over the seeds.
        """
        greedy = [record for record in result.evaluations if record["mode"] == "greedy"]
        if not greedy:
            return super().summarize(result)
        has_rate = "success_rate" in greedy[0]
        metric, style = ("success_rate", ".1%") if has_rate else ("episode_return", ".3f")
        first, last = (
            [one for one in greedy if one["step"] == end["step"]] for end in (greedy[0], greedy[-1])
        )

        def mean(records: Sequence[Any]) -> str:
            return format(statistics.fmean(record[metric] for record in records), style)

        split = last[0]["split"]
        if (size := last[0].get("num_episodes")) is not None:
            split += f", {format_count(size, 'episode')}{' per seed' if len(last) > 1 else ''}"
        title = metric.replace("_", " ").capitalize()
        lines = [f"{title} ({split}): {mean(first)} before, {mean(last)} after"]
        if len(last) > 1 and has_rate:
            lines.append(f"  {describe_seeds([record[metric] for record in last], style)}")
        groups = last[0].get("groups", {})
        for group in groups:
            before, after = (mean([one["groups"][group] for one in records]) for records in (first, last))
            lines.append(f"  {group:<{max(map(len, groups))}}  {before:>6} -> {after:>6}")
        # The evaluations of an extended run also include sampled attempts from its previous end.
        final = [record for record in result.evaluations if record["step"] == last[0]["step"]]
        if sampled := [record["pass_at_k"] for record in final if record.get("pass_at_k")]:
            rates = {f"pass@{k}": statistics.fmean(one[k] for one in sampled) for k in sampled[0]}
            lines.append(f"Sampled attempts ({last[0]['split']}): {_format_rates(rates)}")
        if baselines := last[0].get("baselines"):
            lines.append(f"Baselines: {_format_rates(baselines)}")
        return lines


def _format_rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {rate:.1%}" for name, rate in rates.items())


def network_shapes(make_network: Callable[[Key], PolicyNetwork]) -> tuple[PyTree, PyTree]:
    """Return the shapes of a network's arrays, and the network without its arrays."""
    shapes = eqx.filter_eval_shape(make_network, jax.random.key(0))
    return eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


def default_network(
    config: PolicyRunConfig, environment: Environment | None = None
) -> Callable[[Key], PolicyNetwork]:
    """Return a function that creates the policy network of a config from a key.

    Args:
        config: Settings for the run.
        environment: Environment whose spaces determine the network, if its spec defines none. If None, the
            environment is created from the config.
    """
    spec = config.env.spec
    if config.network_path:
        create: Callable[[Key], PolicyNetwork] = import_object(config.network_path)
        return create
    if spec.network is not None:
        return functools.partial(spec.network, config.env.settings, config.network)
    environment = config.env.make() if environment is None else environment
    spaces = environment.observation_space, environment.action_space
    network_config: Any = config.network
    return functools.partial(policy_from_spaces, *spaces, network_config)
