"""Phalanx: puzzles with the text that asks for them and the answer that solves them, as their items are."""

import argparse
import itertools

from protocol import serve

from phalanx.puzzles import PuzzleVectorEnvironment, puzzle_kind

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--difficulty", required=True, help="or parameters with commas")
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    kind, difficulty = puzzle_kind(arguments.kind), arguments.difficulty
    if difficulty not in kind.difficulties:
        numbers = map(int, difficulty.split(","))
        own = {difficulty: dict(zip(kind.difficulties["hard"], numbers, strict=True))}
        kind = type("Own", (type(kind),), {"difficulties": own})()
    batch = PuzzleVectorEnvironment(kind, difficulty, turns="single")
    starts = itertools.count(0, BATCH)

    def call() -> None:
        first = next(starts)
        texts = batch.reset(range(first, first + BATCH))
        answers = [environment.expert_actions() for environment in batch.environments]
        assert all(texts)
        assert all(answers)

    serve(call, BATCH, arguments.seconds)


if __name__ == "__main__":
    main()
