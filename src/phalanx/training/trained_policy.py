"""Functions and classes for loading trained policies, running them and exporting them."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from phalanx.core.environment import Environment, Key, Keys
from phalanx.core.episodes import record_episodes
from phalanx.extras import MissingExtraError
from phalanx.io.atomic import atomic_write
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.training.algorithm import Algorithm, load_algorithm
from phalanx.training.checkpoints import CheckpointRef, arrays_by_name, check_metadata, open_checkpoint
from phalanx.training.code_identity import check_same_network, identify_code, warn_of_changed_sources
from phalanx.training.config import PolicyRunConfig, RunConfig
from phalanx.training.policy_algorithm import PolicyAlgorithm, default_network, network_shapes
from phalanx.training.run_dir import load_metadata, load_run_config, reject_own_code
from phalanx.training.warm_start import load_params

_NETWORK_REMEDY = "load it in Python with load_policy(RUN, network=...) and the network of its training"


class Policy:
    """A trained policy network that acts in its environment.

    Args:
        network: Trained network.
        config: Config of the run.
        run: Run folder.
        step: Number of completed updates when the checkpoint was saved.
    """

    def __init__(self, network: PolicyNetwork, config: PolicyRunConfig, run: Path, step: int) -> None:
        self.network, self.config = network, config
        self.run, self.step = run, step

    @functools.cached_property
    def environment(self) -> Environment:
        """The run's environment, created on first use."""
        return self.config.env.make()

    def act(self, observation: PyTree, key: Key | None = None) -> PyTree:
        """Select an action for one observation.

        If `key` is None, the action is the most probable one. Otherwise, it is sampled.
        """
        return _act(self.network, observation, key)

    def act_batch(self, observations: PyTree, keys: Keys | None = None) -> PyTree:
        """Select actions for a batch of observations.

        If `keys` is None, the actions are the most probable ones. Otherwise, they are sampled with one key
        per observation.
        """
        return _act_batch(self.network, observations, keys)

    def record_episodes(
        self,
        num_episodes: int = 1,
        seed: int = 0,
        *,
        greedy: bool = True,
        environment: Environment | None = None,
    ) -> list[dict[str, Any]]:
        """Run episodes and return their records.

        Args:
            num_episodes: Number of episodes.
            seed: Seed for the episodes, and for the actions if they are sampled.
            greedy: Take the most probable actions instead of sampling.
            environment: Environment to run in. Its observations and actions must have the same structure as
                those of the run's environment, which is the default.
        """
        environment = self.environment if environment is None else environment
        key, task_name = jax.random.key(seed), self.config.env.spec.task_name
        return record_episodes(
            environment, self.network, key, num_episodes, greedy=greedy, task_name=task_name
        )

    def export(self, environment: Environment | None = None) -> "jax.export.Exported":
        """Export the greedy policy as StableHLO.

        The exported function maps a dictionary of observation arrays to a dictionary of action arrays. The
        names are the paths of the arrays in the observation and in the action. If an observation or an action
        is a single array, its name is `observation` or `action`. The batch size is symbolic. Running the
        function requires neither Phalanx nor its native code.

        Args:
            environment: Environment whose observations determine the shapes. Defaults to the run's
                environment.
        """
        environment = self.environment if environment is None else environment
        observation = jax.eval_shape(environment.reset, jax.random.key(0))[1]
        (batch,) = jax.export.symbolic_shape("batch")
        arguments = {
            name or "observation": jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype)
            for name, leaf in arrays_by_name(observation).items()
        }
        network, structure = _without_native_code(self.network), jax.tree.structure(observation)

        def act(observations: dict[str, Any]) -> dict[str, Any]:
            leaves = [observations[name] for name in arguments]
            actions = jax.vmap(functools.partial(select_action, network, key=None))(
                jax.tree.unflatten(structure, leaves)
            )
            return {name or "action": leaf for name, leaf in arrays_by_name(actions).items()}

        return jax.export.export(jax.jit(act))(arguments)

    def save_stablehlo(self, path: str | Path, environment: Environment | None = None) -> None:
        """Write the result of `export` to a file, which `jax.export.deserialize` can read.

        This method requires the `export` extra.
        """
        exported = self.export(environment)
        try:
            data = exported.serialize()
        except ImportError as error:
            raise MissingExtraError("save_stablehlo", "flatbuffers", "export") from error
        with atomic_write(path) as file:
            file.write(data)

    def __repr__(self) -> str:
        size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(self.network, eqx.is_array)))
        return f"Policy({self.config.env.id}, {size:,} parameters, update {self.step} of {self.run})"


def load_policy(run: str | Path, network: Callable[[Key], PolicyNetwork] | None = None) -> Any:
    """Load the trained policy, language model or embedding of a run.

    Args:
        run: Run folder, optionally with a checkpoint: `RUN`, `RUN@STEP` or `RUN@best`. For a run with several
            seeds, the first seed is loaded. To load a different seed, pass its folder, such as `RUN/seed_1`.
            Without a checkpoint, the best one is loaded if `checkpoint.best_metric` is set, and otherwise the
            newest one.
        network: Function or class that creates the policy network from a key. Required if the run was trained
            with a network that was passed to its algorithm.

    Returns:
        A `Policy` for PPO, behavior cloning and other policy algorithms. Only the parameters of the policy
        are read from the checkpoint, and the environment is created on first use. For other algorithms, the
        result of `Algorithm.policy`, which is an `LMPolicy` for SFT and GRPO and a `KGE` for embeddings.

    Raises:
        ValueError: If the run was trained with another network.
    """
    ref = CheckpointRef.parse(str(run)).for_seed(0)
    algorithm_type, config = load_algorithm_and_config(ref.run)
    if not issubclass(algorithm_type, PolicyAlgorithm) or not isinstance(config, PolicyRunConfig):
        if network is not None:
            raise ValueError(f"{ref.run} was trained with {algorithm_type.name}, which accepts no network")
        algorithm = algorithm_for_evaluation(ref.run)
        warn_of_changed_sources(ref.run, algorithm._code())
        return algorithm.policy(restore_state(algorithm, ref))
    if not config.env.id:
        raise ValueError(
            f"{ref.run} was trained in an environment that was passed as an object, so its policy cannot be "
            "created from the config; register the environment and train with env.id"
        )
    arrays, structure = network_shapes(network or default_network(config))
    objects = [algorithm_type, *config.environment_types]
    is_default = network is None and not config.network_path
    code = identify_code(objects, structure, is_default_network=is_default)
    check_same_network(ref.run, code, _NETWORK_REMEDY)
    warn_of_changed_sources(ref.run, code)
    params, origin = load_params(best_by_default(ref, config), arrays)
    return Policy(eqx.combine(params, structure), config, ref.run, origin["step"])


def load_algorithm_and_config(run: Path) -> tuple[type[Algorithm], RunConfig]:
    """Return the algorithm class and the config of a run."""
    metadata = load_metadata(run)
    address = str(metadata.get("entry_point") or metadata.get("algorithm"))
    reject_own_code(run, address)
    algorithm = load_algorithm(address)
    return algorithm, load_run_config(run, algorithm.config_type)


def algorithm_for_evaluation(run: Path) -> Algorithm:
    """Create the algorithm of a run, to evaluate its policy.

    Raises:
        ValueError: If the run was trained with a network that the algorithm does not create.
    """
    algorithm_type, config = load_algorithm_and_config(run)
    algorithm = algorithm_type(config)
    check_same_network(run, algorithm._code(), _NETWORK_REMEDY)
    return algorithm


def best_by_default(ref: CheckpointRef, config: RunConfig) -> CheckpointRef:
    """Replace a reference to the newest checkpoint of a run that has a `checkpoint.best_metric`."""
    if ref.which == "newest" and config.checkpoint.best_metric is not None:
        return dataclasses.replace(ref, which="best")
    return ref


def restore_state(algorithm: Algorithm, ref: CheckpointRef) -> Any:
    """Return a training state with the parameters of a checkpoint.

    The other fields are not loaded. They contain `jax.ShapeDtypeStruct` objects instead of arrays.

    Args:
        algorithm: Algorithm with the config of the run.
        ref: Checkpoint to load. If the run has several seeds, it must be the checkpoint of one seed. If
            `ref.which` is `newest` and the run has a `checkpoint.best_metric`, the best checkpoint is loaded.
    """
    ref = best_by_default(ref, algorithm.config)
    with open_checkpoint(ref.run, ref.which) as (_, step, metadata):
        check_metadata(ref.run, step, metadata, algorithm.config)
    like = eqx.filter_eval_shape(algorithm.init, jax.random.key(algorithm.config.seed))
    params, _ = load_params(ref, like.params)
    return eqx.tree_at(lambda state: state.params, like, params)


_act = eqx.filter_jit(select_action)


@eqx.filter_jit
def _act_batch(network: PolicyNetwork, observations: PyTree, keys: Keys | None) -> PyTree:
    return jax.vmap(functools.partial(select_action, network))(observations, keys)


def _without_native_code(network: Any) -> Any:
    """Return an equivalent network that calls no native code, so that it also runs without Phalanx."""
    if getattr(network, "backend", "xla") != "native":
        return network
    copied = copy.copy(network)
    # Modules are frozen, and this field is not an array that `tree_at` could change.
    object.__setattr__(copied, "backend", "xla")
    return copied
