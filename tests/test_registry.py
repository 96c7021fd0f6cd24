"""Registering, finding and creating environments."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx import registry
from phalanx.arc import ArcConfig, ArcEnvironment, TaskBuffer, generate_tasks
from phalanx.core import Environment, EnvSpec
from phalanx.import_path import import_file, import_object
from tests.helpers.corridor import Corridor

OWN = ("arc-v2", "proofs-v1")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    kept = {id: found for id, found in registry._registered.items() if id in OWN}
    monkeypatch.setattr(registry, "_registered", kept)


def test_builtin_environments_are_listed_with_version_and_description() -> None:
    found = phalanx.registered_environments()
    assert [one.id for one in found] == list(OWN)
    assert [(one.name, one.version) for one in found] == [("arc", 2), ("proofs", 1)]
    assert all(one.description for one in found)


@pytest.mark.parametrize("id", OWN)
def test_builtin_environments_are_created_by_id_and_by_name(id: str) -> None:
    environment = phalanx.make(id)
    assert isinstance(environment, Environment)
    assert phalanx.make(id.rpartition("-v")[0]).config == environment.config


def test_user_environment_is_created_with_its_settings() -> None:
    phalanx.register("corridor-v1", Corridor, "walk to the right end")
    assert phalanx.make("corridor-v1") == Corridor()
    assert phalanx.make("corridor-v1", max_episode_steps=5) == Corridor(5)
    phalanx.register("late-corridor-v1", "tests.helpers.corridor:Corridor")
    assert phalanx.make("late-corridor-v1") == Corridor()


SHORT = EnvSpec(make=Corridor, task_name=lambda environment, state: "short corridor")


def test_an_environment_is_found_by_id_class_and_spec(tmp_path: Path) -> None:
    phalanx.register("corridor-v1", Corridor)
    phalanx.register("short-corridor-v1", SHORT)
    # The file has the name of a module of the standard library.
    file = tmp_path / "random.py"
    file.write_text(
        "from phalanx.core import EnvSpec\nfrom tests.helpers.corridor import Corridor\n"
        "class Hall(Corridor): pass\n"
        "SPEC = EnvSpec(make=Hall)\n"
    )
    for name, full in (
        ("corridor-v1", "corridor-v1"),
        ("corridor", "corridor-v1"),
        ("tests.helpers.corridor:Corridor", "tests.helpers.corridor:Corridor"),
    ):
        assert registry.find(name) == (full, EnvSpec(make=Corridor))
    for name in ("short-corridor", "tests.test_registry:SHORT"):
        assert registry.find(name)[1] == SHORT
    hall = import_object(f"{file}:Hall")
    assert registry.find(f"{file}:Hall") == (f"{file}:Hall", EnvSpec(make=hall))
    assert registry.find(f"{file}:SPEC") == (f"{file}:SPEC", EnvSpec(make=hall))
    assert phalanx.make(f"{file}:SPEC", max_episode_steps=3) == hall(3)
    assert phalanx.make("corridor", overrides=["max_episode_steps=4"]) == Corridor(4)


def test_the_path_of_a_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halls.py").write_text("from tests.helpers.corridor import Corridor\n")
    monkeypatch.chdir(tmp_path)
    assert registry.find("halls.py:Corridor")[0] == f"{tmp_path}/halls.py:Corridor"


def test_importing_a_file_leaves_the_path_of_modules_unchanged(tmp_path: Path) -> None:
    """The file can import the files beside it."""
    (tmp_path / "neighbor_of_hall.py").write_text("LENGTH = 3\n")
    (tmp_path / "hall.py").write_text("import neighbor_of_hall\nLENGTH = neighbor_of_hall.LENGTH\n")
    before = list(sys.path)
    assert import_file(tmp_path / "hall.py").LENGTH == 3
    assert sys.path == before
    (tmp_path / "broken_hall.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        import_file(tmp_path / "broken_hall.py")
    assert sys.path == before


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no_such_module:Maze", "cannot import 'no_such_module:Maze': No module named"),
        ("tests.helpers.corridor:Maze", "tests.helpers.corridor has no Maze"),
        ("missing.py:Maze", "there is no Python file missing.py"),
        (":Maze", "expected package.module:Name or path/file.py:Name"),
        ("tests.helpers.corridor:CELLS", "is neither an EnvSpec nor a subclass of phalanx.core.Environment"),
    ],
)
def test_an_invalid_address_is_rejected(address: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        phalanx.make(address)


def test_address_of_a_module_in_the_current_folder_suggests_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key_door.py").write_text("class KeyDoor: ...\n")
    with pytest.raises(ValueError, match=r"did you mean 'key_door\.py:KeyDoor'\?"):
        phalanx.make("key_door:KeyDoor")


def test_an_unknown_keyword_argument_is_a_type_error_with_a_suggestion() -> None:
    phalanx.register("corridor-v1", Corridor)
    with pytest.raises(
        TypeError, match="'corridor-v1' got an unexpected keyword argument 'max_steps'; did you mean 'max_epi"
    ):
        phalanx.make("corridor-v1", max_steps=3)
    with pytest.raises(TypeError, match="'corridor-v1' has no config"):
        phalanx.make("corridor-v1", config="small")


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("arc-v3", "this release has version 2 of 'arc', not 3; use 'arc-v2'"),
        ("ark-v1", "unknown environment 'ark-v1'; did you mean 'arc-v2'"),
        ("chess", "unknown environment 'chess'; choose from arc-v2, proofs-v1"),
        ("keydoor-v1", "choose from arc-v2, proofs-v1. Is the package that registers it installed?"),
    ],
)
def test_unknown_id_lists_the_known_ones(id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        phalanx.make(id)


def test_invalid_ids_are_rejected() -> None:
    with pytest.raises(ValueError, match="consists of a name and a version, such as maze-v1, got 'maze'"):
        phalanx.register("maze", Corridor)
    with pytest.raises(ValueError, match=r"'arc-v2' is already registered for phalanx\.arc\.spec:SPEC"):
        phalanx.register("arc-v2", Corridor)


def make_corridor(length: int = 3) -> Corridor:
    return Corridor(length)


BY_FUNCTION = EnvSpec(make=make_corridor)


def test_the_settings_of_a_function_need_a_config_class() -> None:
    with pytest.raises(TypeError, match="make_corridor is a function, so its settings are unknown: set EnvS"):
        phalanx.make("tests.test_registry:BY_FUNCTION")


def test_redefined_class_replaces_its_registration() -> None:
    first = type("Maze", (Corridor,), {"__module__": "notebook", "__qualname__": "Maze"})
    second = type("Maze", (Corridor,), {"__module__": "notebook", "__qualname__": "Maze"})
    phalanx.register("maze-v1", first)
    phalanx.register("maze-v1", second)
    assert type(phalanx.make("maze-v1")) is second


def test_environments_of_other_packages_are_found_by_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("hall-v1", "tests.helpers.corridor:Corridor", registry.ENTRY_POINTS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
    registry._discover.cache_clear()
    try:
        assert phalanx.make("hall-v1", max_episode_steps=2) == Corridor(2)
        assert phalanx.registered_environments()[1].description == "from tests"
    finally:
        registry._discover.cache_clear()


def test_arc_takes_a_config_sections_overrides_and_tasks() -> None:
    environment = phalanx.make(
        "arc-v2",
        config="mini",
        action={"selection_format": "bbox"},
        observation={"scalars": True},
        overrides=["episode.max_episode_steps=7"],
        backend="xla",
    )
    config = environment.config
    assert (config.grid_shape, config.action.selection_format, config.backend) == ((5, 5), "bbox", "xla")
    assert config.observation.scalars and config.episode.max_episode_steps == 7
    assert phalanx.make("arc-v2", config=config) == environment
    tasks = generate_tasks(num_tasks=2, max_height=5, max_width=5)
    small = {"max_grid_height": 5, "max_grid_width": 5}
    assert phalanx.make("arc-v2", tasks=tasks, dataset=small).task_buffer == TaskBuffer.from_tasks(tasks)
    one = phalanx.make("arc-v2", task=tasks[1], dataset=small)
    assert [task.id for task in one.task_buffer] == [tasks[1].id]
    everything = ArcEnvironment.create(ArcConfig(dataset=small))
    wanted = everything.task_buffer[3].id
    assert [task.id for task in phalanx.make("arc-v2", task=wanted, dataset=small).task_buffer] == [wanted]


def test_invalid_settings_of_environments_are_rejected() -> None:
    tasks = generate_tasks(num_tasks=1, max_height=5, max_width=5)
    with pytest.raises(TypeError, match="both task and tasks were given"):
        phalanx.make("arc-v2", task=tasks[0], tasks=tasks)
    with pytest.raises(KeyError, match="no task 'nothing'"):
        phalanx.make("arc-v2", task="nothing")
    with pytest.raises(
        TypeError, match=r"'arc-v2' got an unexpected keyword argument 'max_steps'; did you mean 'max_epi"
    ):
        phalanx.make("arc-v2", max_steps=3)
    with pytest.raises(ValueError, match=r"unknown key 'dataset\.familys'; did you mean 'dataset\.families'"):
        phalanx.make("arc-v2", dataset={"familys": ()})
    with pytest.raises(ValueError, match="max_actions must be between 2 and 4096, got 1"):
        phalanx.make("proofs-v1", max_actions=1)
    with pytest.raises(ValueError, match=r"^max_episode_steps must be an integer, got 'x'$"):
        phalanx.make("tests.helpers.corridor:Corridor", max_episode_steps="x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_step'; did you mean 'max_episode"):
        phalanx.make("tests.helpers.corridor:Corridor", overrides=["max_step=3"])


def test_proofs_take_fields_of_their_config() -> None:
    environment = phalanx.make("proofs-v1", max_actions=16, max_episode_steps=5, reward={"type": 2})
    assert (environment.config.max_actions, environment.config.max_episode_steps) == (16, 5)
    assert environment.config.reward.type == 2


def test_importing_phalanx_and_listing_environments_imports_no_jax() -> None:
    code = (
        "import sys, phalanx, phalanx.config, phalanx.io.atomic, phalanx.system_info\n"
        "import phalanx.arc.config\n"
        "phalanx.registered_environments()\n"
        "assert not {'jax', 'numpy', 'pandas', 'torch'} & set(sys.modules), sorted(sys.modules)\n"
        "config = phalanx.arc.config.ArcConfig()\n"
        "import jax, phalanx.core.environment\n"
        "assert jax.jit(lambda config: 1)(config) == 1, 'configs are static under jit all the same'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
