"""What the two trainers of `compare_kge` are asked for, and how they answer: one JSON line at the end.

Standard library only, since every peer has its own virtual environment.
"""

import argparse
import pathlib

SPLITS = ("train", "valid", "test")


def parse_arguments(description: str) -> argparse.Namespace:
    """A data set, a model and how long it is trained."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=pathlib.Path, required=True, help="a folder with train.txt and valid.txt"
    )
    parser.add_argument("--model", choices=("complex", "distmult", "transe"), required=True)
    parser.add_argument("--dim", type=int, required=True, help="real numbers of an entity")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="Adam's, constant")
    parser.add_argument("--negatives", type=int, required=True, help="0: all entities are candidates")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
