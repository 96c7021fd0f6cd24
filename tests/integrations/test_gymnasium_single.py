"""The single Gymnasium environment: checkers, registration, settings, and rendering."""

import importlib
import sys

import numpy as np
import pytest

gym = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from phalanx.arc.config import ArcConfig  # noqa: E402
from phalanx.arc.generators import generate_tasks  # noqa: E402
from phalanx.arc.task_buffer import TaskBuffer  # noqa: E402
from phalanx.core.spaces import Space  # noqa: E402
from phalanx.integrations.gymnasium import GymnasiumEnv, GymnasiumVectorEnv, register_environments  # noqa: E402
from phalanx.integrations.gymnasium.spaces import convert_space  # noqa: E402
from phalanx.proofs.config import ProofConfig  # noqa: E402
from tests.helpers.gymnasium_cases import ANCESTORS, PAINTINGS, ancestors  # noqa: E402
from tests.helpers.small_environments import arc  # noqa: E402

SMALL = {"max_grid_height": 5, "max_grid_width": 5}


@pytest.mark.parametrize(("name", "settings"), [("arc-v2", PAINTINGS), ("proofs-v1", ANCESTORS)])
def test_gymnasium_checker_passes(name: str, settings: dict) -> None:
    """Warnings of the checker are errors."""
    env = gym.make(f"phalanx/{name}", **settings)
    check_env(env.unwrapped)
    assert isinstance(env.unwrapped, GymnasiumEnv)
    env.close()


@pytest.mark.parametrize("selection", ["bbox", "mask"])
def test_all_action_formats_pass_the_checker(selection: str) -> None:
    check_env(GymnasiumEnv(arc(selection)), skip_render_check=True)


def test_vector_environment_is_created_by_id_and_spec() -> None:
    envs = gym.make_vec("phalanx/arc-v2", num_envs=2, vectorization_mode="vector_entry_point", config="mini")
    assert isinstance(envs, GymnasiumVectorEnv) and envs.num_envs == 2
    assert envs.single_observation_space["observation"].shape == (5, 5)
    again = gym.make_vec(envs.spec)
    assert again.environment == envs.environment and again.num_envs == 2
    single = gym.make_vec("phalanx/arc-v2", num_envs=2, vectorization_mode="sync", config="mini")
    assert single.observation_space == envs.observation_space
    proving = gym.make_vec("phalanx/proofs-v1", num_envs=3, **ANCESTORS)
    assert proving.reset(seed=0)[0]["successors"].shape == (3, 4, 3, 3)


def test_registering_twice_has_no_effect() -> None:
    before = gym.spec("phalanx/arc-v2")
    register_environments()
    assert gym.spec("phalanx/arc-v2") is before


def test_tasks_are_shared_and_not_copied() -> None:
    # No other test uses this seed. Environments with equal tasks are cached and share the first buffer.
    tasks = generate_tasks(num_tasks=3, max_height=5, max_width=5, seed=271)
    buffer = TaskBuffer.from_tasks(tasks)
    vector_envs = [
        gym.make_vec("phalanx/arc-v2", num_envs=2, tasks=given, dataset=SMALL) for given in (buffer, buffer)
    ]
    assert all(envs.environment.task_buffer is buffer for envs in vector_envs)
    lists = [gym.make("phalanx/arc-v2", tasks=list(tasks), dataset=SMALL).unwrapped for _ in range(2)]
    assert lists[0].environment.task_buffer is lists[1].environment.task_buffer
    assert lists[0].environment.task_buffer == buffer


def test_settings_change_only_their_section() -> None:
    base = ArcConfig(episode={"max_episode_steps": 9, "mode": "evaluation"}, backend="xla")
    envs = gym.make_vec(
        "phalanx/arc-v2", num_envs=1, config=base, max_episode_steps=3, action={"selection_format": "bbox"}
    )
    config = envs.environment.config
    assert config.episode.max_episode_steps == 3 and config.episode.mode == "evaluation"
    assert config.action.selection_format == "bbox" and config.backend == "xla"
    proving = gym.make_vec(
        "phalanx/proofs-v1", num_envs=1, reward={"type": 2}, **(ANCESTORS | {"max_episode_steps": 7})
    )
    assert proving.environment.config.max_episode_steps == 7 and proving.environment.config.reward.type == 2


def test_section_named_observation_can_be_set() -> None:
    env = gym.make("phalanx/arc-v2", config="mini", observation={"scalars": True, "input_grid": True})
    fields = set(env.observation_space.spaces)
    assert fields == {
        "working_grid", "input_grid", "similarity", "step_count", "legal_operations", "action_mask"
    }  # fmt: skip
    flat = gym.make_vec(
        "phalanx/arc-v2", num_envs=2, config="mini", observation={"scalars": True}, flatten=True
    )
    assert flat.single_observation_space.shape == (25 + 2 + 42,)


def test_unknown_settings_are_rejected() -> None:
    with pytest.raises(
        TypeError, match=r"unexpected keyword argument 'max_steps'; did you mean 'max_episode_s"
    ):
        gym.make("phalanx/arc-v2", max_steps=3)
    with pytest.raises(ValueError, match="max_grid_height must be between 1 and 30, got 31"):
        gym.make("phalanx/arc-v2", dataset={"max_grid_height": 31})
    with pytest.raises(
        TypeError, match="config must be of type ArcConfig, the name of a preset or a path, got ProofConfig"
    ):
        gym.make("phalanx/arc-v2", config=ProofConfig())
    with pytest.raises(ValueError, match="tiny"):
        gym.make("phalanx/arc-v2", config="tiny")
    with pytest.raises(ValueError, match="render_mode must be None or one of: svg, ansi, rgb_array; got"):
        gym.make("phalanx/arc-v2", render_mode="human")


def test_arc_is_rendered_as_text_and_pixels() -> None:
    text, pixels = (GymnasiumEnv(arc(), render_mode=mode) for mode in ("ansi", "rgb_array"))
    for env in (text, pixels):
        env.reset(seed=0)
        env.step(np.array([2, 0, 1]))
    drawn = text.render()
    assert "fill" in drawn and "working" in drawn and "target" in drawn
    picture = pixels.render()
    # Three canvases of 2 x 3 cells of 80 pixels, and two gaps of 12.
    assert picture.shape == (160, 3 * 240 + 2 * 12, 3) and picture.dtype == np.uint8
    red, green, sheet = [255, 65, 54], [46, 204, 64], [252, 252, 253]
    assert picture[40, 252 + 120].tolist() == red
    assert picture[40, 504 + 40].tolist() == green
    assert picture[120, 40].tolist() == picture[40, 246].tolist() == sheet


def test_proof_is_rendered_with_goals_and_choices() -> None:
    env = gym.make("phalanx/proofs-v1", render_mode="ansi", **ANCESTORS)
    env.reset(seed=0)
    head, *choices = env.render().splitlines()
    assert head.startswith("step 0: ") and choices[-1].endswith(": give up")
    assert len(choices) == env.unwrapped.action_masks().sum()


def test_rendering_needs_a_render_mode() -> None:
    env = GymnasiumEnv(arc())
    env.reset(seed=0)
    with pytest.raises(gym.error.Error, match=r"pass a render_mode.*svg, ansi, rgb_array"):
        env.render()
    vector = GymnasiumVectorEnv(arc(), 2, render_mode="ansi")
    vector.reset(seed=0)
    assert len(vector.render() or ()) == 2


def test_step_after_the_end_is_rejected() -> None:
    env = GymnasiumEnv(ancestors)
    env.reset(seed=0)
    done = False
    while not done:
        _, reward, terminated, truncated, info = env.step(0)
        done = terminated or truncated
        assert isinstance(reward, float) and isinstance(info["proved"], bool)
    with pytest.raises(gym.error.ResetNeeded, match="1 of 1 environments ended"):
        env.step(0)


def test_unsupported_space_is_rejected() -> None:
    class Odd(Space):
        def sample(self, key: object) -> None: ...

        def contains(self, value: object) -> bool:
            return False

    with pytest.raises(TypeError, match="Odd cannot be converted to a Gymnasium space"):
        convert_space(Odd())


def test_missing_gymnasium_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [name for name in sys.modules if name.startswith("phalanx.integrations.gymnasium")]:
        monkeypatch.delitem(sys.modules, loaded)
    for loaded in [name for name in sys.modules if name.partition(".")[0] == "gymnasium"]:
        monkeypatch.setitem(sys.modules, loaded, None)
    with pytest.raises(ModuleNotFoundError, match=r"needs gymnasium: pip install 'phalanx\[gym\]'"):
        importlib.import_module("phalanx.integrations.gymnasium")
