"""Policies that act: loaded without their tasks, alone and in batches, drawn, exported, and shown."""

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import phalanx
from phalanx.arc.env import ArcEnvironment
from phalanx.training import PPO, PPOConfig, RunConfig, TrainResult, train
from phalanx.training.run_dir import create_run
from phalanx.training.trained_policy import Policy
from tests.helpers.short_walk import ShortWalk, WalkNetwork
from tests.helpers.small_training import small_config

pytestmark = pytest.mark.slow

# With as many groups as `test_distributed` has, so that programs are compiled once for both.
CONFIG = small_config(
    "num_updates=1",
    "num_env_shards=4",
    "logging.sample_frequency=0",
    "network.kind=color_equivariant",
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(PPO(CONFIG), tmp_path_factory.mktemp("policies") / "run")


@pytest.fixture(scope="module")
def environment() -> ArcEnvironment:
    return CONFIG.make_environment()


@pytest.fixture(scope="module")
def observations(environment: ArcEnvironment) -> Any:
    return jax.jit(environment.batch_reset)(jax.random.split(jax.random.key(0), 5))[1]


def same(actions: Any, others: Any) -> None:
    for own, other in zip(jax.tree.leaves(actions), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(own, other)


def test_it_is_the_network_of_the_run(outcome: TrainResult) -> None:
    policy = phalanx.load_policy(outcome.run_dir)
    same(eqx.filter(policy.network, eqx.is_array), outcome.state.params)
    size = sum(leaf.size for leaf in jax.tree.leaves(outcome.state.params))
    assert repr(policy) == f"Policy(arc-v2, {size:,} parameters, update 1 of {outcome.run_dir})"
    assert len(repr(outcome)) < 2000


def test_it_acts_alone_as_in_a_batch_and_draws_with_a_key(outcome: TrainResult, observations: Any) -> None:
    policy = phalanx.load_policy(f"{outcome.run_dir}@1")
    together = policy.act_batch(observations)
    for row in range(5):
        alone = policy.act(jax.tree.map(lambda leaf, row=row: leaf[row], observations))
        same(alone, jax.tree.map(lambda leaf, row=row: leaf[row], together))
    keys = jax.random.split(jax.random.key(1), 5)
    drawn = policy.act_batch(observations, keys)
    same(drawn, policy.act_batch(observations, keys))
    assert any((a != b).any() for a, b in zip(jax.tree.leaves(drawn), jax.tree.leaves(together), strict=True))


def test_the_export_acts_as_the_policy_does_on_batches_of_any_size(
    outcome: TrainResult, environment: ArcEnvironment, observations: Any
) -> None:
    policy = phalanx.load_policy(outcome.run_dir)
    assert isinstance(policy, Policy)
    exported = policy.export(environment)
    called = re.findall(r"custom_call @(\w+)", exported.mlir_module())
    assert set(called) <= {"shape_assertion"}
    wanted = policy.act_batch(observations)
    for count in (5, 2):
        seen = dict(zip(_names(exported), jax.tree.leaves(observations), strict=True))
        given = {name: leaf[:count] for name, leaf in seen.items()}
        actions = exported.call(given)
        assert set(actions) == {"operation", "row", "col"}
        for name, values in actions.items():
            np.testing.assert_array_equal(values, getattr(wanted, name)[:count])


def _names(exported: Any) -> list[str]:
    """Of the arrays that it takes, in the order of the observation's."""
    (argument,) = jax.tree.unflatten(exported.in_tree, range(len(exported.in_avals)))[0]
    return sorted(argument, key=argument.get)


def test_the_export_is_written_and_read_back(
    outcome: TrainResult, environment: ArcEnvironment, observations: Any, tmp_path: Path
) -> None:
    pytest.importorskip("flatbuffers")
    policy = phalanx.load_policy(outcome.run_dir)
    policy.save_stablehlo(tmp_path / "policy.bin", environment)
    again = jax.export.deserialize((tmp_path / "policy.bin").read_bytes())
    names = _names(again)
    actions = again.call(dict(zip(names, jax.tree.leaves(observations), strict=True)))
    np.testing.assert_array_equal(actions["operation"], policy.act_batch(observations).operation)


def test_a_run_of_an_unknown_algorithm_is_rejected(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", RunConfig(), {"algorithm": "pto"})
    with pytest.raises(ValueError, match="unknown algorithm 'pto'; did you mean 'ppo'"):
        phalanx.load_policy(run)


def test_code_in_a_run_folder_is_not_imported(tmp_path: Path) -> None:
    run = create_run(
        tmp_path / "run", RunConfig(), {"algorithm": "mine", "entry_point": f"{tmp_path}/run/mine.py:Mine"}
    )
    (run / "mine.py").write_text("raise SystemExit('imported')")
    with pytest.raises(ValueError, match="code in run folders is not run"):
        phalanx.load_policy(run)


def test_a_policy_that_was_trained_in_an_object_is_rejected(tmp_path: Path) -> None:
    config = PPOConfig(
        num_envs=2, num_steps=4, num_updates=1, num_minibatches=1, evaluation={"num_episodes": 0}
    )
    outcome = train(PPO(config, ShortWalk(), WalkNetwork), tmp_path / "run")
    with pytest.raises(ValueError, match="was trained in an environment that was passed as an object"):
        phalanx.load_policy(outcome.run_dir)


def test_the_policy_is_shown_as_a_moving_picture(outcome: TrainResult, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from typer.testing import CliRunner

    from phalanx.cli.render import app

    gif = tmp_path / "shown.gif"
    options = ["--episodes", "2", "--milliseconds", "100", "--scale", "2", "--seed", "3", "--gif", str(gif)]
    done = CliRunner().invoke(app, [str(outcome.run_dir), *options])
    assert done.exit_code == 0, done.output
    with image.open(gif) as shown:
        assert (shown.format, shown.info["duration"]) == ("GIF", 100)
        told = re.search(r"2 episodes, (\d+) frames", done.output)
        assert told is not None
        # Frames that are alike one after the other are one, shown longer.
        assert 1 < shown.n_frames <= int(told[1])


def test_without_pillow_it_is_said_what_to_install(
    outcome: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from phalanx.cli.errors import UserError
    from phalanx.cli.render import _save_gif, _save_mp4

    for library, save in (("PIL", _save_gif), ("imageio_ffmpeg", _save_mp4)):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(UserError, match=r'pip install "phalanx\[render\]"'):
            save(tmp_path / "x", [np.zeros((2, 2, 3), np.uint8)], [1], 100)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # the test reads the film by a fork, too
def test_the_policy_is_shown_as_a_film(outcome: TrainResult, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    from typer.testing import CliRunner

    from phalanx.cli.render import app

    film = tmp_path / "shown.mp4"
    # As the other test has it, so that nothing more is compiled.
    options = [str(outcome.run_dir), "--episodes", "2", "--milliseconds", "100", "--seed", "3"]
    done = CliRunner().invoke(app, [*options, "--mp4", str(film)])
    assert done.exit_code == 0, done.output
    told = re.search(r"2 episodes, (\d+) frames", done.output)
    assert told is not None
    frames = ffmpeg.read_frames(str(film))
    about = next(frames)
    frames.close()
    assert (about["codec"], about["fps"]) == ("h264", 25.0)
    # The end of an episode stays three steps longer.
    assert about["duration"] == pytest.approx((int(told[1]) + 6) / 10, abs=0.15)
    both = CliRunner().invoke(app, [*options, "--mp4", str(film), "--gif", "x.gif"])
    assert "cannot be combined" in str(both.exception)
