"""Test cases of the 42 operations as a table."""

import dataclasses
from typing import Any

FAR = "98989"
"""A target that no case reaches."""
MORE_DEMOS = (("5", FAR), ("66", FAR))
MORE_TESTS = (("7", FAR), ("88", FAR))
"""Value of `more` in the table: three demonstrations (pairs 0 to 2) and two tests (pairs 3 and 4)."""

# name | input of the first demonstration | steps | grid after the last step | further expectations
# A step is operation@cells: a point row,col, a box r1,c1,r2,c2, a mask #./.#, or - for an empty mask.
# Rows of masks and grids are separated by /. By default, the pair is 0 and the target is FAR.
TABLE = """
fill takes corners in any order | 111/111/111 | 2@1,2,0,1 | 122/122/111 | selected=.##/.##
fill paints one point | 000/000 | 7@1,2 | 000/007 | selected=/..#
fill paints a ragged mask | 000/000 | 3@#.#/.#. | 303/030 | selected=#.#/.#
fill with nothing selected does nothing | 000/000 | 3@- | 000/000 | selected=-
fill keeps inside the area | 00/00 | 4@1,1,5,5 | 00/04 | selected=/.#

flood fill does not cross a diagonal | 10/01 | 15@0,0 | 50/01 | selected=#
flood fill takes a box of one cell | 11/12 | 14@0,1,0,1 | 44/42
flood fill with two cells does nothing | 11/12 | 14@0,0,0,1 | 11/12 | selected=##
flood fill with nothing selected does nothing | 11/12 | 14@- | 11/12
flood fill of a point outside the area does nothing | 11/12 | 14@3,3 | 11/12 | selected=-
flood fill counts only the box's cells in the area | 11/12 | 14@1,1,2,2 | 11/14

move up | 000/120/000 | 20@1,0,1,1 | 120/000/000 | selected=##
move down | 120/000/000 | 21@0,0,0,1 | 000/120/000 | selected=/##
move left | 012/034 | 22@0,1,1,2 | 120/340 | selected=##/##
move right | 120/340 | 23@0,0,1,1 | 012/034 | selected=.##/.##
move up drops cells that leave the area | 12/34 | 20@0,0 | 02/34 | selected=-
move right loses the last column | 12/34 | 23@0,0,1,1 | 01/03 | selected=.#/.#
move overwrites other cells | 129 | 23@0,0,0,1 | 012 | selected=.##
move carries cells of color 0 | 109 | 23@0,0,0,1 | 010 | selected=.##
move of a ragged object leaves its holes alone | 1900/0100 | 23@#./.# | 0100/0010 | selected=.#/..#
move with nothing selected moves the area | 12/34 | 21@- | 00/12 | selected=/##
move of a point outside the area moves the area | 12/34 | 22@4,4 | 20/40 | selected=#/#

rotate clockwise | 12/34 | 24@0,0,1,1 | 31/42 | selected=##/##
rotate counter-clockwise | 12/34 | 25@0,0,1,1 | 24/13 | selected=##/##
rotate a row clockwise into a column | 1230/0000/0000 | 24@0,0,0,2 | 1000/2000/3000 | selected=#/#/#
rotate a row back into a column | 1230/0000/0000 | 25@0,0,0,2 | 3000/2000/1000 | selected=#/#/#
rotate a wide box clockwise | 1230/4560/0000 | 24@0,0,1,2 | 4100/5200/6300 | selected=##/##/##
rotate a wide box back | 1230/4560/0000 | 25@0,0,1,2 | 3600/2500/1400 | selected=##/##/##
rotate keeps the top left corner | 9999/9123/9999 | 24@1,1,1,3 | 9999/9100/9299 | selected=/.#/.#
rotate a ragged object | 1200/0300/0000 | 24@##/.# | 0100/3200/0000 | selected=.#/##
rotate with nothing selected turns the area | 123/456 | 24@- | 410/520 | selected=##/##

flip horizontally | 123/456 | 26@0,0,1,2 | 321/654 | selected=###/###
flip vertically | 123/456 | 27@0,0,1,2 | 456/123 | selected=###/###
flip stays in the box | 1234 | 26@0,1,0,2 | 1324 | selected=.##
flip a ragged object | 123/456 | 26@##./#.. | 213/046 | selected=##/.#
flip with nothing selected flips the area | 12/34 | 27@- | 34/12 | selected=##/##

copy remembers the object | 123/456 | 28@0,1,1,2 | 123/456 | selected=.##/.## clipboard=23/56
copy keeps holes and zeros | 103/456 | 28@.##/..# | 103/456 | clipboard=03/.6
copy with nothing selected takes the area | 12/34 | 28@- | 12/34 | selected=- clipboard=12/34

paste an object at a point | 120/340/000 | 28@0,0,1,1 29@1,1,1,1 | 120/312/034 | selected=/.#
paste at the top left of the selection | 100/000 | 28@0,0,0,0 29@1,2,0,1 | 110/000
paste is clipped to the area | 12/34 | 28@0,0,1,1 29@1,1,1,1 | 12/31 | clipboard=12/34
paste writes zeros but not holes | 100/999 | 28@#.# 29@/# | 100/190
paste with an empty clipboard does nothing | 12/34 | 29@0,0 | 12/34 | selected=# clipboard=-
paste with nothing selected does nothing | 12/34 | 28@# 29@- | 12/34
paste at a point outside the area does nothing | 12/34 | 28@0,0 29@3,3 | 12/34 | selected=-

cut remembers and clears | 123/456 | 30@0,0,1,0 | 023/056 | selected=#/# clipboard=1/4
cut with nothing selected cuts the area | 12/34 | 30@- | 00/00 | clipboard=12/34
cut then paste moves an object | 12/00 | 30@0,0,0,1 29@1,0,1,0 | 00/12

clear the selected cells | 123/456 | 31@0,1,1,1 | 103/406 | selected=.#/.#
clear with nothing selected clears the area | 12/34 | 31@- | 00/00 | selected=-

copy input restores the grid | 12/34 | 5@0,0,1,1 32@0,0,0,0 | 12/34 | selected=#
copy input restores the size | 12/34 | 33@2,2,2,2 32@2,2,2,2 | 12/34 | selected=-

resize grows | 12/34 | 33@2,3 | 1200/3400/0000 | selected=//...#
resize shrinks | 123/456/789 | 33@1,0,1,1 | 12/45 | selected=/##
resize grows one side and shrinks the other | 123/456 | 33@2,1 | 12/45/00
resize takes its width from all rows of the mask | 1 | 33@..#/#.. | 100/000 | selected=..#/#
resize with nothing selected does nothing | 12/34 | 33@- | 12/34
resize forgets what it cut off | 12/34 | 33@0,0 33@1,1 | 10/00

submit an unsolved grid | 12/34 | 34@0,0 | 12/34 | target=12/35 reward=-3.01 similarity=0.75 terminated
submit a solved grid | 12/34 | 34@0,0 | 12/34 | target=12/34 reward=14.99 similarity=1.0 terminated

next demo pair | 1 | 35@0,0 | 5 | more pair=1
next demo pair wraps around | 1 | 35@0,0 35@0,0 35@0,0 | 1 | more
next demo pair from a test is the first | 1 | 37@0,0 35@0,0 | 1 | more
next demo pair of one starts it again | 12 | 3@0,0 35@0,0 | 12
previous demo pair wraps around | 1 | 36@0,0 | 66 | more pair=2 selected=#
previous demo pair from a test is the last | 1 | 37@0,0 36@0,0 | 66 | more pair=2

next test pair from a demo is the first | 1 | 37@0,1 | 7 | more pair=3 selected=-
next test pair | 1 | 37@0,1 37@0,1 | 88 | more pair=4 selected=.#
next test pair wraps around | 1 | 37@0,1 37@0,1 37@0,1 | 7 | more pair=3
previous test pair from a demo is the last | 1 | 38@0,1 | 88 | more pair=4
previous test pair | 1 | 38@0,1 38@0,1 | 7 | more pair=3

next test pair without tests does nothing | 12 | 3@0,0 37@0,0 | 32
previous test pair without tests does nothing | 12 | 3@0,0 38@0,0 | 32

reset pair starts from the input again | 12/34 | 33@2,2 9@0,0 39@0,0 | 12/34 | selected=#
the clipboard survives a switch of pair | 1 | 28@0,0 35@0,0 29@0,0 | 1 | more pair=1

first unsolved demo pair | 1 | 35@0,0 40@0,0 | 1 | more
first unsolved demo pair from a test | 1 | 38@0,0 40@0,0 | 1 | more
first unsolved demo pair is skipped when solved at reset | 1 | 40@0,0 | 5 | target=1 more pair=1
first unsolved demo pair, all solved, does nothing | 12 | 40@0,1 | 12 | target=12 reward=14.99 terminated
first unsolved test pair | 1 | 37@0,0 37@0,0 41@0,0 | 7 | more pair=3
first unsolved test pair without tests does nothing | 12 | 3@0,0 41@0,0 | 32

a solved grid ends the episode | 12 | 3@0,0 | 32 | target=32 reward=15.49 similarity=1.0 terminated
a slow solution earns no efficiency bonus | 12 | 4@0,0 3@0,0 | 32 | target=32 reward=10.49 terminated
a better grid earns its improvement | 1111 | 3@0,0 | 3111 | target=3333 reward=0.24 similarity=0.25 running
a worse grid pays for it | 3111 | 1@0,0 | 1111 | target=3333 reward=-0.26 similarity=0.0 running
similarity counts the union of both areas | 11/11 | 33@0,3 | 1100 | target=1/1 similarity=0.2 running
after a switch similarity is the new pair's | 11 | 35@0,0 | 1234 |
    target=19 other=1234>1239 pair=1 reward=0.24 similarity=0.75
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """Steps from the input of the first demonstration, and the expected state after the last step."""

    name: str
    start: str
    steps: tuple[tuple[int, Any], ...]
    """Operations with their selections: (row, col), (r1, c1, r2, c2), or a mask as text."""
    grid: str
    target: str = FAR
    others: tuple[tuple[str, str], ...] = ()
    """Further demonstration pairs."""
    tests: tuple[tuple[str, str], ...] = ()
    selected: str | None = None
    clipboard: str | None = None
    pair: int = 0
    reward: float | None = None
    similarity: float | None = None
    ends: str | None = None
    """`terminated`, `truncated` or `running`."""
    valid: bool = True

    @property
    def format(self) -> str:
        cells = self.steps[0][1]
        return "mask" if isinstance(cells, str) else {2: "point", 4: "bbox"}[len(cells)]

    @property
    def operation(self) -> int:
        return self.steps[-1][0]


def parse_step(text: str) -> tuple[int, Any]:
    operation, cells = text.split("@")
    if "," in cells:
        return int(operation), tuple(int(number) for number in cells.split(","))
    return int(operation), cells.replace("-", "")


def parse(line: str) -> Case:
    name, start, steps, grid, extras = ([part.strip() for part in line.split("|")] + [""])[:5]
    fields: dict[str, Any] = {}
    for extra in extras.split():
        key, _, value = extra.partition("=")
        if key == "more":
            fields |= {"others": MORE_DEMOS, "tests": MORE_TESTS}
        elif key == "other":
            fields["others"] = (tuple(value.split(">")),)
        elif key in ("terminated", "running"):
            fields["ends"] = key
        elif key in ("reward", "similarity"):
            fields[key] = float(value)
        elif key == "pair":
            fields[key] = int(value)
        else:
            fields[key] = value.replace("-", "")
    return Case(name, start, tuple(parse_step(step) for step in steps.split()), grid, **fields)


def invalid(name: str, operation: int, cells: tuple[int, ...]) -> Case:
    """Expect that an action changes nothing and costs the penalty."""
    step = (operation, cells)
    return Case(name, "12", (step,), "12", selected="", reward=-1.0, ends="running", valid=False)


FILLS = [
    Case(f"fill {c} paints the box", "123/456/789", ((c, (0, 1, 1, 2)),), f"1{c}{c}/4{c}{c}/789")
    for c in range(10)
]
FLOODS = [
    Case(f"flood fill {c} paints the region", "332/232/233", ((10 + c, (0, 0)),), f"{c}{c}2/2{c}2/2{c}{c}")
    for c in range(10)
]
BAD_IDS = (-1, 42, 99, 2**31 - 1, -(2**31))
BAD_POINTS = ((-1, 0), (0, -1), (6, 0), (0, 6), (2**31 - 1, 0), (0, -(2**31)))
BAD_BOXES = (
    *((-1, 0, 0, 0), (0, -1, 0, 0), (0, 0, -1, 0), (0, 0, 0, -1)),
    *((6, 0, 0, 0), (0, 6, 0, 0), (0, 0, 6, 0), (0, 0, 0, 6)),
)

CASES = [
    *FILLS,
    *FLOODS,
    *[parse(line) for line in TABLE.replace("|\n    ", "| ").strip().splitlines() if line],
    *[invalid(f"operation {operation} is invalid", operation, (0, 1)) for operation in BAD_IDS],
    *[invalid(f"point {point} is invalid", 3, point) for point in BAD_POINTS],
    *[invalid(f"box {box} is invalid", 3, box) for box in BAD_BOXES],
]
