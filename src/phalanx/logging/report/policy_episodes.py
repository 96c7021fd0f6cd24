"""Reads the recorded episodes of a run's trained policy for the report page. The file may be untrusted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from phalanx.config import format_validation_error
from phalanx.formatting import escape_untrusted
from phalanx.io.checksum import read_verified_json
from phalanx.io.untrusted import is_regular_file
from phalanx.logging.report.metric_tables import parse_finite

FILE_NAME = "policy_episodes.json"
"""Name of the file in the run folder that contains the episodes."""
MAX_BYTES = 16 << 20
"""Maximum size of the file in bytes."""

_Text = Annotated[str, Field(max_length=500)]
_Count = Annotated[int, Field(ge=0, le=2**53)]


def _check_rectangle(rows: list[str]) -> list[str]:
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the rows of a grid must have equal lengths")
    return rows


_Row = Annotated[str, Field(pattern=r"\A[0-9.]{0,64}\z")]
_Grid = Annotated[list[_Row], Field(max_length=64), AfterValidator(_check_rectangle)]
_Frame = str | Annotated[dict[_Text, _Grid], Field(max_length=8)]


class _Record(BaseModel):
    """Base class for the parts of the file.

    Values are not converted to other types, and unknown fields are ignored.
    """

    model_config = ConfigDict(strict=True)


class _Normal(_Record):
    name: _Text
    mean: FiniteFloat | None
    deviation: FiniteFloat | None


class _Decision(_Record):
    actions: list[_Text] = Field(min_length=1, max_length=10)
    probabilities: list[Annotated[float, Field(ge=0, le=1.001)] | None]
    chosen: _Count
    normals: list[_Normal] = Field(max_length=16)
    value: FiniteFloat | None

    @model_validator(mode="after")
    def _check(self) -> "_Decision":
        if len(self.probabilities) != len(self.actions) or self.chosen >= len(self.actions):
            raise ValueError("probabilities and chosen must refer to the actions")
        return self


class _Episode(_Record):
    number: _Count
    task: _Text
    group: _Text | None
    solved: bool | None
    total_reward: FiniteFloat | None
    num_steps: _Count
    frames: list[_Frame] = Field(max_length=1000)
    decisions: list[_Decision]

    @model_validator(mode="after")
    def _check(self) -> "_Episode":
        if len(self.decisions) != max(len(self.frames) - 1, 0) or self.num_steps < len(self.decisions):
            raise ValueError("there must be one decision between two frames")
        return self


class _PolicyEpisodes(_Record):
    format: Literal[1]
    update: _Count
    num_evaluated: _Count | None
    episodes: list[_Episode] = Field(max_length=100)


def load_policy_episodes(
    folder: Path, evaluations: Sequence[dict[str, Any]], notes: list[str]
) -> dict[str, Any] | None:
    """Read the recorded episodes of a run, and the results of the evaluation from which they were selected.

    Args:
        folder: Run folder.
        evaluations: Records of `evaluations.jsonl`.
        notes: List to which a description is appended if the file cannot be used.

    Returns:
        The fields of the file, and `evaluation`: `split`, `num_episodes` and `num_solved` (None if unknown).
        `evaluation` is None if the file does not belong to an evaluation. If there is no file or it cannot be
        used, None is returned.
    """
    path = folder / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return None
    try:
        if not is_regular_file(path) or path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is a symbolic link or larger than {MAX_BYTES:,} bytes")
        found = _PolicyEpisodes.model_validate(read_verified_json(path, "continue the run to write it again"))
    except ValidationError as error:
        problem = format_validation_error(error, _PolicyEpisodes).partition("\n")[0]
    except (ValueError, OSError) as error:
        problem = str(error)
    else:
        evaluation = _find_evaluation(found, evaluations)
        return found.model_dump(exclude={"format"}) | {"evaluation": evaluation}
    notes.append(f"{FILE_NAME} was skipped: {escape_untrusted(problem)[:300]}.")
    return None


def _find_evaluation(found: _PolicyEpisodes, evaluations: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    for record in reversed(evaluations):
        count = parse_finite(record.get("num_episodes", record.get("episodes")))
        is_greedy = record.get("mode") == "greedy" and record.get("step") == found.update
        if is_greedy and count is not None and count == found.num_evaluated:
            rate = parse_finite(record.get("success_rate"))
            solved = None if rate is None else round(rate * count)
            return {"split": str(record.get("split")), "num_episodes": int(count), "num_solved": solved}
    return None
