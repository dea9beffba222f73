"""The loss curve of a training run as a PNG, without a plotting library.

    python -m training.plot_loss RUN/log.jsonl training/results/loss.png

Across: minutes. Up: cross entropy in nats a learned token, on a logarithmic scale. Grey: experts used as INT4 stores
them. A line from top to bottom: a run that went on from the one before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 884, 14, 384
LINES = (0.1, 0.2, 0.5, 1, 2, 5, 10)
WHITE, LIGHT, GREY, BLACK, BLUE = 0, 1, 2, 3, 4  # places in the palette
PALETTE = bytes((255, 255, 255, 236, 238, 242, 205, 208, 214, 60, 60, 60, 20, 90, 200))
# Three by five dots a sign, a row an octal digit.
SIGNS = {
    "0": 0o75557, "1": 0o26227, "2": 0o71747, "3": 0o71717, "4": 0o55711, "5": 0o74717, "6": 0o74757, "7": 0o71111,
    "8": 0o75757, "9": 0o75717, ".": 0o00002,
}  # fmt: skip
DOT = 2


class Point(NamedTuple):
    """One line of the log."""

    minutes: float
    loss: float
    int4: bool
    run: int  # of runs that went on from each other


def read(log: Path) -> list[Point]:
    """Return the points of a log; a run that went on from another one counts its minutes on."""
    found: list[Point] = []
    began, last, run = 0.0, 0.0, 0
    for row in map(json.loads, log.read_text().splitlines()):
        if "loss" not in row:
            continue
        if row["seconds"] < last:
            began, run = began + last, run + 1
        last = row["seconds"]
        found.append(Point((began + last) / 60, row["loss"], row["int4"], run))
    return found


class Picture:
    """Dots with a few colours."""

    def __init__(self) -> None:
        self.rows = [bytearray(WIDTH) for _ in range(HEIGHT)]

    def fill(self, x: range, y: range, colour: int) -> None:
        """Paint a rectangle."""
        for at in y:
            self.rows[at][x.start : x.stop] = bytes([colour]) * len(x)

    def write(self, text: str, x: int, y: int) -> None:
        """Write digits; (x, y) is the left upper corner."""
        for number, sign in enumerate(text):
            bits = SIGNS[sign]
            for at in range(15):
                if bits >> (14 - at) & 1:
                    left, top = x + DOT * (4 * number + at % 3), y + DOT * (at // 3)
                    self.fill(range(left, left + DOT), range(top, top + DOT), BLACK)

    def png(self) -> bytes:
        """Return the file."""
        pixels = zlib.compress(b"".join(b"\0" + row for row in self.rows), 9)
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)  # eight bits a pixel, from a palette
        parts = ((b"IHDR", header), (b"PLTE", PALETTE), (b"IDAT", pixels), (b"IEND", b""))
        chunks = (struct.pack(">I", len(b)) + a + b + struct.pack(">I", zlib.crc32(a + b)) for a, b in parts)
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def draw(points: list[Point]) -> bytes:
    """Return the picture of a curve."""
    longest = points[-1].minutes
    low = math.log(min(p.loss for p in points) * 0.9)
    high = math.log(max(p.loss for p in points) * 1.1)

    def column(minutes: float) -> int:
        return LEFT + round((RIGHT - LEFT) * minutes / longest)

    def row(loss: float) -> int:
        return BOTTOM - round((BOTTOM - TOP) * (math.log(loss) - low) / (high - low))

    picture = Picture()
    for before, after in itertools.pairwise(points):
        if after.int4:
            picture.fill(range(column(before.minutes), column(after.minutes)), range(TOP, BOTTOM), LIGHT)
    for before, after in itertools.pairwise(points):
        if after.run != before.run:
            picture.fill(range(column(before.minutes), column(before.minutes) + 1), range(TOP, BOTTOM), BLACK)
    for loss in LINES:
        if low < math.log(loss) < high:
            picture.fill(range(LEFT, RIGHT), range(row(loss), row(loss) + 1), GREY)
            picture.write(f"{loss:g}", 16, row(loss) - 5)
    for minute in range(0, math.floor(longest) + 1, max(1, round(longest / 10))):
        picture.fill(range(column(minute), column(minute) + 1), range(BOTTOM, BOTTOM + 6), BLACK)
        picture.write(str(minute), column(minute) - 3, BOTTOM + 12)
    picture.fill(range(LEFT, RIGHT), range(BOTTOM, BOTTOM + 1), BLACK)
    for here, there in itertools.pairwise([(column(p.minutes), row(p.loss)) for p in points]):
        _stroke(picture, here, there)
    return picture.png()


def _stroke(picture: Picture, here: tuple[int, int], there: tuple[int, int]) -> None:
    """Draw a line two dots wide."""
    steps = max(abs(there[0] - here[0]), abs(there[1] - here[1]), 1)
    for step in range(steps + 1):
        x = here[0] + round((there[0] - here[0]) * step / steps)
        y = here[1] + round((there[1] - here[1]) * step / steps)
        picture.fill(range(x, x + 2), range(y, y + 2), BLUE)


def main() -> None:
    """Draw a log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("picture", type=Path)
    given = parser.parse_args()
    given.picture.write_bytes(draw(read(given.log)))


if __name__ == "__main__":
    main()
