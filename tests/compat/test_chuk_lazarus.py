"""Names and calls of chuk-lazarus in the compatibility layer."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.compat import chuk_lazarus_comparison as comparison
from tests.compat.chuk_lazarus_cases import cases

RAISES = comparison.REFUSED | {"overlong sample packed", "unequal loss mask", "default_collate too long"}


def test_all_calls_work_except_those_that_should_raise() -> None:
    results = {name: comparison.outcome(case, *comparison.own_modules()) for name, case in cases()}
    assert {name for name, result in results.items() if "raises" in result} == RAISES
    assert len(results) > 40 and comparison.DIFFERENCES.keys() <= results.keys()


def test_missing_names_and_members_are_found() -> None:
    class Known:
        def method(self) -> None: ...

        def other(self) -> None: ...

    class Mine:
        def method(self) -> None: ...

    there = SimpleNamespace(__name__="a.there", __all__=["Known", "Gone"], Known=Known, Gone=Known)
    found = list(comparison.names((there,), (SimpleNamespace(Known=Mine),)))
    assert [(one["name"], one["here"], one.get("absent")) for one in found] == [
        ("there.Known", "yes", ["other"]),
        ("there.Gone", "missing", None),
    ]


def test_results_equal_those_of_chuk_lazarus_except_for_intended_differences() -> None:
    folder = os.environ.get("PHALANX_LAZARUS")
    if not folder:
        pytest.skip("set PHALANX_LAZARUS to a folder with chuk-lazarus")
    peers, ours = comparison.load_peer(Path(folder)), comparison.own_modules()
    names = list(comparison.names(peers, ours))
    assert not [one for one in names if one["here"] == "missing" or one.get("absent")]
    different = {
        name
        for name, case in cases()
        if name not in comparison.REFUSED
        and comparison.outcome(case, *peers) != comparison.outcome(case, *ours)
    }
    assert different == comparison.DIFFERENCES.keys()
