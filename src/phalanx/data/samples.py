"""Token samples, datasets of concatenated samples, and sample files."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int8, Int32, Int64

from phalanx.data.lengths import LengthTable
from phalanx.data.npz_files import open_npz, parse_header, write_npz
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CorruptFileError

TOKEN_LIMIT = 2**31
"""Exclusive upper limit on token ids. Stored tokens use the top bit for the loss mask."""

IGNORE_INDEX = -100
"""Label of tokens that are excluded from the loss, as in PyTorch and Hugging Face."""

_NOT_COLUMNS = {"input_ids", "loss_mask", "labels", "attention_mask", "position_ids", "segment_ids"}
_FORMAT, _VERSION = "phalanx samples", 2


class SampleOrigin(StrEnum):
    """Kind of source that a sample comes from."""

    OFFLINE = "offline"
    """The sample was read from a file or a list."""
    ENVIRONMENT = "environment"
    """The sample is from an episode of an environment or a puzzle server."""
    REPLAY = "replay"
    """The sample was drawn from a replay buffer."""
    SYNTHETIC = "synthetic"
    """The sample was produced by a generator."""


class EpisodeStatus(StrEnum):
    """State or outcome of an episode. `TIMEOUT` means that the episode was truncated."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class SampleInfo:
    """Origin of a sample and information about its episode. Unknown values are None."""

    dataset_id: str = ""
    """Name of the dataset or environment. Empty if it is unknown."""
    origin: SampleOrigin | str = SampleOrigin.OFFLINE
    """Source that the sample comes from, such as a file, an environment or a replay buffer."""
    episode_id: str | None = None
    """Id of the episode. None if the sample is not from an episode."""
    episode_status: EpisodeStatus | str | None = None
    """Outcome of the episode."""
    step_index: int | None = None
    """Index of the step in its episode, from 0. None if the sample is a complete episode."""
    total_steps: int | None = None
    """Number of steps in the episode."""
    reward: float | None = None
    """Reward of the step, or sum of the rewards of a complete episode."""
    difficulty: float | None = None
    """Difficulty of the task, from 0 to 1."""
    success: bool | None = None
    """True if the episode succeeded."""
    priority: float = 1.0
    """Priority for sampling from a replay buffer."""
    replay_count: int = 0
    """Number of times that a replay buffer has returned the sample."""
    timestamp: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC), compare=False)
    """Time at which the sample was created."""

    def __post_init__(self) -> None:
        if type(self.origin) is not SampleOrigin:
            object.__setattr__(self, "origin", SampleOrigin(self.origin))
        if self.episode_status is not None and type(self.episode_status) is not EpisodeStatus:
            object.__setattr__(self, "episode_status", EpisodeStatus(self.episode_status))
        if self.difficulty is not None and not 0.0 <= self.difficulty <= 1.0:
            raise ValueError(f"difficulty must be between 0 and 1, got {self.difficulty}")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"reward must be finite, got {self.reward}")
        if not 0.0 <= self.priority < math.inf:
            raise ValueError(f"priority must be finite and at least 0, got {self.priority}")
        for name in ("step_index", "total_steps", "replay_count"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 2**31:
                raise ValueError(f"{name} must be between 0 and {2**31 - 1}, got {value}")
        if "\0" in self.dataset_id or "\0" in (self.episode_id or ""):
            raise ValueError("ids must not contain a NUL character")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A tokenized sample. Comparisons with `==` ignore the timestamp."""

    sample_id: str
    """Id, which is unique in a dataset."""
    input_ids: Any
    """Token ids as an int32 array [length]. Any sequence of integers is converted."""
    loss_mask: Any
    """Loss mask as an int8 array [length], which is 1 for tokens that count toward the loss. Any sequence is
    converted."""
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Additional arrays [length, ...] with one entry per token. Any sequence is converted."""
    info: SampleInfo | None = None
    """Origin and episode of the sample. None for plain datasets."""

    def __post_init__(self) -> None:
        try:
            tokens = as_token_ids(self.input_ids, "input_ids")
            mask = as_loss_mask(self.loss_mask)
            if len(mask) != len(tokens):
                raise ValueError(f"{len(tokens)} input_ids but {len(mask)} entries in loss_mask")
            if len(tokens) == 0:
                raise ValueError("a sample needs at least one token")
            columns = {name: np.asarray(values) for name, values in self.columns.items()}
            for name, values in columns.items():
                if values.ndim < 1 or len(values) != len(tokens):
                    raise ValueError(f"{len(tokens)} input_ids but {len(values)} entries in {name}")
            if "\0" in self.sample_id:
                raise ValueError("ids must not contain a NUL character")
        except ValueError as error:
            raise ValueError(f"sample {self.sample_id!r}: {error}") from error
        object.__setattr__(self, "input_ids", tokens)
        object.__setattr__(self, "loss_mask", mask)
        object.__setattr__(self, "columns", columns)

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that count toward the loss."""
        return int(np.count_nonzero(self.loss_mask))

    def replace_info(self, **changes: Any) -> "Sample":
        """Return a copy with some fields of `info` changed."""
        return dataclasses.replace(self, info=dataclasses.replace(self.info or SampleInfo(), **changes))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sample)
            and self.sample_id == other.sample_id
            and self.info == other.info
            and np.array_equal(self.input_ids, other.input_ids)
            and np.array_equal(self.loss_mask, other.loss_mask)
            and self.columns.keys() == other.columns.keys()
            and all(np.array_equal(values, other.columns[name]) for name, values in self.columns.items())
        )

    def __hash__(self) -> int:
        return hash((self.sample_id, self.input_ids.tobytes()))

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as a JSON-compatible dictionary, without the fields of `info` that are None."""
        fields: dict[str, Any] = {
            "sample_id": self.sample_id,
            "input_ids": self.input_ids.tolist(),
            "loss_mask": self.loss_mask.tolist(),
        }
        if self.columns:
            fields["columns"] = {name: values.tolist() for name, values in self.columns.items()}
        if self.info is not None:
            info = dataclasses.asdict(self.info) | {"timestamp": self.info.timestamp.isoformat()}
            fields |= {name: value for name, value in info.items() if value is not None}
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Sample":
        """Create a sample from the result of `to_dict`.

        Raises `ValueError` if a field is unknown or missing.
        """
        values = dict(fields)
        if "source" in values:
            raise ValueError(
                "a sample has no field 'source', which was renamed to 'origin'; create the file again"
            )
        for name in ("sample_id", "input_ids", "loss_mask"):
            if name not in values:
                raise ValueError(f"a sample needs the field {name!r}")
        if unknown := sorted(values.keys() - _SAMPLE_FIELDS - _INFO_FIELDS):
            raise ValueError(f"a sample has no field {unknown[0]!r}")
        known = {name: values.pop(name) for name in list(values) if name in _INFO_FIELDS}
        if isinstance(known.get("timestamp"), str):
            known["timestamp"] = datetime.fromisoformat(known["timestamp"])
        return cls(**values, info=SampleInfo(**known) if known else None)


_SAMPLE_FIELDS = {"sample_id", "input_ids", "loss_mask", "columns"}
_INFO_FIELDS = {field.name for field in dataclasses.fields(SampleInfo)}


def as_token_ids(values: Any, name: str) -> Int32[np.ndarray, " length"]:
    """Convert token ids to an int32 array.

    Raises `ValueError` if a value is not an integer from 0 to 2**31 - 1.
    """
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a list of integers, got {array.dtype} with shape {array.shape}")
    lowest = array.min()
    highest = lowest if array.dtype == np.int32 else array.max()
    if lowest < 0 or highest >= TOKEN_LIMIT:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"{name} must be between 0 and {TOKEN_LIMIT - 1}, got {wrong}")
    return np.ascontiguousarray(array, np.int32)


def as_loss_mask(values: Any, where: str = "") -> Int8[np.ndarray, " tokens"]:
    """Convert a loss mask to an int8 array.

    Args:
        values: One value (0 or 1) per token.
        where: Location of the values for error messages, such as `train.jsonl:7`.

    Raises:
        ValueError: If a value is neither 0 nor 1.
    """
    array = np.asarray(values)
    prefix = f"{where}: " if where else ""
    if array.size == 0:
        return np.zeros(0, np.int8)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise ValueError(
            f"{prefix}loss_mask must be a list of 0 and 1, got {array.dtype} with shape {array.shape}"
        )
    wrong = (array != 0) & (array != 1)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise ValueError(
            f"{prefix}loss_mask[{index}] must be 0 or 1, got {array[index]}; for Hugging Face labels, "
            f"where -100 means no loss, use labels != -100"
        )
    return np.ascontiguousarray(array, np.int8)


def token_arrays(
    row: Mapping[str, Any],
) -> tuple[Int32[np.ndarray, " length"], Int8[np.ndarray, " length"], dict[str, np.ndarray]]:
    """Return the token ids, the loss mask and the columns of a mapping with `input_ids`.

    The loss mask is given by `labels` or `loss_mask`; without them, every token counts. Columns are the other
    lists of numbers, and those in a mapping named `columns`. Texts, single numbers and other values are not
    columns, and neither are arrays that a batch creates itself, such as `position_ids`.

    Raises:
        ValueError: If a list of numbers does not have one entry per token, or if `labels` has a token that
            is not in `input_ids`.
    """
    ids = as_token_ids(row["input_ids"], "input_ids")
    labels, mask = row.get("labels"), row.get("loss_mask")
    for name, values in (("labels", labels), ("loss_mask", mask)):
        if values is not None and len(values) != len(ids):
            raise ValueError(f"{len(ids)} input_ids but {len(values)} entries in {name}")
    if labels is not None:
        labels = np.asarray(labels)
        wrong = np.flatnonzero((labels != ids) & (labels != IGNORE_INDEX))
        if len(wrong):
            raise ValueError(
                f"labels[{wrong[0]}] must be its token or {IGNORE_INDEX}, got {labels[wrong[0]]}"
            )
        mask = labels != IGNORE_INDEX
    mask = np.ones(len(ids), np.int8) if mask is None else as_loss_mask(mask)
    return ids, mask, token_columns(row, len(ids))


def token_columns(row: Mapping[str, Any], num_tokens: int) -> dict[str, np.ndarray]:
    """Return the columns of a mapping with `num_tokens` tokens (see `token_arrays`)."""
    nested = row.get("columns")
    columns = {}
    for name, value in {**row, **(nested if isinstance(nested, Mapping) else {})}.items():
        if name in _NOT_COLUMNS or isinstance(value, str | bytes | Mapping):
            continue
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            continue
        if array.ndim == 0 or array.size == 0 or array.dtype.kind not in "biuf":
            continue
        if len(array) != num_tokens:
            raise ValueError(
                f"{num_tokens} input_ids but {len(array)} entries in {name}; a list of numbers needs one "
                f"entry per token, so remove {name} if it is something else"
            )
        columns[name] = array
    return columns


def concatenate_samples(
    samples: Sequence[Sample],
) -> tuple[
    Int32[np.ndarray, " tokens"],
    Int8[np.ndarray, " tokens"],
    Int64[np.ndarray, " samples_and_one"],
    dict[str, np.ndarray],
]:
    """Concatenate samples, which must have the same columns.

    Returns:
        The tokens, the loss mask, the position at which each sample starts (followed by the total number of
        tokens), and the columns.
    """
    names = samples[0].columns.keys() if samples else set()
    for sample in samples:
        if sample.columns.keys() != names:
            raise ValueError(
                f"sample {sample.sample_id!r} has columns {sorted(sample.columns)}, but the first sample has "
                f"{sorted(names)}"
            )
    return (
        np.concatenate([np.zeros(0, np.int32), *(sample.input_ids for sample in samples)]),
        np.concatenate([np.zeros(0, np.int8), *(sample.loss_mask for sample in samples)]),
        np.cumsum([0, *(sample.length for sample in samples)], dtype=np.int64),
        {name: np.concatenate([sample.columns[name] for sample in samples]) for name in names},
    )


@dataclasses.dataclass(eq=False, repr=False)
class TokenDataset(Mapping[str, Sample]):
    """A dataset of tokenized samples, stored as concatenated arrays.

    It is a mapping from ids to `Sample` objects.
    """

    ids: Sequence[Any]
    """Unique id of each sample."""
    tokens: Int32[np.ndarray, " tokens"]
    """Concatenated token ids of all samples."""
    loss_mask: Int8[np.ndarray, " tokens"]
    """1 for tokens that count toward the loss, and 0 for all other tokens."""
    offsets: Int64[np.ndarray, " samples_and_one"]
    """Position in `tokens` at which each sample starts, followed by the total number of tokens."""
    columns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Additional arrays [tokens, ...] with one entry per token."""
    info: Sequence[SampleInfo] | None = None
    """Origin and episode of each sample. None if there is no such information."""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.offsets) - 1 or not (
            len(self.tokens) == len(self.loss_mask) == self.offsets[-1]
        ):
            raise ValueError(
                f"{len(self.ids)} ids, {len(self.offsets)} offsets, {len(self.tokens)} tokens and "
                f"{len(self.loss_mask)} mask entries do not belong together"
            )
        self._index_maps = weakref.WeakKeyDictionary[LengthTable, Int64[np.ndarray, " samples"]]()

    @classmethod
    def from_samples(cls, samples: Iterable[Sample]) -> "TokenDataset":
        """Create a dataset from samples with unique ids and the same columns."""
        found = list(samples)
        ids = [sample.sample_id for sample in found]
        if len(set(ids)) != len(ids):
            repeated = Counter(ids).most_common(1)[0][0]
            raise ValueError(f"sample id {repeated!r} occurs more than once")
        has_info = any(sample.info is not None for sample in found)
        info = [sample.info or SampleInfo() for sample in found] if has_info else None
        return cls(ids, *concatenate_samples(found), info)

    @cached_property
    def lengths(self) -> LengthTable:
        """Ids and lengths of the samples. Plans are built from this table."""
        table = LengthTable(self.ids, np.diff(self.offsets).astype(np.int32))
        table.validate()
        return table

    @cached_property
    def content_hash(self) -> str:
        """Short hash of the tokens, loss masks and lengths, in order. Ids are not included."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.loss_mask, self.offsets):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {str(name): index for index, name in enumerate(self.ids)}

    def sample(self, index: int) -> Sample:
        """Return the sample with the given index."""
        part = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        return Sample(
            str(self.ids[index]),
            self.tokens[part],
            self.loss_mask[part],
            {name: values[part] for name, values in self.columns.items()},
            None if self.info is None else self.info[index],
        )

    def index_map(self, table: LengthTable) -> Int64[np.ndarray, " samples"]:
        """Return the position in this dataset of each sample of a length table.

        The position is -1 for samples that are not in the dataset.
        """
        if table is self.__dict__.get("lengths"):
            return np.arange(len(self))
        if table not in self._index_maps:
            find = self._index.get
            found = (find(str(name), -1) for name in table.ids)
            self._index_maps[table] = np.fromiter(found, np.int64, len(table))
        return self._index_maps[table]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __getitem__(self, sample_id: str) -> Sample:
        return self.sample(self._index[sample_id])

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._index


def save_samples(path: str | os.PathLike[str], samples: Iterable[Sample]) -> int:
    """Write samples to a `.jsonl` or `.npz` file atomically. Return the number of samples."""
    path = Path(path)
    if path.suffix == ".jsonl":
        count = 0
        with atomic_write(path, "wb") as file:
            for sample in samples:
                line = json.dumps(sample.to_dict(), ensure_ascii=False) + "\n"
                # Lone surrogates are not valid in UTF-8, so they are written as JSON escapes.
                file.write(line.encode("utf-8", "backslashreplace"))
                count += 1
        return count
    if path.suffix != ".npz":
        raise ValueError(f"{path}: samples can be written as .jsonl or .npz, not {path.suffix!r}")
    packed = [pack_sample(sample) for sample in samples]
    save_packed_samples(path, packed, {})
    return len(packed)


def load_samples(path: str | os.PathLike[str]) -> list[Sample]:
    """Read a file that `save_samples` or `ReplayBuffer.save` wrote.

    Samples are in the order in which they were written or added to the buffer.
    """
    path = Path(path)
    if path.suffix == ".npz":
        packed, _, serials = load_packed_samples(path)
        return [unpack_sample(packed[index]) for index in np.argsort(serials, kind="stable").tolist()]
    with path.open(encoding="utf-8") as file:
        lines = enumerate(file, 1)
        return [parse_sample(line, f"{path}:{number}") for number, line in lines if line.strip()]


def parse_sample(line: str | bytes, where: str) -> Sample:
    """Parse one line of a sample file.

    If the line is invalid, raise `ValueError` with a message that starts with `where`.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError(f"expected a JSON object, got {type(fields).__name__}")
        return Sample.from_dict(fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: not a sample: {error}") from error


NUMBERS = np.dtype(
    [
        ("timestamp", np.float64),
        ("reward", np.float64),
        ("difficulty", np.float64),
        ("priority", np.float64),
        ("length", np.int32),
        ("step_index", np.int32),
        ("total_steps", np.int32),
        ("replay_count", np.int32),
        ("origin", np.uint8),
        ("status", np.int8),
        ("success", np.int8),
        ("flags", np.uint8),
    ]
)
"""Data type of the numeric metadata of a stored sample. Unknown values are NaN in floating-point fields, and
-1 in integer fields."""
_HAS_SEGMENTS, _HAS_EPISODE, _HAS_INFO = 1, 2, 4

# Stored by number: add new members at the end.
_ORIGINS, _STATUSES = tuple(SampleOrigin), tuple(EpisodeStatus)
ORIGIN_CODES = {origin: code for code, origin in enumerate(_ORIGINS)}
_STATUS_CODES: dict[str | None, int] = {None: -1} | {status: code for code, status in enumerate(_STATUSES)}
_EMPTY_INFO = SampleInfo(timestamp=datetime.fromtimestamp(0, UTC))

CompactSample = tuple[bytes, bytes, tuple[Any, ...]]
"""A sample in compact form: the tokens, with the loss mask in the top bit of each token; the ids of the
sample, the dataset and the episode; and the values of the fields of `NUMBERS`. The garbage collector does not
track `bytes` objects, so millions of samples do not slow it down."""


def pack_sample(sample: Sample) -> CompactSample:
    """Convert a sample to compact form.

    Raises `ValueError` if the sample has columns that the compact form cannot store, which are all except
    `segment_ids`.
    """
    if sample.columns.keys() - {"segment_ids"}:
        names = ", ".join(sorted(sample.columns.keys() - {"segment_ids"}))
        raise ValueError(f"sample {sample.sample_id!r}: the columns {names} cannot be stored")
    info = sample.info or _EMPTY_INFO
    tokens, mask = sample.input_ids, sample.loss_mask
    flags = _HAS_INFO * (sample.info is not None) + _HAS_EPISODE * (info.episode_id is not None)
    if sample.columns:
        segments = as_token_ids(sample.columns["segment_ids"], "segment_ids")
        tokens = np.concatenate([tokens, segments])
        mask = np.concatenate([mask, np.zeros(len(segments), np.int8)])
        flags += _HAS_SEGMENTS
    # 16 bits per token if that leaves the top bit free for the mask.
    dtype: Any = np.uint16 if tokens.max() < 1 << 15 else np.uint32
    packed = tokens.astype(dtype) | mask.astype(dtype) << dtype(8 * np.dtype(dtype).itemsize - 1)
    text = f"{sample.sample_id}\0{info.dataset_id}\0{info.episode_id or ''}"
    numbers = (
        info.timestamp.timestamp(),
        math.nan if info.reward is None else info.reward,
        math.nan if info.difficulty is None else info.difficulty,
        info.priority,
        sample.length,
        -1 if info.step_index is None else info.step_index,
        -1 if info.total_steps is None else info.total_steps,
        info.replay_count,
        ORIGIN_CODES[SampleOrigin(info.origin)],
        _STATUS_CODES[info.episode_status],
        -1 if info.success is None else int(info.success),
        flags,
    )
    return packed.tobytes(), text.encode("utf-8", "surrogatepass"), numbers


def unpack_tokens(stored: bytes, count: int) -> tuple[Int32[np.ndarray, " n"], Int8[np.ndarray, " n"]]:
    """Return the token ids and the loss mask of a sample with `count` tokens that `pack_sample` packed."""
    size = len(stored) // count
    dtype: Any = np.uint16 if size == 2 else np.uint32
    packed: Any = np.frombuffer(stored, dtype)
    top = dtype(8 * size - 1)
    tokens = (packed & dtype((1 << int(top)) - 1)).astype(np.int32)
    return tokens, (packed >> top).astype(np.int8)


def unpack_sample(packed: CompactSample) -> Sample:
    """Convert a sample from compact form to a `Sample`."""
    stored, text, numbers = packed
    timestamp, reward, difficulty, priority, length, step, total, replays = numbers[:8]
    origin, status, success, flags = numbers[8:]
    tokens, mask = unpack_tokens(stored, length * (2 if flags & _HAS_SEGMENTS else 1))
    sample_id, dataset_id, episode_id = text.decode("utf-8", "surrogatepass").split("\0")
    info = SampleInfo(
        dataset_id=dataset_id,
        origin=_ORIGINS[origin],
        episode_id=episode_id if flags & _HAS_EPISODE else None,
        episode_status=None if status < 0 else _STATUSES[status],
        step_index=None if step < 0 else step,
        total_steps=None if total < 0 else total,
        reward=None if math.isnan(reward) else reward,
        difficulty=None if math.isnan(difficulty) else difficulty,
        success=None if success < 0 else bool(success),
        priority=priority,
        replay_count=replays,
        timestamp=datetime.fromtimestamp(timestamp, UTC),
    )
    columns = {"segment_ids": tokens[length:]} if flags & _HAS_SEGMENTS else {}
    has_info = flags & (_HAS_INFO | _HAS_EPISODE)
    return Sample(sample_id, tokens[:length], mask[:length], columns, info if has_info else None)


def save_packed_samples(
    path: str | os.PathLike[str],
    samples: Sequence[CompactSample],
    header: Mapping[str, Any],
    serials: Int64[np.ndarray, " samples"] | None = None,
) -> None:
    """Write samples in compact form to a `.npz` file.

    Args:
        path: Path of the file.
        samples: Samples in compact form.
        header: JSON-compatible metadata.
        serials: Serial number of each sample in a replay buffer. By default, samples are numbered from 0.
    """
    numbers = np.array([sample[2] for sample in samples], NUMBERS)
    arrays = {
        "tokens": np.frombuffer(b"".join(sample[0] for sample in samples), np.uint8),
        "texts": np.frombuffer(b"".join(sample[1] for sample in samples), np.uint8),
        "sizes": np.array([(len(sample[0]), len(sample[1])) for sample in samples], np.int64).reshape(-1, 2),
        "serials": np.arange(len(samples)) if serials is None else serials,
        **{name: numbers[name] for name in NUMBERS.names or ()},
    }
    fields = {"format": _FORMAT, "version": _VERSION, "samples": len(samples), **header}
    write_npz(path, arrays, fields)


def load_packed_samples(
    path: str | os.PathLike[str],
) -> tuple[list[CompactSample], dict[str, Any], Int64[np.ndarray, " samples"]]:
    """Read a file that `save_packed_samples` wrote.

    Returns:
        The samples in compact form, the header and the serial numbers.
    """
    with open_npz(path) as archive:
        header = parse_header(archive, path, "a sample file", _FORMAT, _VERSION)
        count = header["samples"]
        expected: dict[str, tuple[Any, Any]] = {
            name: ((count,), NUMBERS[name]) for name in NUMBERS.names or ()
        }
        expected |= {"serials": ((count,), np.dtype(np.int64)), "sizes": ((count, 2), np.dtype(np.int64))}
        arrays = {name: archive[name] for name in (*expected, "tokens", "texts")}
    for name, (shape, dtype) in expected.items():
        if arrays[name].shape != shape or arrays[name].dtype != dtype:
            raise CorruptFileError(f"{path} is corrupt: {name} does not have {count} values of {dtype}")
    sizes, data = arrays["sizes"], [arrays[name].tobytes() for name in ("tokens", "texts")]
    if sizes.min(initial=1) < 1 or sizes.sum(axis=0).tolist() != [len(part) for part in data]:
        raise CorruptFileError(f"{path} is corrupt: tokens and sizes do not match")
    num_tokens = arrays["length"].astype(np.int64) * (1 + (arrays["flags"] & _HAS_SEGMENTS))
    if not ((sizes[:, 0] == 2 * num_tokens) | (sizes[:, 0] == 4 * num_tokens)).all():
        raise CorruptFileError(f"{path} is corrupt: tokens and length do not match")
    tokens, texts = (
        [part[a:b] for a, b in itertools.pairwise([0, *np.cumsum(lengths).tolist()])]
        for part, lengths in zip(data, sizes.T, strict=True)
    )
    numbers = zip(*(arrays[name].tolist() for name in NUMBERS.names or ()), strict=True)
    return list(zip(tokens, texts, numbers, strict=True)), header, arrays["serials"]
