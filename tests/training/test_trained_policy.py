"""Trained policies: loading, single and batched actions, sampling, export, and rendering."""

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

CONFIG = small_config(
    "num_updates=1",
    "logging.sample_frequency=0",
    "network.kind=color_equivariant",
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(PPO(CONFIG), tmp_path_factory.mktemp("policies") / "run")


@pytest.fixture(scope="module")
def environment() -> ArcEnvironment:
    return CONFIG.env.make()


@pytest.fixture(scope="module")
def observations(environment: ArcEnvironment) -> Any:
    return jax.jit(environment.batch_reset)(jax.random.split(jax.random.key(0), 5))[1]


def assert_trees_equal(actions: Any, others: Any) -> None:
    for own, other in zip(jax.tree.leaves(actions), jax.tree.leaves(others), strict=True):
        np.testing.assert_array_equal(own, other)


def test_loaded_policy_has_the_network_of_the_run(outcome: TrainResult) -> None:
    policy = phalanx.load_policy(outcome.run_dir)
    assert_trees_equal(eqx.filter(policy.network, eqx.is_array), outcome.state.params)
    size = sum(leaf.size for leaf in jax.tree.leaves(outcome.state.params))
    assert repr(policy) == f"Policy(arc-v2, {size:,} parameters, update 1 of {outcome.run_dir})"
    assert len(repr(outcome)) < 2000


def test_policy_acts_the_same_alone_and_in_a_batch_and_samples_with_a_key(
    outcome: TrainResult, observations: Any
) -> None:
    policy = phalanx.load_policy(f"{outcome.run_dir}@1")
    batched = policy.act_batch(observations)
    for row in range(5):
        single = policy.act(jax.tree.map(lambda leaf, row=row: leaf[row], observations))
        assert_trees_equal(single, jax.tree.map(lambda leaf, row=row: leaf[row], batched))
    keys = jax.random.split(jax.random.key(1), 5)
    sampled = policy.act_batch(observations, keys)
    assert_trees_equal(sampled, policy.act_batch(observations, keys))
    assert any(
        (a != b).any() for a, b in zip(jax.tree.leaves(sampled), jax.tree.leaves(batched), strict=True)
    )


def test_exported_policy_acts_like_the_policy_for_any_batch_size(
    outcome: TrainResult, environment: ArcEnvironment, observations: Any
) -> None:
    policy = phalanx.load_policy(outcome.run_dir)
    assert isinstance(policy, Policy)
    exported = policy.export(environment)
    custom_calls = re.findall(r"custom_call @(\w+)", exported.mlir_module())
    assert set(custom_calls) <= {"shape_assertion"}
    expected = policy.act_batch(observations)
    for count in (5, 2):
        arrays = dict(zip(input_names(exported), jax.tree.leaves(observations), strict=True))
        inputs = {name: leaf[:count] for name, leaf in arrays.items()}
        actions = exported.call(inputs)
        assert set(actions) == {"operation", "row", "col"}
        for name, values in actions.items():
            np.testing.assert_array_equal(values, getattr(expected, name)[:count])


def input_names(exported: Any) -> list[str]:
    """Return the names of the inputs in the order of the arrays of an observation."""
    (argument,) = jax.tree.unflatten(exported.in_tree, range(len(exported.in_avals)))[0]
    return sorted(argument, key=argument.get)


def test_exported_policy_can_be_saved_and_loaded(
    outcome: TrainResult, environment: ArcEnvironment, observations: Any, tmp_path: Path
) -> None:
    pytest.importorskip("flatbuffers")
    policy = phalanx.load_policy(outcome.run_dir)
    policy.save_stablehlo(tmp_path / "policy.bin", environment)
    loaded = jax.export.deserialize((tmp_path / "policy.bin").read_bytes())
    names = input_names(loaded)
    actions = loaded.call(dict(zip(names, jax.tree.leaves(observations), strict=True)))
    np.testing.assert_array_equal(actions["operation"], policy.act_batch(observations).operation)


def test_run_of_an_unknown_algorithm_is_rejected(tmp_path: Path) -> None:
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


def test_policy_trained_in_an_environment_object_is_rejected(tmp_path: Path) -> None:
    config = PPOConfig(
        num_envs=2, num_steps=4, num_updates=1, num_minibatches=1, evaluation={"num_episodes": 0}
    )
    outcome = train(PPO(config, ShortWalk(), WalkNetwork), tmp_path / "run")
    with pytest.raises(ValueError, match="was trained in an environment that was passed as an object"):
        phalanx.load_policy(outcome.run_dir)


def test_policy_is_rendered_as_a_gif(outcome: TrainResult, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from typer.testing import CliRunner

    from phalanx.cli.render import app

    gif = tmp_path / "policy.gif"
    options = ["--episodes", "2", "--milliseconds", "100", "--scale", "2", "--seed", "3", "--gif", str(gif)]
    result = CliRunner().invoke(app, [str(outcome.run_dir), *options])
    assert result.exit_code == 0, result.output
    with image.open(gif) as image_file:
        match = re.search(r"2 episodes, (\d+) frames", result.output)
        assert match is not None
        # Equal consecutive frames are merged into one frame with a longer duration.
        assert image_file.format == "GIF" and 1 < image_file.n_frames <= int(match[1])
        durations = []
        for frame in range(image_file.n_frames):
            image_file.seek(frame)
            durations.append(image_file.info["duration"])
    # The last frame of an episode is shown for three more steps.
    assert sum(durations) == 100 * (int(match[1]) + 6)


def test_missing_render_libraries_are_reported(
    outcome: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from phalanx.cli.render import _save_gif, _save_mp4
    from phalanx.extras import MissingExtraError

    for library, save in (("PIL", _save_gif), ("imageio_ffmpeg", _save_mp4)):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingExtraError, match=r"pip install 'phalanx\[render\]'"):
            save(tmp_path / "x", [np.zeros((2, 2, 3), np.uint8)], [1], 100)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # imageio_ffmpeg also forks to read the video
def test_policy_is_rendered_as_a_video(outcome: TrainResult, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    from typer.testing import CliRunner

    from phalanx.cli.render import app

    video = tmp_path / "policy.mp4"
    # The same options as for the GIF, so that nothing is compiled again.
    options = [str(outcome.run_dir), "--episodes", "2", "--milliseconds", "100", "--seed", "3"]
    result = CliRunner().invoke(app, [*options, "--mp4", str(video)])
    assert result.exit_code == 0, result.output
    match = re.search(r"2 episodes, (\d+) frames", result.output)
    assert match is not None
    frames = ffmpeg.read_frames(str(video))
    metadata = next(frames)
    frames.close()
    assert (metadata["codec"], metadata["fps"]) == ("h264", 25.0)
    # The last frame of an episode is shown for three more steps.
    assert metadata["duration"] == pytest.approx((int(match[1]) + 6) / 10, abs=0.15)
    combined = CliRunner().invoke(app, [*options, "--mp4", str(video), "--gif", "x.gif"])
    assert "cannot be combined" in str(combined.exception)
