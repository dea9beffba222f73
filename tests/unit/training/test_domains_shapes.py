"""Shapes: the pixels match the description, and the file is a PNG."""

import random
import struct
import zlib

import pytest
from training.domains import shapes
from training.output import END


def one(shape, size="large", row=0, column=0):
    return {"type": "image", "shapes": [{"shape": shape, "color": "red", "size": size, "row": row, "column": column}]}


def colored(spec):
    width, height, pixels = shapes.draw(spec)
    points = [tuple(pixels[3 * i : 3 * i + 3]) for i in range(width * height)]
    return {(i % width, i // width) for i, point in enumerate(points) if point == shapes.COLORS["red"]}


@pytest.mark.parametrize("shape", shapes.SHAPES)
@pytest.mark.parametrize("size", shapes.SIZES)
def test_a_shape_stays_in_its_cell_and_is_symmetric(shape, size):
    inside = colored(one(shape, size, row=2, column=1))
    assert {(x // shapes.CELL, y // shapes.CELL) for x, y in inside} == {(1, 2)}
    middle = shapes.CELL + shapes.CELL // 2
    assert inside == {(2 * middle - x, y) for x, y in inside}
    assert len(inside) > 40


def test_shapes_differ_and_have_their_areas():
    areas = {shape: len(colored(one(shape))) for shape in shapes.SHAPES}
    side = 2 * shapes.SIZES["large"] + 1
    assert areas["square"] == side * side
    assert abs(areas["circle"] / (3.1416 * shapes.SIZES["large"] ** 2) - 1) < 0.05
    assert len(set(areas.values())) == len(areas)


def test_the_png_holds_the_same_pixels():
    spec = shapes.test_items(1, seed=2)[0].messages[0]["content"][0]
    data = shapes.png(spec)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (shapes.WIDTH, shapes.HEIGHT)
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    rows = zlib.decompress(data[start + 4 : start + 4 + length])
    stride = 3 * shapes.WIDTH + 1
    pixels = b"".join(rows[i + 1 : i + stride] for i in range(0, len(rows), stride))
    assert pixels == shapes.draw(spec)[2]


def test_descriptions_say_what_is_there():
    for item in shapes.test_items(80, seed=2):
        spec, question = item.messages[0]["content"]
        drawn = spec["shapes"]
        if question["text"] == "Describe the image.":
            assert [part.split()[3] for part in item.answer.split(", ")] == [shape["shape"] for shape in drawn]
        if question["text"].startswith("How many"):
            assert shapes.NUMBERS.index(item.answer) == len(drawn)
        assert shapes.score(item, item.answer + END)
        assert not shapes.score(item, "a thing" + END)


def test_tested_images_are_not_taught():
    rng = random.Random(4)
    taught = {str(shapes.image_sample(rng).messages[0]["content"][0]) for _ in range(5000)}
    tested = {str(item.messages[0]["content"][0]) for item in shapes.test_items(200, seed=2)}
    assert not taught & tested
