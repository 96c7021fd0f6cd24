"""The length cache: adding, reopening, crashes, and the binary forms."""

import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching.generation import LengthEntry
from phalanx.data import LengthCache
from phalanx.data.length_cache import TornLineError, format_lines as format_entries

SUFFIXES = ["jsonl", "npz"]


def write(path: Path, entries: dict, tokenizer_hash: str = "v1") -> None:
    def run() -> None:
        with LengthCache.create(path, tokenizer_hash) as cache:
            for sample_id, length in entries.items():
                cache.add(sample_id, length)

    run()


def load(path: Path, *arguments: str, **options: bool) -> LengthCache:
    return LengthCache.load(path, *arguments, **options)


@pytest.fixture(params=SUFFIXES)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "arrow":
        pytest.importorskip("pyarrow")
    return tmp_path / f"lengths.{request.param}"


def test_what_is_added_is_read_back_in_its_order(path: Path) -> None:
    write(path, {"b": 3, "a": 12})
    cache = load(path, "v1")
    assert cache.get_all() == {"b": 3, "a": 12}
    assert list(cache.items()) == [("b", 3), ("a", 12)]
    assert cache.tokenizer_hash == "v1"
    assert len(cache) == 2
    assert cache.table().as_dict() == {"b": 3, "a": 12}
    assert cache.lengths.tolist() == [3, 12]
    assert cache.lengths.dtype == np.int32


def test_a_line_is_a_length_entry_that_people_can_read(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl", {"s1": 7})
    line = (tmp_path / "l.jsonl").read_text()
    assert line == '{"sample_id":"s1","tokenizer_hash":"v1","length":7}\n'
    assert LengthEntry.model_validate_json(line).length == 7


def test_reopening_adds_to_what_is_there(path: Path) -> None:
    write(path, {"a": 1})
    write(path, {"b": 2})
    assert load(path).get_all() == {"a": 1, "b": 2}


def test_a_run_that_is_started_again_finds_its_entries_and_adds_the_rest(path: Path) -> None:
    write(path, {"a": 1, "b": 2})
    write(path, {"a": 1, "b": 2, "c": 3})
    assert load(path).get_all() == {"a": 1, "b": 2, "c": 3}


def test_a_length_that_changed_since_the_file_was_written_is_an_error(path: Path) -> None:
    write(path, {"a": 1})
    with pytest.raises(ValueError, match=r"sample id 'a' has length 1 in the file, but now 5"):
        write(path, {"a": 5})
    assert load(path).get_all() == {"a": 1}


def test_an_id_that_comes_twice_in_one_run_is_an_error(path: Path) -> None:
    def run(first: int) -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", first)
            cache.add("a", first)

    for _ in range(2):  # the second time the file holds it already, and once more is still too often
        with pytest.raises(ValueError, match="'a' was added twice"):
            run(4)
    assert load(path).get_all() == {"a": 4}


def test_integer_ids_work_and_zero_is_one_of_them(path: Path) -> None:
    write(path, {0: 5, 1: 6})
    cache = load(path)
    assert cache.get_all() == {"0": 5, "1": 6}
    assert cache.get(0) == 5
    assert 0 in cache
    assert cache.is_complete([0, 1])
    assert not cache.is_complete([0, 2])
    assert cache.validate([0, 2]) == ({"2"}, {"1"})


def test_a_file_with_integer_ids_is_read(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_text(
        "".join(f'{{"sample_id":{i},"tokenizer_hash":"v1","length":{i + 1}}}\n' for i in range(3))
    )
    assert load(file).get_all() == {"0": 1, "1": 2, "2": 3}


def test_an_unknown_id_has_no_length(path: Path) -> None:
    write(path, {"a": 1})
    assert load(path).get("b") is None


def test_another_tokenizer_is_refused_on_load_and_on_reopening(path: Path) -> None:
    write(path, {"a": 1}, "v1")
    with pytest.raises(ValueError, match=rf"{path.name}.*counted with tokenizer 'v1', not 'v2'"):
        load(path, "v2")
    with pytest.raises(ValueError, match="counted with tokenizer 'v1', not 'v2'"):
        write(path, {"b": 2}, "v2")
    assert load(path).get_all() == {"a": 1}


def test_a_line_of_another_tokenizer_is_named(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_bytes(format_entries(["a", "b"], [1, 2], "v1") + format_entries(["c"], [3], "v2"))
    with pytest.raises(ValueError, match=r"l\.jsonl:3: counted with tokenizer 'v2', not 'v1'"):
        load(file)


@pytest.mark.parametrize("cut", [1, 10, 40, 49])
def test_a_cut_off_last_line_is_an_error_on_load_and_is_repaired_on_reopening(
    tmp_path: Path, cut: int
) -> None:
    file = tmp_path / "l.jsonl"
    write(file, {"a": 1, "b": 2})
    file.write_bytes(file.read_bytes()[: -cut - 1])
    with pytest.raises(
        TornLineError, match=r"l\.jsonl:2: the last line is incomplete, because its writer was interrupted"
    ):
        load(file)
    assert load(file, drop_torn_line=True).get_all() == {"a": 1}
    with pytest.warns(UserWarning, match="the last line was incomplete"):
        write(file, {"c": 3})
    assert load(file).get_all() == {"a": 1, "c": 3}


def test_a_last_line_that_lacks_only_its_line_end_counts(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    write(file, {"a": 1, "b": 2})
    file.write_bytes(file.read_bytes()[:-1])
    assert load(file).get_all() == {"a": 1, "b": 2}
    write(file, {"c": 3})
    assert load(file).get_all() == {"a": 1, "b": 2, "c": 3}


def test_a_tail_of_zero_bytes_after_a_power_cut_is_a_cut_off_line(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    write(file, {"a": 1})
    file.write_bytes(file.read_bytes() + bytes(100))
    with pytest.raises(TornLineError, match=r"l\.jsonl:2"):
        load(file)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sample_id":"b","tokenizer_hash":"v1","leng', "not a JSON object"),
        ('{"sample_id":"b","tokenizer_hash":"v1","length":-3}', "length must be a positive integer, got -3"),
        ('{"sample_id":"b","tokenizer_hash":"v1","length":0}', "length must be a positive integer, got 0"),
        (
            '{"sample_id":"b","tokenizer_hash":"v1","length":2.5}',
            "length must be a positive integer, got 2.5",
        ),
        (
            '{"sample_id":"b","tokenizer_hash":"v1","length":true}',
            "length must be a positive integer, got True",
        ),
        ('{"sample_id":"b","tokenizer_hash":"v1","length":9999999999}', "got 9999999999"),
        ('{"sample_id":null,"tokenizer_hash":"v1","length":3}', "sample id must be"),
        ('{"sample_id":"","tokenizer_hash":"v1","length":3}', "sample id must be"),
        ('{"sample_id":"b","length":3}', "expected an object with sample_id, tokenizer_hash, length"),
        ("[1, 2]", "expected an object"),
        ('{"sample_id":"b\udcff","tokenizer_hash":"v1","length":3}', "not valid UTF-8"),
        ('{"sample_id":"b{"sample_id":"c","tokenizer_hash":"v1","length":3}', "not a JSON object"),
    ],
)
def test_a_bad_line_in_the_middle_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "l.jsonl"
    good = format_entries(["a"], [1], "v1")
    file.write_bytes(good + line.encode(errors="surrogateescape") + b"\n" + format_entries(["z"], [1], "v1"))
    with pytest.raises(ValueError, match=rf"l\.jsonl:2: .*{message}"):
        load(file)
    with pytest.raises(ValueError, match=r"l\.jsonl:2: "):
        write(file, {"q": 1})


def test_a_repeated_id_in_the_file_is_named_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_bytes(format_entries(["a", "b", "c", "a"], [1, 2, 3, 1], "v1"))
    with pytest.raises(ValueError, match=r"l\.jsonl:4: sample id 'a' is already on line 1"):
        load(file)


def test_two_wrong_lines_that_make_up_for_each_other_are_still_found(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    middle = '","tokenizer_hash":"v1","length":'
    lines = [f'{{"sample_id":"1{middle}5{middle}6}}', '{"sample_id":"77}', f'{{"sample_id":"2{middle}5}}']
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"l\.jsonl:1: not a JSON object"):
        load(file)


@pytest.mark.parametrize("length", [0, -4])
def test_a_length_that_is_not_positive_is_refused_and_not_written(path: Path, length: int) -> None:
    with pytest.raises(ValueError, match=f"sample 'x': length must be a positive integer, got {length}"):
        write(path, {"a": 1, "x": length})
    assert load(path).get_all() == {"a": 1}


def test_what_was_added_before_an_error_is_kept(path: Path) -> None:
    def run() -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert load(path).get_all() == {"a": 1}


def test_adding_many_at_once_is_the_same_as_one_by_one(path: Path) -> None:
    def run() -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", 1)
            cache.add_many(["b", "c"], np.array([2, 3]))
            cache.add_many([4, 5], [6, 7])
            assert cache.get("c") == 3

    run()
    assert load(path).get_all() == {"a": 1, "b": 2, "c": 3, "4": 6, "5": 7}


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        (["b", "b"], [1, 1], "'b' was added twice"),
        (["b", "a"], [1, 1], "'a' was added twice"),
        (["b", "c"], [1, -2], "sample 1: length must be a positive integer, got -2"),
        (["b"], [1, 2], "got 1 ids but 2 lengths"),
        (["b", ""], [1, 2], "sample 1: sample id must be"),
    ],
)
def test_of_many_none_is_added_if_one_is_wrong(path: Path, ids: list, lengths: list, message: str) -> None:
    def run() -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", 1)
            cache.add_many(ids, lengths)

    with pytest.raises(ValueError, match=message):
        run()
    assert load(path).get_all() == {"a": 1}


def test_adding_outside_the_context_says_how_to_do_it(path: Path) -> None:
    cache = LengthCache.create(path, "v1")
    with pytest.raises(ValueError, match=r"with LengthCache\.create"):
        cache.add("a", 1)


def test_load_or_create_reads_what_there_is_and_can_be_added_to(path: Path) -> None:
    def run(sample_id: str, length: int) -> int:
        cache = LengthCache.load_or_create(path, "v1")
        before = len(cache)
        with cache:
            cache.add(sample_id, length)
        return before

    assert run("a", 1) == 0
    assert run("b", 2) == 1
    assert load(path).get_all() == {"a": 1, "b": 2}


def test_an_empty_cache_is_a_cache(path: Path) -> None:
    write(path, {})
    assert load(path).get_all() == {}
    assert load(path).is_complete([])


def test_a_cache_that_is_not_there_is_said_so(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no length cache"):
        load(path)
    with pytest.raises(FileNotFoundError, match=r"cannot write .* does not exist"):
        write(path.parent / "nowhere" / path.name, {})


@pytest.mark.parametrize("suffix", ["npz"])
@pytest.mark.parametrize("keep", [0, 20, 200])
def test_a_truncated_binary_cache_is_an_error_that_names_it(tmp_path: Path, suffix: str, keep: int) -> None:
    if suffix == "arrow":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"l.{suffix}"
    write(file, {f"sample-{i}": i + 1 for i in range(100)})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"l\.{suffix} is corrupt"):
        load(file)


def test_a_damaged_byte_in_a_binary_cache_is_found(tmp_path: Path) -> None:
    file = tmp_path / "l.npz"
    write(file, {f"sample-{i}": i + 1 for i in range(100)})
    data = bytearray(file.read_bytes())
    place = data.find(np.arange(1, 101, dtype=np.int32).tobytes())
    data[place + 8] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"l\.npz is corrupt"):
        load(file)


def test_ids_of_a_binary_cache_that_was_replaced_meanwhile_are_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "l.npz"
    write(file, {"a": 1})
    cache = load(file)
    file.unlink()
    write(file, {"b": 1, "c": 2})
    with pytest.raises(ValueError, match="was changed after its lengths were loaded"):
        cache.get_all()


def test_many_blocks_are_read_as_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.data.length_cache._BLOCK_BYTES", 100)
    file = tmp_path / "l.jsonl"
    entries = {f"sample-{i}": i + 1 for i in range(57)}
    write(file, entries)
    assert load(file).get_all() == entries
    lines = file.read_bytes().split(b"\n")
    lines[40] = b"{"
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=r"l\.jsonl:41: "):
        load(file)


def test_a_hundred_thousand_entries_take_a_fraction_of_a_second(tmp_path: Path) -> None:
    ids = [f"sample_{i:07d}" for i in range(100_000)]
    lengths = np.arange(1, 100_001)

    def run() -> float:
        start = time.process_time()
        with LengthCache.create(tmp_path / "l.jsonl", "v1") as cache:
            cache.add_many(ids, lengths)
        loaded = LengthCache.load(tmp_path / "l.jsonl")
        assert len(loaded) == 100_000
        return time.process_time() - start

    # About 0.25 s; entry by entry, as JSON, it would be above 1 s.
    assert run() < 1.0


def test_a_whole_file_is_reopened_without_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl", {"a": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path / "l.jsonl", {"b": 1})
