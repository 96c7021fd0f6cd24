"""The length cache: adding, reopening, interrupted writes, and binary files."""

import contextlib
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from phalanx.compat.chuk_lazarus.data.batching.generation import LengthEntry
from phalanx.data import LengthCache
from phalanx.data.length_cache import TornLineError, format_lines as format_entries
from tests.helpers.file_damage import limited_file_size

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


def test_entries_are_read_back_in_order(path: Path) -> None:
    write(path, {"b": 3, "a": 12})
    cache = load(path, "v1")
    assert cache.get_all() == {"b": 3, "a": 12}
    assert list(cache.items()) == [("b", 3), ("a", 12)]
    assert cache.tokenizer_hash == "v1"
    assert len(cache) == 2
    assert cache.table().as_dict() == {"b": 3, "a": 12}
    assert cache.lengths.tolist() == [3, 12]
    assert cache.lengths.dtype == np.int32


def test_line_is_a_json_length_entry(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl", {"s1": 7})
    line = (tmp_path / "l.jsonl").read_text()
    assert line == '{"sample_id":"s1","tokenizer_hash":"v1","length":7}\n'
    assert LengthEntry.model_validate_json(line).length == 7


def test_reopening_appends_entries(path: Path) -> None:
    write(path, {"a": 1})
    write(path, {"b": 2})
    assert load(path).get_all() == {"a": 1, "b": 2}


def test_restarted_run_adds_only_missing_entries(path: Path) -> None:
    write(path, {"a": 1, "b": 2})
    write(path, {"a": 1, "b": 2, "c": 3})
    assert load(path).get_all() == {"a": 1, "b": 2, "c": 3}


def test_changed_length_raises_error(path: Path) -> None:
    write(path, {"a": 1})
    with pytest.raises(ValueError, match=r"sample id 'a' has length 1 in the file, but now 5"):
        write(path, {"a": 5})
    assert load(path).get_all() == {"a": 1}


def test_duplicate_id_in_one_run_raises_error(path: Path) -> None:
    def run(first: int) -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", first)
            cache.add("a", first)

    for _ in range(2):  # in the second run, the file already has the id
        with pytest.raises(ValueError, match="'a' was added twice"):
            run(4)
    assert load(path).get_all() == {"a": 4}


def test_integer_ids_including_zero_are_supported(path: Path) -> None:
    write(path, {0: 5, 1: 6})
    cache = load(path)
    assert cache.get_all() == {"0": 5, "1": 6}
    assert cache.get(0) == 5
    assert 0 in cache
    assert cache.is_complete([0, 1])
    assert not cache.is_complete([0, 2])
    assert cache.validate([0, 2]) == ({"2"}, {"1"})


def test_file_with_integer_ids_is_read(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_text(
        "".join(f'{{"sample_id":{i},"tokenizer_hash":"v1","length":{i + 1}}}\n' for i in range(3))
    )
    assert load(file).get_all() == {"0": 1, "1": 2, "2": 3}


def test_unknown_id_has_no_length(path: Path) -> None:
    write(path, {"a": 1})
    assert load(path).get("b") is None


def test_other_tokenizer_is_rejected_on_load_and_reopen(path: Path) -> None:
    write(path, {"a": 1}, "v1")
    with pytest.raises(ValueError, match=rf"{path.name}.*counted with tokenizer 'v1', not 'v2'"):
        load(path, "v2")
    with pytest.raises(ValueError, match="counted with tokenizer 'v1', not 'v2'"):
        write(path, {"b": 2}, "v2")
    assert load(path).get_all() == {"a": 1}


def test_line_of_another_tokenizer_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_bytes(format_entries(["a", "b"], [1, 2], "v1") + format_entries(["c"], [3], "v2"))
    with pytest.raises(ValueError, match=r"l\.jsonl:3: counted with tokenizer 'v2', not 'v1'"):
        load(file)


@pytest.mark.parametrize("cut", [1, 10, 40, 49])
def test_incomplete_last_line_is_rejected_on_load_and_repaired_on_reopen(tmp_path: Path, cut: int) -> None:
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


def test_last_line_without_newline_is_read(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    write(file, {"a": 1, "b": 2})
    file.write_bytes(file.read_bytes()[:-1])
    assert load(file).get_all() == {"a": 1, "b": 2}
    write(file, {"c": 3})
    assert load(file).get_all() == {"a": 1, "b": 2, "c": 3}


def test_trailing_zero_bytes_are_an_incomplete_line(tmp_path: Path) -> None:
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
def test_invalid_line_is_reported_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "l.jsonl"
    good = format_entries(["a"], [1], "v1")
    file.write_bytes(good + line.encode(errors="surrogateescape") + b"\n" + format_entries(["z"], [1], "v1"))
    with pytest.raises(ValueError, match=rf"l\.jsonl:2: .*{message}"):
        load(file)
    with pytest.raises(ValueError, match=r"l\.jsonl:2: "):
        write(file, {"q": 1})


def test_duplicate_id_in_the_file_is_reported_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    file.write_bytes(format_entries(["a", "b", "c", "a"], [1, 2, 3, 1], "v1"))
    with pytest.raises(ValueError, match=r"l\.jsonl:4: sample id 'a' is already on line 1"):
        load(file)


def test_invalid_lines_that_compensate_each_other_are_detected(tmp_path: Path) -> None:
    file = tmp_path / "l.jsonl"
    middle = '","tokenizer_hash":"v1","length":'
    lines = [f'{{"sample_id":"1{middle}5{middle}6}}', '{"sample_id":"77}', f'{{"sample_id":"2{middle}5}}']
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"l\.jsonl:1: not a JSON object"):
        load(file)


@pytest.mark.parametrize("length", [0, -4])
def test_nonpositive_length_is_rejected_and_not_written(path: Path, length: int) -> None:
    with pytest.raises(ValueError, match=f"sample 'x': length must be a positive integer, got {length}"):
        write(path, {"a": 1, "x": length})
    assert load(path).get_all() == {"a": 1}


def test_entries_added_before_an_error_are_kept(path: Path) -> None:
    def run() -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert load(path).get_all() == {"a": 1}


def test_add_many_equals_repeated_add(path: Path) -> None:
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
def test_add_many_adds_nothing_if_an_entry_is_invalid(
    path: Path, ids: list, lengths: list, message: str
) -> None:
    def run() -> None:
        with LengthCache.create(path, "v1") as cache:
            cache.add("a", 1)
            cache.add_many(ids, lengths)

    with pytest.raises(ValueError, match=message):
        run()
    assert load(path).get_all() == {"a": 1}


def test_adding_outside_the_context_raises_error(path: Path) -> None:
    cache = LengthCache.create(path, "v1")
    with pytest.raises(ValueError, match=r"with LengthCache\.create"):
        cache.add("a", 1)


def test_load_or_create_keeps_existing_entries(path: Path) -> None:
    def run(sample_id: str, length: int) -> int:
        cache = LengthCache.load_or_create(path, "v1")
        before = len(cache)
        with cache:
            cache.add(sample_id, length)
        return before

    assert run("a", 1) == 0
    assert run("b", 2) == 1
    assert load(path).get_all() == {"a": 1, "b": 2}


def test_empty_cache_can_be_loaded(path: Path) -> None:
    write(path, {})
    assert load(path).get_all() == {}
    assert load(path).is_complete([])


def test_missing_cache_or_folder_is_reported(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no length cache"):
        load(path)
    with pytest.raises(FileNotFoundError, match=r"cannot write .* does not exist"):
        write(path.parent / "nowhere" / path.name, {})


@pytest.mark.parametrize("suffix", ["npz"])
@pytest.mark.parametrize("keep", [0, 20, 200])
def test_truncated_binary_cache_is_reported(tmp_path: Path, suffix: str, keep: int) -> None:
    if suffix == "arrow":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"l.{suffix}"
    write(file, {f"sample-{i}": i + 1 for i in range(100)})
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"l\.{suffix} is corrupt"):
        load(file)


def test_changed_byte_in_a_binary_cache_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "l.npz"
    write(file, {f"sample-{i}": i + 1 for i in range(100)})
    data = bytearray(file.read_bytes())
    position = data.find(np.arange(1, 101, dtype=np.int32).tobytes())
    data[position + 8] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"l\.npz is corrupt"):
        load(file)


def test_replaced_binary_cache_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "l.npz"
    write(file, {"a": 1})
    cache = load(file)
    file.unlink()
    write(file, {"b": 1, "c": 2})
    with pytest.raises(ValueError, match="was changed after its lengths were loaded"):
        cache.get_all()


def test_file_with_many_blocks_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_writing_and_loading_many_entries_is_fast(tmp_path: Path) -> None:
    ids = [f"sample_{i:07d}" for i in range(100_000)]
    lengths = np.arange(1, 100_001)

    def run() -> float:
        start = time.process_time()
        with LengthCache.create(tmp_path / "l.jsonl", "v1") as cache:
            cache.add_many(ids, lengths)
        loaded = LengthCache.load(tmp_path / "l.jsonl")
        assert len(loaded) == 100_000
        return time.process_time() - start

    # Takes about 0.25 s; parsing each entry as JSON would take more than 1 s.
    assert run() < 1.0


def test_valid_file_is_reopened_without_warning(tmp_path: Path) -> None:
    write(tmp_path / "l.jsonl", {"a": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write(tmp_path / "l.jsonl", {"b": 1})


WRITER = """
import sys
from phalanx.data import LengthCache
with LengthCache.create("l.jsonl", "v1") as jsonl, LengthCache.create("l.npz", "v1") as npz:
    for cache in (jsonl, npz):
        cache.add_many(["a", "b"], [1, 2])
    print("open", flush=True)
    sys.stdin.readline()
    for cache in (jsonl, npz):
        cache.add("c", 3)
"""


def test_second_process_cannot_add_entries_until_the_first_has_closed_the_cache(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER], cwd=tmp_path, text=True, **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        for name in ("l.jsonl", "l.npz"):
            with pytest.raises(ValueError, match=rf"{name} is in use by process {first.pid} on"):
                write(tmp_path / name, {"d": 4})
        first.communicate("go on\n", timeout=60)
    for name in ("l.jsonl", "l.npz"):
        write(tmp_path / name, {"d": 4})
        assert load(tmp_path / name).get_all() == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["l.jsonl", "l.npz"]


def test_cache_cannot_be_opened_twice_through_a_link(path: Path) -> None:
    write(path, {"a": 1})
    link = path.with_name(f"link{path.suffix}")
    link.symlink_to(path)
    with (
        LengthCache.create(path, "v1"),
        pytest.raises(ValueError, match=r"link.* is in use by"),
        LengthCache.create(link, "v1"),
    ):
        pytest.fail("the body must not run")


def test_entries_that_could_not_be_written_are_kept_until_they_can(tmp_path: Path) -> None:
    """One entry takes 48 bytes, so a write of ten of them stops in the middle."""
    file = tmp_path / "l.jsonl"
    many = {f"m{n}": 7 for n in range(10)}
    with LengthCache.create(file, "v1") as cache:
        cache.add_many(["a"], [1])
        with limited_file_size(100), pytest.raises(OSError, match="File too large"):
            cache.add_many(list(many), list(many.values()))
        assert load(file).get_all() == {"a": 1}
        cache.add_many(["b"], [2])
        assert load(file).get_all() == {"a": 1} | many | {"b": 2}


def test_cache_can_be_closed_again_after_a_failed_write(path: Path) -> None:
    write(path, {"a": 1})
    before = path.read_bytes()
    cache = LengthCache.create(path, "v1")

    def fail() -> None:
        with cache:
            cache.add("b", 2)
            resource_limit.enter_context(limited_file_size(len(before) + 5))

    with contextlib.ExitStack() as resource_limit, pytest.raises(OSError, match="File too large"):
        fail()
    assert path.read_bytes() == before
    with cache:
        cache.add("b", 2)
        cache.add("c", 3)
    assert load(path).get_all() == {"a": 1, "b": 2, "c": 3}


FULL_DISK = """
import sys
from pathlib import Path
from phalanx.data import LengthCache

folder, entries = Path(sys.argv[1]), {f"s{n}": 1 + n for n in range(4000)}
for path in (folder / "l.jsonl", folder / "l.npz"):
    filler = folder / "filler"
    filler.write_bytes(bytes(200 * 1024))
    cache = LengthCache.create(path, "v1")
    with cache:
        cache.add("a", 1)
    for _ in range(2):
        try:
            with cache:
                cache.add_many(list(entries), list(entries.values()))
        except OSError as error:
            print(error.strerror, LengthCache.load(path).get_all() == {"a": 1})
    filler.unlink()
    with cache:
        pass
    print(LengthCache.load(path).get_all() == {"a": 1} | entries)
    path.unlink()
"""


def test_full_disk_loses_no_entries(tmp_path: Path) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*mount, 'mount -t tmpfs none "$1"', "sh", tmp_path], capture_output=True).returncode:
        pytest.skip("this system does not allow mounting a file system in a namespace")
    script = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1"'
    command = [*mount, script, "sh", tmp_path, sys.executable, FULL_DISK]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    expected = "No space left on device True\n" * 2 + "True\n"
    assert (ended.stderr, ended.stdout) == ("", expected * 2)
