"""The calls that users of chuk-lazarus know: they give something here, and beside it what they should."""

import os
from pathlib import Path
from types import SimpleNamespace

import compare_lazarus
import pytest
from lazarus_cases import cases

REFUSED = compare_lazarus.REFUSED | {
    "overlong sample packed",
    "unequal loss mask",
    "default_collate too long",
}


def test_every_call_gives_something_or_is_refused_on_purpose() -> None:
    told = {name: compare_lazarus.outcome(case, *compare_lazarus.own_modules()) for name, case in cases()}
    assert {name for name, found in told.items() if "raises" in found} == REFUSED
    assert len(told) > 40 and compare_lazarus.DIFFERENCES.keys() <= told.keys()


def test_a_name_or_member_that_is_nowhere_is_seen() -> None:
    class Known:
        def method(self) -> None: ...

        def other(self) -> None: ...

    class Mine:
        def method(self) -> None: ...

    there = SimpleNamespace(__name__="a.there", __all__=["Known", "Gone"], Known=Known, Gone=Known)
    found = list(compare_lazarus.names((there,), (SimpleNamespace(Known=Mine),)))
    assert [(one["name"], one["here"], one.get("absent")) for one in found] == [
        ("there.Known", "yes", ["other"]),
        ("there.Gone", "missing", None),
    ]


def test_side_by_side_nothing_differs_but_on_purpose() -> None:
    folder = os.environ.get("PHALANX_LAZARUS")
    if not folder:
        pytest.skip("PHALANX_LAZARUS names no folder with chuk-lazarus")
    peers, ours = compare_lazarus.load_peer(Path(folder)), compare_lazarus.own_modules()
    assert not [
        one for one in compare_lazarus.names(peers, ours) if one["here"] == "missing" or one.get("absent")
    ]
    differ = {
        name
        for name, case in cases()
        if name not in compare_lazarus.REFUSED
        and compare_lazarus.outcome(case, *peers) != compare_lazarus.outcome(case, *ours)
    }
    assert differ == compare_lazarus.DIFFERENCES.keys()
