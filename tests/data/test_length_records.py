"""Lines of length entries: what is written is read, and the bulk reader takes what JSON takes."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from phalanx.data.length_records import Block, format_entries, parse_blocks

IDS = st.one_of(
    st.text(min_size=1),
    st.sampled_from(['"', "\\", "a,b", "\n", "\u2028", "ü", '","tokenizer_hash":"v1","length":', "007"]),
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(IDS, st.integers(1, 2**31 - 1), min_size=1), st.sampled_from(["v1", 'say "x"', "ü"]))
def test_any_ids_survive_being_written_as_lines(entries: dict[str, int], key: str) -> None:
    lines = format_entries(list(entries), list(entries.values()), key)
    assert [json.loads(line)["sample_id"] for line in lines.decode().split("\n")[:-1]] == list(entries)
    blocks = list(_parsed(lines))
    assert [i for block in blocks for i in block.ids] == list(entries)
    assert [n for block in blocks for n in block.lengths.tolist()] == list(entries.values())
    assert {block.tokenizer_hash for block in blocks} == {key}


def _parsed(data: bytes) -> list[Block]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "l.jsonl")
        file.write_bytes(data)
        return list(parse_blocks(file))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_bulk_reader_and_json_agree_on_lines_with_one_byte_changed(data: st.DataObject) -> None:
    lines = bytearray(format_entries(["a1", "b2", "c3"], [5, 60, 700], "v1"))
    place = data.draw(st.integers(0, len(lines) - 2))
    lines[place] = data.draw(st.sampled_from(b'"\\{}:,019-. \t\nax'))
    expected: list[tuple[str, int, str]] | None = []
    try:
        for line in bytes(lines).decode().split("\n"):
            if line.strip():
                entry = json.loads(line)
                if not isinstance(entry["length"], int) or entry["length"] < 1 or not entry["sample_id"]:
                    raise ValueError
                expected.append((entry["sample_id"], entry["length"], entry["tokenizer_hash"]))
    except (ValueError, KeyError, TypeError):
        expected = None
    try:
        found = [
            (sample_id, length, block.tokenizer_hash)
            for block in _parsed(bytes(lines))
            for sample_id, length in zip(block.ids, block.lengths.tolist(), strict=True)
        ]
    except ValueError:
        found = None
    assert found == expected
