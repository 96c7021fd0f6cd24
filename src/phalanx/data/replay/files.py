"""Files of samples: columns, tokens and texts as the arrays of one `.npz` with a JSON header.

Written whole or not at all; a file that is corrupt or something else is an error in words.
"""

import itertools
import json
import os
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from phalanx.data.replay.rows import NUMBERS, RowView, SampleRows, split_mask
from phalanx.data.sample_bytes import RECORD
from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CorruptFileError, open_verified
from phalanx.io.untrusted import parse_json

if TYPE_CHECKING:
    from phalanx.data.replay_buffer import ReplayBuffer

_KIND, _VERSION = "phalanx samples", 1
_ROWS_AT_ONCE = 1 << 16


class SampleFileError(CorruptFileError):
    """A file of samples that cannot be read; the text says which and why."""


def write_rows(path: str | os.PathLike[str], view: RowView, header: dict[str, Any]) -> None:
    """Write samples, in order, with whatever else is to be known about them."""
    parts = range(0, max(len(view), 1), _ROWS_AT_ONCE)
    views = [view.select(np.arange(start, min(start + _ROWS_AT_ONCE, len(view)))) for start in parts]
    tokens = int(view.columns["token_count"].sum(dtype=np.int64))
    texts = int(view.columns["text_count"].sum(dtype=np.int64))
    told = {"kind": _KIND, "version": _VERSION, "samples": len(view), **header}
    with atomic_write(path, checksum=True) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _write(archive, "header", [np.frombuffer(json.dumps(told).encode(), np.uint8)], None)
        for name in (*NUMBERS, "serial", "token_count", "text_count"):
            _write(archive, name, [view.columns[name]], None)
        # In parts, so that writing a large buffer does not take its memory twice.
        _write(archive, "tokens", (part.gather_tokens() for part in views), (np.dtype(np.uint32), tokens))
        _write(archive, "texts", (part.gather_texts() for part in views), (np.dtype(np.uint8), texts))


def read_rows(path: str | os.PathLike[str]) -> tuple[SampleRows, dict[str, Any]]:
    """The samples of a file in slots 0, 1, ..., and its header."""
    try:
        # Opened here: NumPy leaves a file open that it finds damaged.
        with open_verified(path) as file, np.load(file, allow_pickle=False) as archive:
            header = parse_json(archive["header"].tobytes(), path)
            if not isinstance(header, dict) or header.get("kind") != _KIND:
                raise SampleFileError(f"{path} is not a file of samples")
            if header["version"] != _VERSION:
                raise SampleFileError(
                    f"{path} has version {header['version']}, this program reads version {_VERSION}"
                )
            names = (*NUMBERS, "serial", "token_count", "text_count", "tokens", "texts")
            arrays = {name: archive[name] for name in names}
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file") from None
    except SampleFileError:
        raise
    except CorruptFileError as error:
        raise SampleFileError(str(error)) from error
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise SampleFileError(f"{path} is corrupt or not a file of samples: {error}") from error
    _check(path, arrays, header["samples"])
    return _rows_of(arrays), header


def _check(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], samples: int) -> None:
    for name in (*NUMBERS, "serial", "token_count", "text_count"):
        wanted = RECORD[name] if name in NUMBERS else np.dtype(np.int64 if name == "serial" else np.int32)
        if arrays[name].shape != (samples,) or arrays[name].dtype != wanted:
            raise SampleFileError(f"{path} is corrupt: {name} is not {samples} times {wanted}")
    for kind, dtype in (("token", np.uint32), ("text", np.uint8)):
        counts, items = arrays[f"{kind}_count"], arrays[f"{kind}s"]
        total = int(counts.sum(dtype=np.int64))
        if items.dtype != dtype or items.shape != (total,) or (samples and int(counts.min()) < 1):
            raise SampleFileError(f"{path} is corrupt: {kind}s and {kind}_count do not fit")
    segments = (arrays["flags"] & 1).astype(np.int64)
    if not np.array_equal(arrays["token_count"], arrays["length"] * (1 + segments)):
        raise SampleFileError(f"{path} is corrupt: tokens and length do not fit")


def _rows_of(arrays: dict[str, np.ndarray]) -> SampleRows:
    samples = len(arrays["serial"])
    records = np.empty(samples, RECORD)
    for name in NUMBERS:
        records[name] = arrays[name]
    rows = SampleRows()
    rows.grow(samples)
    token_ends = np.concatenate([[0], np.cumsum(arrays["token_count"], dtype=np.int64)])
    text_ends = np.concatenate([[0], np.cumsum(arrays["text_count"], dtype=np.int64)])
    texts = arrays["texts"].tobytes()
    for start in range(0, samples, 1024):
        end = min(start + 1024, samples)
        tokens, mask = split_mask(arrays["tokens"][token_ends[start] : token_ends[end]])
        cuts = text_ends[start : end + 1].tolist()
        rows.write_tokens(
            np.arange(start, end),
            arrays["serial"][start:end],
            records[start:end],
            tokens,
            mask,
            arrays["token_count"][start:end],
            [texts[a:b] for a, b in itertools.pairwise(cuts)],
        )
    return rows


def _write(archive: zipfile.ZipFile, name: str, parts: Any, whole: tuple[np.dtype, int] | None) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        if whole is None:
            (only,) = parts
            np.lib.format.write_array(member, np.ascontiguousarray(only), allow_pickle=False)
            return
        dtype, items = whole
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (items,)}
        np.lib.format.write_array_header_1_0(member, header)
        for part in parts:
            member.write(part.astype(dtype, copy=False).tobytes())


def save_buffer(buffer: "ReplayBuffer", path: str | os.PathLike[str]) -> None:
    """Write a buffer with its counts and the states of its generators."""
    header = {
        "buffer": {
            "config": buffer.config.model_dump(mode="json"),
            "total_added": buffer._added,
            "turn": buffer._turn,
            "eviction_rng": buffer._eviction_rng.bit_generator.state,
            "draw_rng": buffer._draw_rng.bit_generator.state,
        }
    }
    # Slot by slot, so that draws and evictions go on as if nothing had happened.
    write_rows(path, buffer._rows.view(slice(0, buffer._size)), header)


def load_buffer(path: str | os.PathLike[str]) -> "ReplayBuffer":
    """The buffer of a file."""
    from phalanx.data.replay.config import ReplayBufferConfig
    from phalanx.data.replay_buffer import ReplayBuffer

    rows, header = read_rows(path)
    if "buffer" not in header:
        raise SampleFileError(f"{path} holds samples but no replay buffer; read it with OfflineDatasetStream")
    told = header["buffer"]
    buffer = ReplayBuffer(ReplayBufferConfig(**told["config"]))
    if rows.capacity > buffer.config.max_size:
        raise SampleFileError(f"{path} is corrupt: more samples than max_size {buffer.config.max_size}")
    buffer._adopt(rows, told["total_added"], told["turn"])
    buffer._eviction_rng.bit_generator.state = told["eviction_rng"]
    buffer._draw_rng.bit_generator.state = told["draw_rng"]
    return buffer
