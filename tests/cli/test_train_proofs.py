"""`phalanx train ppo --env proofs`, as a user runs it."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from phalanx import load_policy
from phalanx.kg.atoms import parse_atom
from phalanx.kg.family_generator import RULES, generate_family

pytestmark = pytest.mark.slow

RELATIONS = {atom.predicate for rule in RULES for atom in (*rule.body, rule.head)}

SMALL = [
    "env.max_actions=8",
    "env.max_goals=3",
    "env.max_episode_steps=4",
    "network.hidden_dim=4",
    "network.num_layers=1",
    "num_envs=8",
    "num_steps=4",
    "num_updates=1",
    "update_epochs=1",
    "num_minibatches=2",
    "evaluation.every=0",
    "evaluation.max_positives=6",
    "logging.log_frequency=1",
    "logging.sample_frequency=1",
    "logging.num_samples=2",
]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def kin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small knowledge base in a folder."""
    folder = tmp_path_factory.mktemp("knowledge") / "kin"
    (generate_family(2, 3)).save(folder)
    return folder


def test_run_on_files_is_trained_rendered_reported_resumed_and_loaded(
    phalanx: Callable[..., Any], tmp_path: Path, kin: Path
) -> None:
    out = tmp_path / "run"
    done = phalanx("train", "ppo", "--env=proofs", f"env.dataset={kin}", *SMALL, "--out", out)
    assert done.code == 0, done.err
    assert "WARNING" not in done.out + done.err
    assert (
        done.out.strip().splitlines()[-1]
        == f"Run {out}, report {out}/report.html, checkpoint {out}/checkpoints"
    )
    facts = json.loads((out / "run.json").read_text())
    assert (facts["algorithm"], facts["dataset"], facts["status"]) == ("ppo", "kin", "finished")
    assert facts["training_queries"][0] < facts["facts"]
    first, last = lines_of(out / "evaluations.jsonl")
    assert (first["step"], last["step"], last["episodes"]) == (0, 1, 12)
    assert last["groups"]["corrupted"] == {"episodes": 6, "success_rate": 1.0}
    pictures = sorted((out / "episodes").glob("*/initial.svg"))
    assert len(pictures) == 2
    assert "</svg>" in pictures[0].read_text()

    names = [line["task_id"].removeprefix("not ") for line in lines_of(out / "episodes.jsonl")]
    assert len(names) == 2
    assert all(parse_atom(name).predicate in RELATIONS for name in names)

    # Nothing is left to do, but the run is found, read and reported as before.
    done = phalanx("train", "ppo", "--out", out, "--resume")
    assert done.code == 0, done.err
    assert "Finished after 1 updates, 32 steps" in done.out
    policy = load_policy(out)
    assert policy.config.env.settings.dataset == str(kin)
    assert policy.network.embed_states(jnp.zeros((2, 3, 3), jnp.int32)).tolist() == [[0.0] * 4] * 2

    few = ("max_queries=2", "beam.beam_width=2")
    result = phalanx("eval", out, "--untrained", "--split", "validation", *few, "--json")
    assert result.code == 0, result.err
    record = json.loads(result.out)
    assert (record["untrained"], record["split"], record["mode"]) == (True, "valid", "policy")
    # The same knowledge base with its queries exchanged, and one of other people.
    base = generate_family(2, 3)
    dataclasses.replace(base, valid=base.test, test=base.valid, split_depths={}).save(tmp_path / "again")
    other = phalanx("eval", out, "--untrained", f"dataset={tmp_path / 'again'}", *few, "--json")
    assert other.code == 0, other.err
    assert json.loads(other.out)["mrr"] == record["mrr"]
    (generate_family(3, 3, seed=5)).save(tmp_path / "strangers")
    refused = phalanx("eval", out, f"dataset={tmp_path / 'strangers'}", *few)
    assert (refused.code, "is in only one of them" in refused.err) == (2, True)
    exact = phalanx("eval", out, f"dataset={tmp_path / 'strangers'}", "mode=exact", *few)
    assert (exact.code, "test, " in exact.out) == (0, True)
    lacking = phalanx("eval", out, "mode=kge", f"kge={tmp_path / 'nowhere'}", *few)
    assert lacking.code == 2
    assert "nowhere" in lacking.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env.dataset=/nowhere"], "/nowhere"),
        (["--config=proofs_famly"], "did you mean 'proofs_family'?"),
        (["env.max_action=3"], "did you mean 'env.max_actions'?"),
        (["--resume"], "--resume requires --out"),
        (["env.queries.min_depth=9"], "no query matches min_depth=9"),
    ],
)
def test_invalid_arguments_exit_with_one_line_and_code_2(
    phalanx: Callable[..., Any], arguments: list[str], message: str, kin: Path
) -> None:
    done = phalanx("train", "ppo", "--env=proofs", f"env.dataset={kin}", *arguments)
    assert done.code == 2
    # On a slow machine, lines about the progress of long work come first.
    lines = done.err.strip().splitlines()
    assert message in lines[-1]
    assert [line for line in lines if not re.fullmatch(r".* \(\d+ s\)", line)] == lines[-1:]
