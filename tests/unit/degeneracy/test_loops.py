"""The loop detector on fixtures: loops, and texts that only look like loops."""

import pytest

from halfbyte.degeneracy.watch import has_loop

LINES = [
    f"{number}. The {word} stands beside the {other} on shelf {number * 7}."
    for number, (word, other) in enumerate(
        zip(
            ["lamp", "kettle", "rope", "drum", "bell", "map", "vase", "coat"] * 4,
            ["door", "wall", "cat"] * 11,
            strict=False,
        )
    )
]


@pytest.mark.parametrize(
    "text",
    [
        "It began well. " + "saliva " * 60,
        "He sat down. " + "He looked at the sea and then he looked at the sky. " * 8,
        "a" * 300,
        "I must check this again.\n\n" * 12,
        "The cat sat on the mat and looked at the moon for a while. " * 15 + "Then it ended in another way.",
    ],
)
def test_loops(text):
    assert has_loop(text)


@pytest.mark.parametrize(
    "text",
    ["", "Yes.", "no " * 60, "\n".join(LINES[:20]), "Row, row, row your boat, gently down the stream. " * 2],
)
def test_no_loops(text):
    assert not has_loop(text)
