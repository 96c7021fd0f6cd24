"""Atomic writes, append-only files, checksums, folder locks, archives, downloads and worker pools."""

from phalanx.io.archive import unpack as unpack
from phalanx.io.atomic import atomic_directory as atomic_directory, atomic_write as atomic_write
from phalanx.io.checksum import (
    CorruptFileError as CorruptFileError,
    open_verified as open_verified,
    read_verified_json as read_verified_json,
    write_json as write_json,
)
from phalanx.io.download import fetch as fetch
from phalanx.io.lock import lock_folder as lock_folder
from phalanx.io.untrusted import read_json as read_json
from phalanx.io.yaml_files import read_yaml as read_yaml
