"""Checksums detect every change and do not disturb other readers."""

import hashlib
import json

import numpy as np
import pytest

from phalanx.io.atomic import atomic_write
from phalanx.io.checksum import CorruptFileError, open_verified, read_verified, read_verified_json, write_json


def test_checksum_is_the_digest_with_zeros_for_its_digits(tmp_path):
    with atomic_write(tmp_path / "a", checksum=True) as file:
        file.write(b"content")
    data = read_verified(tmp_path / "a")
    mark = b"contentphalanx-sha256:"
    assert data == mark + hashlib.sha256(mark + b"0" * 64).hexdigest().encode()


def test_checksummed_json_is_plain_json(tmp_path):
    record = {"a": [1, 2], "text": "phalanx-sha256:" + "0" * 64}
    with atomic_write(tmp_path / "a.json", "w", checksum=True) as file:
        write_json(file, record)
    assert read_verified_json(tmp_path / "a.json") == record
    assert json.loads((tmp_path / "a.json").read_text()).keys() == {"a", "text", "sha256"}


def test_checksummed_npz_is_a_plain_npz(tmp_path):
    for values in (np.arange(5), np.frombuffer(b"phalanx-sha256:" + b"0" * 64, np.uint8)):
        with atomic_write(tmp_path / "a.npz", checksum=True) as file:
            np.savez(file, values=values)
        with open_verified(tmp_path / "a.npz"), np.load(tmp_path / "a.npz") as archive:
            np.testing.assert_array_equal(archive["values"], values)


def test_missing_and_wrong_checksums_are_rejected(tmp_path):
    (tmp_path / "a").write_bytes(b"plain")
    with pytest.raises(CorruptFileError, match=r"a is corrupt or .* it has no checksum; rebuild it"):
        read_verified(tmp_path / "a", "rebuild it")
    with atomic_write(tmp_path / "b", checksum=True) as file:
        file.write(b"content" * 100_000)
    data = (tmp_path / "b").read_bytes()
    for offset in (0, 300_000, len(data) - 100, len(data) - 70, len(data) - 1):
        (tmp_path / "b").write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(CorruptFileError, match="b is corrupt"):
            read_verified(tmp_path / "b")
