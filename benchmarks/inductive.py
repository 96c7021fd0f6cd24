"""Inductive transfer: rules mined on one graph rank another with new entities, one JSON line for each pair.

Hits@10 among 50 random negatives of either side, as GraIL reports it. Settings were chosen on validation.

python benchmarks/inductive.py --data data/kg-standard/inductive --split test
"""

import argparse
import json
import pathlib
import sys
import time
from typing import Any

from measuring.conditions import conditions

from phalanx.kg import MiningConfig, evaluate_inductive, mine_rules
from phalanx.kg.knowledge_base import KnowledgeBase

GRAIL = {
    "wn18rr_v1": 0.8245, "wn18rr_v2": 0.7868, "wn18rr_v3": 0.5843, "wn18rr_v4": 0.7341,
    "fb237_v1": 0.6415, "fb237_v2": 0.8180, "fb237_v3": 0.8283, "fb237_v4": 0.8929,
}  # fmt: skip
"""Teru, Denis and Hamilton, 2020 (Inductive relation prediction by subgraph reasoning), Hits@10."""


def measured(folder: pathlib.Path, name: str, split: str, seed: int) -> dict[str, Any]:
    """Mine `name`, rank the queries of `name_ind` by rules alone and with roles."""
    source, target = (KnowledgeBase.load(folder / part, on_leak="allow") for part in (name, f"{name}_ind"))
    begin = time.process_time()
    length = 5 if name.startswith("wn") else 3
    config = MiningConfig(
        max_length=length, constant_rules=False, min_confidence=0.0005, confidence_smoothing=2
    )
    rules = mine_rules(source, config)
    alone = evaluate_inductive(rules, source, target, split, "noisyor", role_weights=(0.0,), seed=seed)
    both = evaluate_inductive(rules, source, target, split, "noisyor", seed=seed)
    return {
        "benchmark": "inductive",
        "pair": name,
        "split": split,
        "seed": seed,
        "rules": both.num_rules,
        "hits@10_rules_alone": alone.result.total.hits[10],
        "role_weight": both.role_weight,
        **both.result.total.as_record(),
        "random": 10 / 51,
        "bar": GRAIL[name],
        "holds": both.result.total.hits[10] > GRAIL[name],
        "cpu_seconds": round(time.process_time() - begin, 1),
    }


def main() -> None:
    """Print a JSON line for each pair; exit code 1 where one is not above GraIL."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True, help="the folder of the pairs")
    parser.add_argument("--split", choices=("valid", "test"), default="valid")
    parser.add_argument("--only", action="append", help="this pair; may be given again")
    parser.add_argument("--seed", type=int, default=0, help="of the negatives")
    arguments = parser.parse_args()
    missed = False
    for name in arguments.only or GRAIL:
        record = measured(arguments.data, name, arguments.split, arguments.seed)
        print(json.dumps({**record, **conditions("numpy")}), flush=True)
        missed |= not record["holds"]
    sys.exit(missed)


if __name__ == "__main__":
    main()
