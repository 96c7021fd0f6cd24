"""An environment plays the episodes that were recorded for its version, on all its engines."""

import dataclasses

import pytest

from phalanx.native import is_native_available, native_unavailable_reason
from phalanx.registry import EnvSpec
from tests.helpers.corridor import Corridor
from tests.helpers.recorded_episodes import COMMAND, ENGINES, cases_of, digest, own_environments, read, record

pytestmark = pytest.mark.slow

RECORDINGS = [
    (found, case, engine)
    for found in own_environments()
    for case in cases_of(found)
    for engine in ENGINES.get(found.name, ("",))
]


@pytest.mark.parametrize(
    ("found", "case", "engine"),
    [pytest.param(*one, id=f"{one[0].id}-{one[1]}-{one[2]}") for one in RECORDINGS],
)
def test_episodes_change_only_with_the_version(found: EnvSpec, case: str, engine: str) -> None:
    if engine == "native" and not is_native_available():
        pytest.skip(native_unavailable_reason())
    recorded = read().get(found.id, {}).get(case)
    assert recorded is not None, f"nothing is recorded for {found.id} ({case}); record it: {COMMAND}"
    environment = found.make(**cases_of(found)[case], **({"backend": engine} if engine else {}))
    assert digest(environment) == recorded, (
        f"{found.id} ({case}, {engine}) no longer plays the episodes that are recorded for it. If this is so "
        f"by intent, raise {type(environment).__name__}.version to {environment.version + 1}, register it as "
        f"'{found.name}-v{environment.version + 1}' in phalanx/core/registry.py, and record anew: {COMMAND}"
    )


def test_recorded_environments_still_exist() -> None:
    assert list(read()) == [found.id for found in own_environments()], f"record anew: {COMMAND}"


def test_changed_behavior_changes_the_digest_and_needs_a_new_version() -> None:
    found = EnvSpec("corridor-v1", Corridor)
    known = record([found], {})
    assert record([found], known) == known
    shorter = dataclasses.replace(found, entry_point=lambda: Corridor(max_steps=11))
    with pytest.raises(SystemExit, match=r"corridor-v1 no longer plays .* raise its environment's version"):
        record([shorter], known)
    second = type("SecondCorridor", (Corridor,), {"version": 2})
    newer = dataclasses.replace(found, id="corridor-v2", entry_point=lambda: second(max_steps=11))
    assert record([newer], known)["corridor-v2"] != known["corridor-v1"]
