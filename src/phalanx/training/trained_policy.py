"""Trained policies to act with: loaded from a run in a moment, without its tasks, and exported as StableHLO.

How they are measured is in `arc_evaluation` and `proof_scores`; how they are trained, in `ppo`.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from phalanx.core.environment import Environment, Key, Keys
from phalanx.io.atomic import atomic_write
from phalanx.nn.policy_network import PolicyNetwork, select_action
from phalanx.training.checkpoints import CheckpointRef, named
from phalanx.training.run_dir import CONFIG, read_config, read_metadata
from phalanx.training.warm_start import load_params


class Policy:
    """A network and how its output is read: `act(observation)` is the action it takes.

    Without a key the likeliest action is taken, with one it is drawn. `act_batch` does it for many at once.
    """

    def __init__(self, network: PolicyNetwork, run: Path, step: int, kind: str) -> None:
        self.network = network
        self.run, self.step, self.kind = run, step, kind

    def act(self, observation: PyTree, key: Key | None = None) -> PyTree:
        """The action for one observation of the environment that it was trained in."""
        return _act(self.network, observation, key)

    def act_batch(self, observations: PyTree, keys: Keys | None = None) -> PyTree:
        """The actions for a batch of observations; keys are one for each."""
        return _act_batch(self.network, observations, keys)

    def export(self, environment: Environment) -> "jax.export.Exported":
        """The greedy policy as StableHLO, for any batch: arrays of observations by name to actions by name.

        It needs neither Phalanx nor its native code where it runs. The environment's observations give the
        shapes; an observation that is one array is called `observation`, such an action `action`.
        """
        seen = jax.eval_shape(environment.reset, jax.random.key(0))[1]
        (batch,) = jax.export.symbolic_shape("batch")
        arguments = {
            name or "observation": jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype)
            for name, leaf in named(seen).items()
        }
        network, structure = _portable(self.network), jax.tree.structure(seen)

        def act(observations: dict[str, Any]) -> dict[str, Any]:
            leaves = [observations[name] for name in arguments]
            actions = jax.vmap(functools.partial(select_action, network, key=None))(
                jax.tree.unflatten(structure, leaves)
            )
            return {name or "action": leaf for name, leaf in named(actions).items()}

        return jax.export.export(jax.jit(act))(arguments)

    def save_stablehlo(self, path: str | Path, environment: Environment) -> None:
        """Write `export` to a file, which `jax.export.deserialize` reads; needs the extra `export`."""
        exported = self.export(environment)
        try:
            data = exported.serialize()
        except ImportError as error:
            raise ModuleNotFoundError(
                'writing an export needs flatbuffers: pip install "phalanx[export]"', name="flatbuffers"
            ) from error
        with atomic_write(path) as file:
            file.write(data)

    def __repr__(self) -> str:
        size = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(self.network, eqx.is_array)))
        return f"Policy({self.kind}, {size:,} parameters, update {self.step} of {self.run})"


def load_policy(run: str | Path) -> Policy:
    """Load the trained policy of a run.

    Only the network is created and only its parameters are read.

    Args:
        run: `RUN`, `RUN@STEP` or `RUN@best`. For a run with several seeds, its first seed is loaded; others
            are `RUN/seed_1`, ...
    """
    ref = CheckpointRef.parse(str(run)).for_seed(0)
    kind = str(read_metadata(ref.run).get("algorithm"))
    shape = eqx.filter_eval_shape(_create_policy(ref.run, kind), jax.random.key(0))
    arrays, structure = eqx.partition(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    params, origin = load_params(ref, arrays)
    return Policy(eqx.combine(params, structure), ref.run, origin["step"], kind)


def _create_policy(run: Path, kind: str) -> Any:
    """How the network of a run is made of a key."""
    from phalanx.io.untrusted import read_yaml

    if kind == "proofs":
        from phalanx.proofs.env import ProofEnvironment
        from phalanx.training.proof_training import ProofTrainingConfig

        proofs = read_config(run, ProofTrainingConfig)
        return functools.partial(ProofEnvironment.default_network, proofs.proofs, proofs.network)
    settings = read_yaml(run / CONFIG)
    if not {"arc", "network"} <= settings.keys():
        raise ValueError(
            f"{run} is a run of kind {kind!r}, which has no policy that acts; `load_language_model` and "
            "`load_kge` read the others"
        )
    from phalanx.arc.config import ArcConfig
    from phalanx.arc.networks import create_network
    from phalanx.arc.networks.stem_and_heads import ArcNetworkConfig

    arc = ArcConfig.model_validate(settings["arc"])
    network = ArcNetworkConfig.model_validate(settings["network"])
    return functools.partial(create_network, network, arc)


_act = eqx.filter_jit(select_action)


@eqx.filter_jit
def _act_batch(network: PolicyNetwork, observations: PyTree, keys: Keys | None) -> PyTree:
    return jax.vmap(functools.partial(select_action, network))(observations, keys)


def _portable(network: Any) -> Any:
    """The same network without native code, which is not on the machines that an export goes to."""
    if getattr(network, "backend", "xla") != "native":
        return network
    twin = copy.copy(network)
    # A module is frozen, and this field is no array that `tree_at` could change.
    object.__setattr__(twin, "backend", "xla")
    return twin
