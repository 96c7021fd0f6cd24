"""Brute-force solution counts that use only the rules, the puzzle data and, for knights, the rules text."""

import itertools
import re
from collections.abc import Iterator

from phalanx.puzzles import Puzzle


def latin_solutions(puzzle: Puzzle, box: tuple[int, int] | None) -> int:
    """Count the solutions of sudoku (with boxes) or futoshiki (without) by backtracking."""
    n, grid = puzzle.size, list(puzzle.given)
    less = [] if box else list(zip(puzzle.clues[::2], puzzle.clues[1::2], strict=True))

    def fits(cell: int, value: int) -> bool:
        row, column = divmod(cell, n)
        for other in range(n * n):
            if other == cell or grid[other] != value:
                continue
            r, c = divmod(other, n)
            in_box = box and (r // box[0], c // box[1]) == (row // box[0], column // box[1])
            if r == row or c == column or in_box:
                return False
        return all(not (grid[a] and grid[b]) or grid[a] < grid[b] for a, b in less)

    def count(cell: int) -> int:
        if cell == n * n:
            return int(all(grid[a] < grid[b] for a, b in less))
        if puzzle.given[cell]:
            return count(cell + 1) if fits(cell, grid[cell]) else 0
        total = 0
        for value in range(1, n + 1):
            grid[cell] = value
            if fits(cell, value):
                total += count(cell + 1)
        grid[cell] = 0
        return total

    return count(0)


def binary_solutions(puzzle: Puzzle) -> int:
    """Combine all rows that satisfy the rules and givens, then check the columns."""
    n = puzzle.size

    def is_line(line: tuple[int, ...]) -> bool:
        text = "".join(map(str, line))
        return line.count(1) == n // 2 and "111" not in text and "222" not in text

    lines = [line for line in itertools.product((1, 2), repeat=n) if is_line(line)]
    rows = [
        [line for line in lines if all(puzzle.given[r * n + c] in (0, line[c]) for c in range(n))]
        for r in range(n)
    ]
    return sum(
        all(map(is_line, zip(*board, strict=True)))
        and len(set(board)) == n
        and len(set(zip(*board, strict=True))) == n
        for board in itertools.product(*rows)
    )


def _runs(line: tuple[int, ...]) -> list[int]:
    return [len(run) for run in re.findall("1+", "".join(map(str, line)))]


def nonogram_solutions(puzzle: Puzzle) -> int:
    """Combine all rows with the required runs, then check the columns."""
    n, slots = puzzle.size, (puzzle.size + 1) // 2
    clues = [[x for x in puzzle.clues[at * slots : (at + 1) * slots] if x] for at in range(2 * n)]
    lines = list(itertools.product((0, 1), repeat=n))
    rows = [[line for line in lines if _runs(line) == clue] for clue in clues[:n]]
    return sum(
        [_runs(column) for column in zip(*board, strict=True)] == clues[n:]
        for board in itertools.product(*rows)
    )


def hitori_solutions(puzzle: Puzzle) -> int:
    """Enumerate shadings without neighbors, then check the numbers and connectivity."""
    n = puzzle.size

    def shadings(cell: int, shaded: frozenset[int]) -> Iterator[frozenset[int]]:
        if cell == n * n:
            yield shaded
            return
        yield from shadings(cell + 1, shaded)
        if cell - n not in shaded and not (cell % n and cell - 1 in shaded):
            yield from shadings(cell + 1, shaded | {cell})

    def is_right(shaded: frozenset[int]) -> bool:
        white = [cell for cell in range(n * n) if cell not in shaded]
        for a, b in itertools.combinations(white, 2):
            if puzzle.given[a] == puzzle.given[b] and (a // n == b // n or a % n == b % n):
                return False
        seen, queue = {white[0]}, [white[0]]
        for cell in queue:
            adjacent = [cell - n, cell + n] + [cell - 1] * (cell % n > 0) + [cell + 1] * (cell % n < n - 1)
            for other in adjacent:
                if 0 <= other < n * n and other not in shaded and other not in seen:
                    seen.add(other)
                    queue.append(other)
        return len(seen) == len(white)

    return sum(map(is_right, shadings(0, frozenset())))


def bridges_solutions(puzzle: Puzzle) -> int:
    """Enumerate the number of bridges on every pair of islands that see each other."""
    n = puzzle.size
    islands = [cell for cell, number in enumerate(puzzle.given) if number]
    pairs = []
    for a, b in itertools.combinations(islands, 2):
        if a // n == b // n or a % n == b % n:
            between = list(range(a, b, 1 if a // n == b // n else n))[1:]
            if not any(cell in islands for cell in between):
                pairs.append((a, b, between))
    total = 0
    for counts in itertools.product(range(3), repeat=len(pairs)):
        degrees, covered, crossed, part = dict.fromkeys(islands, 0), set(), False, {i: {i} for i in islands}
        for (a, b, between), count in zip(pairs, counts, strict=True):
            degrees[a] += count
            degrees[b] += count
            if count:
                crossed |= any(cell in covered for cell in between)
                covered.update(between)
                union = part[a] | part[b]
                part |= dict.fromkeys(union, union)
        if all(degrees[i] == puzzle.given[i] for i in islands) and not crossed:
            total += len(part[islands[0]]) == len(islands)
    return total


def knights_solutions(rules: str) -> int:
    """Enumerate all assignments and check them against the sentences."""
    said = dict(re.findall(r"^(\w+) says: (.*)\.$", rules, re.MULTILINE))

    def holds(text: str, knights: set[str]) -> bool:
        def one(part: str) -> bool:
            name, kind = re.fullmatch(r"(\w+) is a (knight|knave)", part).groups()  # type: ignore[union-attr]
            return (name in knights) == (kind == "knight")

        if found := re.fullmatch(r"exactly (\d) of the \d of us (?:are knights|is a knight)", text):
            return len(knights) == int(found[1])
        if found := re.fullmatch(r"(\w+) and (\w+) are of the same kind", text):
            return (found[1] in knights) == (found[2] in knights)
        if found := re.fullmatch(r"if (.*), then (.*)", text):
            return not one(found[1]) or one(found[2])
        if found := re.fullmatch(r"(.*) or (.*), or both", text):
            return one(found[1]) or one(found[2])
        return all(one(part) for part in text.split(" and "))

    ways = itertools.chain.from_iterable(itertools.combinations(said, k) for k in range(len(said) + 1))
    return sum(
        all(holds(text, set(way)) == (speaker in way) for speaker, text in said.items()) for way in ways
    )


def fewest_presses(lights: tuple[int, ...], n: int) -> int:
    """Enumerate every set of presses."""
    best = n * n + 1
    for presses in itertools.product((0, 1), repeat=n * n):
        state = list(lights)
        for cell, pressed in enumerate(presses):
            row, column = divmod(cell, n)
            for r, c in (
                (row, column),
                (row - 1, column),
                (row + 1, column),
                (row, column - 1),
                (row, column + 1),
            ):
                if pressed and 0 <= r < n and 0 <= c < n:
                    state[r * n + c] ^= 1
        if not any(state):
            best = min(best, sum(presses))
    return best


def fewest_pushes(board: str) -> int:
    """Search a drawn sokoban board breadth first; steps cost nothing and pushes cost one."""
    rows = [line.split() for line in board.splitlines()]
    at = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}
    goals = {place for place, sign in at.items() if sign in ".*+"}
    boxes = frozenset(place for place, sign in at.items() if sign in "$*")
    [player] = [place for place, sign in at.items() if sign in "@+"]
    level, seen, pushes = [(player, boxes)], {(player, boxes)}, 0
    while level:
        further = []
        for (row, column), boxes in level:
            if boxes <= goals:
                return pushes
            for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                ahead, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
                if at[ahead] == "#" or (ahead in boxes and (at[beyond] == "#" or beyond in boxes)):
                    continue
                pushed = ahead in boxes
                state = (ahead, boxes - {ahead} | {beyond} if pushed else boxes)
                if state not in seen:
                    seen.add(state)
                    (further if pushed else level).append(state)
        level, pushes = further, pushes + 1
    raise AssertionError("the board cannot be solved")
