"""An environment plays the episodes that were recorded for its version, on all its engines."""

import pytest

from phalanx import registry
from phalanx.native import is_native_available, native_unavailable_reason
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
def test_episodes_change_only_with_the_version(
    found: registry.RegisteredEnvironment, case: str, engine: str
) -> None:
    if engine == "native" and not is_native_available():
        pytest.skip(native_unavailable_reason())
    recorded = read().get(found.id, {}).get(case)
    assert recorded is not None, f"nothing is recorded for {found.id} ({case}); record it: {COMMAND}"
    environment = registry.make(found.id, **cases_of(found)[case], **({"backend": engine} if engine else {}))
    assert digest(environment) == recorded, (
        f"{found.id} ({case}, {engine}) no longer plays the episodes that are recorded for it. If this is so "
        f"by intent, register it as '{found.name}-v{found.version + 1}' and record anew: {COMMAND}"
    )


def test_recorded_environments_still_exist() -> None:
    assert list(read()) == [found.id for found in own_environments()], f"record anew: {COMMAND}"


class Shorter(Corridor):
    max_episode_steps: int = 11


def test_changed_behavior_changes_the_digest_and_needs_a_new_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(id: str, environment: type[Corridor]) -> registry.RegisteredEnvironment:
        registry._registered[id] = registry.RegisteredEnvironment(id, environment)
        return registry._registered[id]

    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    found = register("corridor-v1", Corridor)
    known = record([found], {})
    assert record([found], known) == known
    register("corridor-v1", Shorter)
    with pytest.raises(SystemExit, match=r"corridor-v1 no longer plays .* under the next version"):
        record([found], known)
    newer = register("corridor-v2", Shorter)
    assert record([newer], known)["corridor-v2"] != known["corridor-v1"]
