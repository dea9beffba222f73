"""Tiny images of coloured shapes, described in words: does the vision tower see anything at all?

An image is a spec, small enough for a message: {"type": "image", "shapes": [{"shape", "color", "size", "row",
"column"}, ...]}. `draw` turns it into 84 x 84 RGB bytes: a grid of 3 x 3 cells of 28 pixels, each exactly one token of
a tower with patches of 14 and 2 x 2 merging, and at most one shape in a cell, on white. `png` wraps the bytes for an
API. Questions (MIX): describe the image, what is in a cell, which color, how many. Knob: MAX_SHAPES.

The sample's user turn has content parts, so it is learned by the vision run only: the function is called `image_sample`
and not `train_sample`, by which the text mixture finds its domains.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from training.dice import between, weighted
from training.output import answer_of
from training.sample import Item, Message, Sample, held_out

DOMAIN = "shapes"
MIX = {"describe": 0.5, "place": 0.2, "color": 0.15, "count": 0.15}
MAX_SHAPES = 3
CELL = 28
GRID = 3
WIDTH = HEIGHT = CELL * GRID
COLORS = {
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 70, 220),
    "yellow": (240, 210, 40),
    "purple": (140, 50, 170),
    "black": (20, 20, 20),
}
BACKGROUND = (255, 255, 255)
SHAPES = ("square", "circle", "triangle", "cross")
SIZES = {"small": 7, "large": 13}  # half the width, in pixels
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
NUMBERS = ("no", "one", "two", "three", "four", "five")

Shape = Mapping[str, Any]


# --- drawing ----------------------------------------------------------------------------------------------------------


def _covers(shape: str, half: int, dx: int, dy: int) -> bool:
    """Whether a pixel at this distance from the middle of its cell belongs to the shape."""
    if shape == "square":
        return max(abs(dx), abs(dy)) <= half
    if shape == "circle":
        return dx * dx + dy * dy <= half * half
    if shape == "triangle":  # point up
        return abs(dy) <= half and 2 * abs(dx) <= dy + half
    return min(abs(dx), abs(dy)) <= half // 3 and max(abs(dx), abs(dy)) <= half


def draw(spec: Mapping[str, Any]) -> tuple[int, int, bytes]:
    """Return width, height and RGB bytes, row by row from the top left."""
    pixels = bytearray(bytes(BACKGROUND) * (WIDTH * HEIGHT))
    for shape in spec["shapes"]:
        color, half = bytes(COLORS[shape["color"]]), SIZES[shape["size"]]
        middle_x, middle_y = shape["column"] * CELL + CELL // 2, shape["row"] * CELL + CELL // 2
        for dy in range(-half, half + 1):
            inside = [dx for dx in range(-half, half + 1) if _covers(shape["shape"], half, dx, dy)]
            if inside:  # every shape is one unbroken run in each row
                start = 3 * ((middle_y + dy) * WIDTH + middle_x + inside[0])
                pixels[start : start + 3 * len(inside)] = color * len(inside)
    return WIDTH, HEIGHT, bytes(pixels)


def png(spec: Mapping[str, Any]) -> bytes:
    """Return the image as a PNG file."""
    width, height, pixels = draw(spec)
    rows = b"".join(b"\0" + pixels[3 * width * y : 3 * width * (y + 1)] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    packed = (struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


# --- questions and answers --------------------------------------------------------------------------------------------


def _spec(rng: random.Random, *, for_test: bool) -> dict[str, Any]:
    while True:
        cells = sorted(rng.sample(range(GRID * GRID), between(rng, 1, MAX_SHAPES)))
        shapes = [
            {
                "shape": rng.choice(SHAPES),
                "color": rng.choice(tuple(COLORS)),
                "size": rng.choice(tuple(SIZES)),
                "row": cell // GRID,
                "column": cell % GRID,
            }
            for cell in cells
        ]
        if held_out(f"{DOMAIN}/{shapes}") == for_test:
            return {"type": "image", "shapes": shapes}


def _said(shape: Shape) -> str:
    return f"a {shape['size']} {shape['color']} {shape['shape']}"


def _place(shape: Shape) -> str:
    return f"{ROWS[shape['row']]} {COLUMNS[shape['column']]}"


def _question(rng: random.Random, shapes: list[dict[str, Any]], form: str) -> tuple[str, str]:
    asked = rng.choice(shapes)
    if form == "place":
        return f"What is at the {_place(asked)}?", _said(asked)
    if form == "color":
        same = [shape["color"] for shape in shapes if shape["shape"] == asked["shape"]]
        return f"Which color has the {asked['shape']}?", " and ".join(same)
    if form == "count":
        return "How many shapes are there?", NUMBERS[len(shapes)]
    return "Describe the image.", ", ".join(f"{_said(shape)} at the {_place(shape)}" for shape in shapes)


def _turn(spec: dict[str, Any], question: str) -> Message:
    return {"role": "user", "content": [spec, {"type": "text", "text": question}]}


def image_sample(rng: random.Random) -> Sample:
    """Return one image with a question and its answer, as a chat."""
    spec = _spec(rng, for_test=False)
    question, answer = _question(rng, spec["shapes"], weighted(rng, MIX))
    return Sample(DOMAIN, messages=(_turn(spec, question), {"role": "assistant", "content": answer}))


def test_items(count: int, seed: int) -> list[Item]:
    """Return images that training never shows, each with one question."""
    rng = random.Random(seed)
    items: list[Item] = []
    for number in range(count):
        spec = _spec(rng, for_test=True)
        form = list(MIX)[number % len(MIX)]
        question, answer = _question(rng, spec["shapes"], form)
        fields = {"form": form, "boilerplate": [question]}
        name = f"{DOMAIN}-{number:04d}"
        items.append(Item(DOMAIN, name, messages=(_turn(spec, question),), answer=answer, fields=fields))
    return items


def score(item: Item, output: str) -> bool:
    """Whether the answer is exactly right, a final full stop aside."""
    return answer_of(output).rstrip(".") == item.answer
