"""The agent panel of the report: rules and network compared with Python, the UI, and untrusted files."""

import base64
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcConfig, ArcEnvironment, generate_tasks
from phalanx.arc.action_distribution import ArcDistribution
from phalanx.arc.browser import report_panel
from phalanx.arc.browser.export import MAX_PARAMETERS, agent_record, export_agent
from phalanx.arc.networks import ArcNetworkConfig, create_network
from phalanx.config import load_config
from phalanx.logging.report import load_run, page as report_page, write_report
from tests.helpers.browser import needs_chromium, no_complaints, opened_tab
from tests.helpers.random_weights import random_weights
from tests.helpers.run_folders import write_facts
from tests.reference.arc import OracleState, operate, raw_selection, reset_oracle

pytestmark = pytest.mark.slow

NUM_PUZZLES = 200
SCRIPTS = (
    Path(report_page.__file__).parent / "template" / "dom.js",
    *(Path(report_panel.__file__).with_name(name) for name in ("rules.js", "network.js")),
)
SCRIPT = "".join(path.read_text() for path in SCRIPTS)
PAINTER = ("env.action.selection_format=point", f"env.action.allowed_operations={[*range(20), 34]}")
ALL_OPERATIONS = (
    "env.action.selection_format=bbox",
    f"env.action.allowed_operations={[*range(35), 39]}",
    "env.observation.clipboard=true",
    "env.observation.selected=true",
)


def arc_config(*overrides: str) -> ArcConfig:
    """Return a config in evaluation mode with grids of up to 4x4."""
    names = ("dataset.max_grid_height=4", "dataset.max_grid_width=4", "episode.max_episode_steps=5")
    own = (name.removeprefix("env.") for name in overrides)
    mode = ("episode.mode=evaluation", "observation.input_grid=true")
    return load_config(ArcConfig, None, (*names, *mode, *own))


@functools.cache
def random_network(config: ArcConfig, width: int = 8) -> Any:
    """Create a color-equivariant network with random weights, because the initial policy is uniform."""
    size = ArcNetworkConfig(kind="color_equivariant", hidden_dim=width, num_layers=2)
    initial = random_weights(create_network, size, config)
    scaled = (6 * initial.stem.weight, 0.3 * initial.colors)
    return eqx.tree_at(lambda network: (network.stem.weight, network.colors), initial, scaled)


@functools.cache
def tasks() -> tuple[Any, ...]:
    families = ("fill_enclosed", "denoise")
    return tuple(generate_tasks(families, NUM_PUZZLES, seed=3, split="evaluation", max_height=4, max_width=4))


@eqx.filter_jit
def greedy_step(environment: ArcEnvironment, network: Any, states: Any, observations: Any) -> Any:
    """Take a greedy step in each episode and return its results, the actions and the logits."""

    def act(observation: Any) -> Any:
        logits = network.logits(observation)[0]
        return ArcDistribution.from_logits(logits, network.ids, observation).mode(), logits

    actions, logits = jax.vmap(act)(observations)
    states, observations, _, done, info = environment.batch_step(states, actions)
    return states, observations, done, environment.episode_metrics(info)["success_mask"], actions, logits


@functools.cache
def policy(*overrides: str) -> tuple[ArcEnvironment, Any]:
    """Create a policy whose operations have equal mean logits, so that the choice depends on the grid."""
    config = arc_config(*overrides)
    environment, network = ArcEnvironment.create(config, tasks()), random_network(config)
    numbers = jnp.arange(NUM_PUZZLES)
    starts = environment.batch_reset_to(numbers, jnp.zeros_like(numbers))
    means = np.asarray(greedy_step(environment, network, *starts)[5].operations).mean(axis=0)
    shared = [means[:10].mean(), means[10:20].mean(), *means[20:]]
    bias = network.operations.bias - jnp.asarray(shared, jnp.float32)
    return environment, eqx.tree_at(lambda network: network.operations.bias, network, bias)


def write_run(folder: Path, *overrides: str) -> Path:
    """Write a run folder that contains only an agent."""
    folder.mkdir(parents=True, exist_ok=True)
    write_facts(folder, name="agent")
    environment, network = policy(*overrides)
    export_agent(network, environment.config, tasks(), folder)
    return folder


@functools.cache
def run_episodes(*overrides: str) -> tuple[list[list[list[int]]], np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return actions, final grids and success of each episode, and the logits of the first step."""
    environment, network = policy(*overrides)
    numbers = jnp.arange(NUM_PUZZLES)
    states, observations = environment.batch_reset_to(numbers, jnp.zeros_like(numbers))
    finished, first = np.zeros(NUM_PUZZLES, bool), None
    episodes: list[list[list[int]]] = [[] for _ in tasks()]
    for _ in range(environment.config.episode.max_episode_steps):
        states, observations, done, solved, actions, logits = greedy_step(
            environment, network, states, observations
        )
        first = logits if first is None else first
        fields = np.stack(jax.tree.leaves(actions), axis=1).tolist()
        for row in np.flatnonzero(~finished):
            episodes[row].append(fields[row])
        finished = np.asarray(done)
    assert first is not None
    cells = [
        np.asarray(selection.cells).reshape(NUM_PUZZLES, len(network.ids), -1)
        for selection in first.selections
    ]
    grids = np.asarray(states.working_grid).reshape(NUM_PUZZLES, -1)
    return episodes, grids, np.asarray(solved), [np.asarray(first.operations), *cells]


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    with opened_tab() as tab:
        yield tab


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of an agent that fills, flood fills and submits."""
    return write_report([write_run(tmp_path_factory.mktemp("runs") / "painter", *PAINTER)])


@pytest.fixture
def open_page(tab: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a page; console errors fail the test."""

    def navigate(path: Path, width: int = 1280) -> Any:
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(path.as_uri())
        tab.wait_for_selector("footer code")
        return tab

    with no_complaints(tab):
        yield navigate


@needs_chromium
@pytest.mark.parametrize("overrides", [PAINTER, ALL_OPERATIONS], ids=["points", "boxes"])
def test_page_episodes_match_python(open_page: Any, overrides: tuple[str, ...], tmp_path: Path) -> None:
    page = open_page(write_report([write_run(tmp_path, *overrides)]))
    results = page.evaluate(
        f"""() => {{ {SCRIPT}
        const [agent] = DATA.panels.arc_policy;
        const network = networkOf(agent);
        const corners = agent.selection === "point" ? 2 : 4;
        return agent.puzzles.map((puzzle) => {{
          const input = gridOf(agent, puzzle.input);
          const {{ logits }} = decide(agent, network, startOf(agent, input));
          const {{ actions, state }} = playOut(agent, network, input);
          return {{
            actions: actions.map((action) => [action.operation, ...action.corners.slice(0, corners)]),
            grid: [...state.cells],
            right: state.submitted && sameGrid(state, gridOf(agent, puzzle.output)),
            operations: logits.operations,
            places: logits.places.map((place) => place.map((cells) => [...cells])),
          }};
        }}); }}"""
    )
    actions, grids, solved, (operations, *selections) = run_episodes(*overrides)
    assert [episode["actions"] for episode in results] == actions
    assert [episode["grid"] for episode in results] == grids.tolist()
    assert [episode["right"] for episode in results] == solved.tolist()
    np.testing.assert_allclose(
        [episode["operations"] for episode in results], operations, atol=1e-4, rtol=1e-4
    )
    for corner, cells in enumerate(selections):
        page_logits = [episode["places"][corner] for episode in results]
        np.testing.assert_allclose(page_logits, cells, atol=1e-4, rtol=1e-4)
    used = {action[0] for episode in actions for action in episode}
    assert len(used) >= 8 and 34 in used, "the policy uses many operations and submits some grids"


@needs_chromium
def test_page_operations_match_reference(open_page: Any, tmp_path: Path) -> None:
    config, rng = arc_config(*ALL_OPERATIONS), np.random.default_rng(1)
    page = open_page(write_report([write_run(tmp_path, *ALL_OPERATIONS)]))
    episodes, expected = [], []
    for task in tasks()[:120]:
        state: OracleState = reset_oracle(task, len(task.demos), config)
        actions, expected_steps = [], []
        for _ in range(10):
            operation = int(rng.choice([*range(34), 39]))
            corners = rng.integers(0, 4, 4).tolist()
            raw = raw_selection("bbox", corners, config)
            assert raw is not None
            state = operate(state, operation, raw, config)
            actions.append({"operation": operation, "corners": corners})
            canvas = np.full((4, 4), -1, int)
            canvas[: state.working.shape[0], : state.working.shape[1]] = state.working
            clipboard = np.full((4, 4), -1, int)
            for cell, color in (state.clipboard or {}).items():
                clipboard[cell] = color
            expected_steps.append(
                [canvas.ravel().tolist(), clipboard.ravel().tolist(), state.selected.ravel().tolist()]
            )
        episodes.append(actions)
        expected.append(expected_steps)
    results = page.evaluate(
        f"""(episodes) => {{ {SCRIPT}
        const [agent] = DATA.panels.arc_policy;
        return episodes.map((actions, number) => {{
          let state = startOf(agent, gridOf(agent, agent.puzzles[number].input));
          return actions.map((action) => {{
            state = stepOf(agent, state, action);
            return [[...state.cells], [...state.clipboard], [...state.selected].map(Boolean)];
          }});
        }}); }}""",
        episodes,
    )
    assert results == expected


@needs_chromium
def test_agent_steps_through_selected_puzzle(open_page: Any, painter: Path) -> None:
    page = open_page(painter)
    actions, _, solved, _ = run_episodes(*PAINTER)
    row = next(n for n, episode in enumerate(actions) if len(episode) > 1 and episode[-1][0] == 34)
    page.locator(".agent .reel li button").nth(row).click()
    assert page.locator(".agent .pill").inner_text() == "not started"
    assert page.locator(".likely li").count() == 6 and page.locator(".likely .chosen").count() <= 1
    for number, (operation, action_row, column) in enumerate(actions[row], 1):
        page.get_by_role("button", name="Step", exact=True).click()
        label = page.locator(".done li").nth(number - 1).inner_text()
        if operation == 34:
            assert label == "Submit"
        else:
            kind = f"Flood fill {operation - 10}" if operation > 9 else f"Fill {operation}"
            assert label == f"{kind} row {action_row + 1}, column {column + 1}"
    assert page.locator(".agent .pill").inner_text() == f"submitted: {'correct' if solved[row] else 'wrong'}"
    page.get_by_role("button", name="Back to the start").click()
    assert page.locator(".agent .pill").inner_text() == "not started"
    page.get_by_role("button", name="Run the agent").click()
    page.get_by_text(f"ended after {len(actions[row])}").wait_for()


@needs_chromium
def test_custom_puzzle_with_expected_output_is_scored(open_page: Any, painter: Path) -> None:
    page = open_page(painter)
    page.get_by_role("button", name="Draw your own").click()
    page.get_by_role("button", name="Blank").click()
    board = page.locator(".board .cells").first
    for _ in range(4):
        page.get_by_role("button", name="Fewer width").click()
    assert board.get_attribute("aria-label").split(": ")[-1] in ("0, 0, 0", "0, 0, 0, 0")
    page.get_by_role("button", name="More width").click()
    page.get_by_role("button", name="Color 3").click()
    board.click(position={"x": 10, "y": 10})
    board.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("7")
    assert board.get_attribute("aria-label").startswith("Input: click to paint: 37, 00")
    page.get_by_role("button", name="Add the expected output").click()
    answer = page.locator(".board .cells").nth(2)
    assert answer.get_attribute("aria-label").startswith("Expected: click to paint: 37, 00")
    for _ in range(5):
        page.get_by_role("button", name="Step", exact=True).click()
    assert page.locator(".agent .pill").inner_text() in (
        "submitted: correct",
        "submitted: wrong",
        "not submitted",
    )


@needs_chromium
def test_page_success_count_matches_python(open_page: Any, painter: Path) -> None:
    page = open_page(painter)
    page.get_by_role("button", name=f"Solve all {NUM_PUZZLES}").click()
    solved = run_episodes(*PAINTER)[2]
    page.get_by_text(f"{int(solved.sum())} of {NUM_PUZZLES} correct").wait_for(timeout=60_000)
    marks = page.locator(".agent .reel .mark").evaluate_all("marks => marks.map((mark) => mark.textContent)")
    assert [mark == "✓" for mark in marks] == solved.tolist()
    page.get_by_label("Task family").select_option("denoise")
    assert page.locator(".agent .reel li").count() == NUM_PUZZLES // 2


@needs_chromium
def test_panel_fits_phone_and_is_absent_without_agent(open_page: Any, painter: Path, tmp_path: Path) -> None:
    page = open_page(painter, width=360)
    page.get_by_role("button", name="Draw your own").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    write_facts(tmp_path)
    assert open_page(write_report([tmp_path])).locator("#agent").count() == 0


@needs_chromium
def test_names_in_untrusted_agent_are_escaped(open_page: Any, tmp_path: Path) -> None:
    markup = '</script><img src=x onerror="document.title=1"><b id="harm">'
    write_run(tmp_path, *PAINTER)
    record = json.loads((tmp_path / "browser_policy.json").read_text())
    record["puzzles"] = [record["puzzles"][0] | {"task": markup, "family": markup, "output": None}]
    record["operations"] = [one | {"name": markup} for one in record["operations"]]
    (tmp_path / "browser_policy.json").write_text(json.dumps(record))
    page = open_page(write_report([tmp_path]))
    assert page.locator("#harm").count() == 0
    assert page.locator(".agent .caption strong").inner_text() == markup


INVALID_RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "format must be 1, got 2": lambda record: record.update(format=2),
    "canvas[1] must be at most 30, got 3000": lambda record: record.update(canvas=[4, 3000]),
    "max_steps must be an integer, got True": lambda record: record.update(max_steps=True),
    "selection must be 'point' or 'bbox', got 'mask'": lambda record: record.update(selection="mask"),
    "operations must be sorted": lambda record: record["operations"].reverse(),
    "without those that change the pair": lambda record: record["operations"].append(
        {"id": 37, "name": "Next"}
    ),
    "sees must be some of": lambda record: record.update(sees=["input", "working"]),
    "palette[0]": lambda record: record["palette"].__setitem__(0, "red;}"),
    "finite weights, got": lambda record: record["network"].update(
        weights=base64.b64encode(bytes(8)).decode()
    ),
    "puzzles[0].input[1]": lambda record: record["puzzles"][0].update(input=["01", "2x"]),
    "the rows of a grid must have equal": lambda record: record["puzzles"][0].update(input=["01", "2"]),
    "fit on the canvas": lambda record: record["puzzles"][0].update(output=["01234"]),
    "puzzles[0].task must be a string, got 7": lambda record: record["puzzles"][0].update(task=7),
    "puzzles must be a list": lambda record: record.update(puzzles={}),
}


@pytest.mark.parametrize("message", INVALID_RECORDS)
def test_invalid_agent_file_is_reported(message: str, tmp_path: Path) -> None:
    write_run(tmp_path, *PAINTER)
    record = json.loads((tmp_path / "browser_policy.json").read_text())
    INVALID_RECORDS[message](record)
    (tmp_path / "browser_policy.json").write_text(json.dumps(record))
    run = load_run(tmp_path)
    assert not run.panels
    assert [note for note in run.notes if "browser_policy.json was skipped" in note and message in note]


def test_unsupported_agent_reports_reason(tmp_path: Path) -> None:
    cases = {
        "operations include Next test pair": (f"env.action.allowed_operations={[0, 34, 37]}",),
        "it observes the target grid": (*PAINTER, "env.observation.target_grid=true"),
        "start with another grid than the input (blank)": (*PAINTER, "env.episode.initial_grid=blank"),
    }
    write_facts(tmp_path)
    for reason, overrides in cases.items():
        config = arc_config(*overrides)
        export_agent(random_network(config), config, (), tmp_path)
        run = load_run(tmp_path)
        assert not run.panels and any(reason in note for note in run.notes)
    large = arc_config(*PAINTER)
    export_agent(random_network(large, width=96), large, (), tmp_path)
    assert any(f"the limit of {MAX_PARAMETERS:,}" in note for note in load_run(tmp_path).notes)


def test_number_of_exported_puzzles_is_limited() -> None:
    config = arc_config(*PAINTER)
    record = agent_record(random_network(config), config, tasks() + tasks())
    assert len(record["puzzles"]) == NUM_PUZZLES
    first = tasks()[0].tests[0]
    assert record["puzzles"][0]["input"] == [
        "".join(map(str, row)) for row in np.asarray(first.input).tolist()
    ]
