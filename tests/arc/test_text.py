"""ARC as text: observations for language models, and parsing of their actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phalanx.arc import ArcConfig, ArcEnvironment, ArcTask, BboxAction, MaskAction, PointAction
from phalanx.arc.operations import Operation
from phalanx.arc.spec import task_name
from phalanx.arc.state import ArcState
from phalanx.arc.text import ArcText

TASK = ArcTask.from_dict(
    {
        "train": [
            {"input": [[1, 0]], "output": [[1, 1]]},
            {"input": [[2, 0, 0]], "output": [[2, 2, 2]]},
        ],
        "test": [{"input": [[3], [0]], "output": [[3], [3]]}],
    },
    "spread",
)
OPERATIONS = (0, 2, 3, 24, 33, 34)


def create_environment(selection: str = "point", **settings: dict) -> ArcEnvironment:
    config = ArcConfig(
        dataset={"max_grid_height": 3, "max_grid_width": 5},
        action={"selection_format": selection, "allowed_operations": OPERATIONS},
        episode={"max_episode_steps": 8, **settings},
    )
    return ArcEnvironment.create(config, TASK)


def initial_state(env: ArcEnvironment, pair: int = 0) -> ArcState:
    states, _ = env.batch_reset_to(jnp.array([0]), jnp.array([pair]))
    return states[0]


def test_prompt_does_not_contain_answer() -> None:
    env = create_environment()
    text = ArcText(env).prompt(initial_state(env, 1))
    assert "Demonstration 1\nInput, 1x2:\n1 0\nOutput, 1x2:\n1 1\n" in text
    assert "Input, 1x3:\n2 0 0\n\nWorking grid, 1x3:\n2 0 0\n" in text
    assert "2 2 2" not in text, "the output of the current pair"
    assert "Step 0 of at most 8." in text
    assert "0 fill_0, 2 fill_2, 3 fill_3: Selected cells become that color." in text
    assert "24 rotate_clockwise: The selected object turns by 90 degrees" in text
    assert "fill_1" not in text and "flood" not in text
    assert text.endswith("and one cell, such as `fill_0 2 4`.")


def test_evaluation_text_shows_all_demonstrations_but_no_test_output() -> None:
    env = create_environment(mode="evaluation", require_submit=True)
    text = ArcText(env).prompt(initial_state(env))
    assert "Demonstration 2" in text and "2 2 2" in text
    assert "3\n3" not in text
    assert "Submit it when it does." in text


def test_prompt_changes_after_step() -> None:
    env = create_environment()
    state = initial_state(env)
    state, *_ = env.step(state, ArcText(env).parse("fill_3 0 1", state))
    assert "Working grid, 1x2:\n1 3\n" in ArcText(env).prompt(state)
    assert "Step 1 of at most 8." in ArcText(env).prompt(state)


@pytest.mark.parametrize("text", ["fill_3 2 4", "3 2 4", "  FILL_3 2, 4\n", "fill_3 2,4"])
def test_point_action_is_parsed_by_name_or_number(text: str) -> None:
    env = create_environment()
    action = ArcText(env).parse(text, initial_state(env))
    assert [int(number) for number in jax.tree.leaves(action)] == [3, 2, 4]
    assert ArcText(env).format(action, initial_state(env)) == "fill_3 2 4"


def test_bbox_action_is_parsed_from_two_corners() -> None:
    env = create_environment("bbox")
    action = ArcText(env).parse("rotate_clockwise 2 4 0 1", initial_state(env))
    assert [int(number) for number in jax.tree.leaves(action)] == [24, 2, 4, 0, 1]
    assert ArcText(env).format(action, initial_state(env)) == "rotate_clockwise 2 4 0 1"


@pytest.mark.parametrize(
    ("text", "cells", "formatted"),
    [
        ("fill_2 0,1 2,4", [[0, 1], [2, 4]], "fill_2 0,1 2,4"),
        ("2 1,2:0,1", [[0, 1], [0, 2], [1, 1], [1, 2]], "fill_2 0,1:1,2"),
        ("submit", [], "submit"),
        ("fill_2 1,1 0,0:0,1", [[0, 0], [0, 1], [1, 1]], "fill_2 0,0 0,1 1,1"),
    ],
)
def test_mask_action_is_parsed_from_cells_and_boxes(text: str, cells: list, formatted: str) -> None:
    env = create_environment("mask")
    action = ArcText(env).parse(text, initial_state(env))
    assert isinstance(action, MaskAction)
    assert np.argwhere(np.asarray(action.selection)).tolist() == cells
    assert ArcText(env).format(action, initial_state(env)) == formatted


@pytest.mark.parametrize(
    ("selection", "text", "message"),
    [
        ("point", "", "reads `<operation> <row> <column>`, got nothing"),
        ("point", "fill_3", "after the operation come 2 whole numbers, got ''"),
        ("point", "fill_3 1.5 2", "after the operation come 2 whole numbers, got '1.5 2'"),
        ("point", "fill_3 1 2 3", "after the operation come 2 whole numbers"),
        ("point", "fill_3 3 0", "cell (3, 0) is not on the canvas of 3 rows and 5 columns"),
        ("point", "fill_3 -1 0", "cell (-1, 0) is not on the canvas"),
        ("point", "fil_3 1 1", "no operation 'fil_3'; did you mean 'fill_3'"),
        ("point", "fill_5 1 1", "operation 5 (fill_5) is not legal here; legal are 0 fill_0, 2 fill_2"),
        ("point", "99 1 1", "no operation '99'"),
        ("point", "I would fill the right cell", "no operation 'I'"),
        ("bbox", "fill_3 0 0", "after the operation come 4 whole numbers, got '0 0'"),
        ("mask", "fill_3 0 0", "cells read `<row>,<column>`"),
        ("mask", "fill_3 0,0:9,9", "cell (9, 9) is not on the canvas"),
    ],
)
def test_invalid_action_text_is_reported(selection: str, text: str, message: str) -> None:
    env = create_environment(selection)
    with pytest.raises(ValueError) as caught:
        ArcText(env).parse(text, initial_state(env))
    assert message in str(caught.value)


def test_state_has_task_name_and_three_render_modes() -> None:
    env = create_environment()
    state = initial_state(env)
    assert task_name(env, state) == "spread"
    assert "<svg" in env.render(state) and "working" in env.render(state, "ansi")
    # Input, working grid and target on canvases of 3 x 5 cells of 48 pixels, and two gaps of 12.
    assert env.render(state, "rgb_array").shape == (144, 3 * 240 + 2 * 12, 3)
    with pytest.raises(ValueError, match="rendered as svg, ansi, rgb_array, got 'human'"):
        env.render(state, "human")
    evaluation = create_environment(mode="evaluation")
    assert evaluation.render(initial_state(evaluation), "rgb_array").shape == (144, 2 * 240 + 12, 3)


def test_legal_actions_follow_config_for_single_and_batched_states() -> None:
    env = create_environment()
    states, _ = env.batch_reset(jax.random.split(jax.random.PRNGKey(0), 3))
    assert env.legal_actions(states).shape == (3, 42)
    assert np.flatnonzero(env.legal_actions(states[0])).tolist() == list(OPERATIONS)


@pytest.mark.parametrize(
    ("action", "description"),
    [
        (PointAction(Operation.FILL_3, 0, 4), "Fill 3, row 1, column 5"),
        (BboxAction(Operation.MOVE_UP, 4, 2, 1, 2), "Move up, rows 2 to 5, column 3"),
        (PointAction(Operation.SUBMIT, 1, 1), "Submit"),
    ],
)
def test_description_names_the_cells_unless_they_are_ignored(
    action: PointAction | BboxAction, description: str
) -> None:
    environment = ArcEnvironment.create(ArcConfig())
    state, _ = environment.reset(jax.random.key(0))
    assert ArcText(environment).describe(action, state) == description
