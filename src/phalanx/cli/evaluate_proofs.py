"""`phalanx eval` of a prover or an embedding: how well it ranks true triples among corruptions.

How is in `phalanx.agents.proof_evaluation`.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phalanx.cli.errors import user_errors

if TYPE_CHECKING:
    from phalanx.agents.proof_evaluation import RankingMode
    from phalanx.agents.proof_training import ProofTrainingConfig
    from phalanx.proofs.vocabulary import IndexManager


def evaluate_run(
    run: Path,
    kind: str,
    mode: "RankingMode",
    *,
    kge: Path | None,
    untrained: bool,
    split: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Rank a split's queries and print what came of it."""
    from phalanx.agents.proof_evaluation import ProofRanking, RankingConfig, evaluate_proofs
    from phalanx.agents.proof_training import read_data
    from phalanx.core.config import load_config

    began = time.perf_counter()
    with user_errors():
        config = _config(run, kind)
        data, index = read_data(config)
        ranking = ProofRanking.create(data, index, config.proofs, load_config(RankingConfig, None, settings))
        embedding = None if mode in ("rl", "exact") else _embedding(run, kind, kge, index)
        policy = (
            _policy(run, config, untrained) if kind == "proofs" and mode not in ("kge", "exact") else None
        )
        if kind == "kge" and mode == "rl":
            raise ValueError(f"{run} is an embedding and has no policy; --mode kge, hybrid, learned or exact")
        result = evaluate_proofs(mode, ranking, policy=policy, kge=embedding, split=split)
    seconds = time.perf_counter() - began
    if as_json:
        about = {"run": str(run), "dataset": data.dataset, "mode": mode, "untrained": untrained}
        record = {**about, "split": split, **result.as_record(), "seconds": round(seconds, 1)}
        typer.echo(json.dumps(record))
        return
    typer.echo(f"{data.dataset}, {split}, {mode}{', untrained' if untrained else ''} ({seconds:.0f} s)")
    typer.echo(result.describe())


def _config(run: Path, kind: str) -> "ProofTrainingConfig":
    """What a prover was trained with; an embedding's names its knowledge base only."""
    from phalanx.agents.kge_training import KGETrainingConfig
    from phalanx.agents.proof_training import ProofTrainingConfig
    from phalanx.agents.runs import read_config

    if kind == "proofs":
        return read_config(run, ProofTrainingConfig)
    return ProofTrainingConfig(dataset=read_config(run, KGETrainingConfig).dataset)


def _embedding(run: Path, kind: str, kge: Path | None, index: "IndexManager") -> Any:
    from phalanx.agents.kge_training import MODEL
    from phalanx.proofs.kge_files import load_kge

    folder = kge or (run if kind == "kge" else None)
    if folder is None:
        raise ValueError("this mode needs an embedding: give --kge, a run of `phalanx train kge`")
    return load_kge(folder / MODEL if (folder / MODEL).is_dir() else folder, index)


def _policy(run: Path, config: "ProofTrainingConfig", untrained: bool) -> Any:
    from phalanx.agents.proof_training import load_proof_policy, untrained_policy

    return untrained_policy(config) if untrained else load_proof_policy(run)[1]
