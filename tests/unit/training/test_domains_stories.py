"""Stories: they end, they do not loop, and the detector finds loops."""

import random

import pytest
from training.domains import stories
from training.output import END

from halfbyte.degeneracy.watch import has_loop

ITEMS = stories.test_items(40, seed=5)
PROSE = [stories.train_sample(random.Random(number)) for number in range(800)]
TEXTS = [sample.text or sample.messages[-1]["content"] for sample in PROSE]


def test_what_is_taught_passes():
    long_enough = [text for text in TEXTS if len(text.split()) >= stories.MIN_WORDS]
    assert len(long_enough) > 600
    assert all(stories.score(ITEMS[0], text + END) for text in long_enough)


def test_lengths_and_punctuation():
    told = [s.messages[-1]["content"] for s in PROSE if s.messages and "story about" in s.messages[0]["content"]]
    assert len(told) > 200
    for text in told:
        assert 60 <= len(text.split()) <= 250
        assert text.endswith(".")
        assert "{" not in text
        assert ".." not in text


@pytest.mark.parametrize(
    "output",
    [
        TEXTS[0],  # cut off, as its turn does not end
        "Short." + END,
        "Once there was a fox. " + "saliva " * 60 + END,
        "Once there was a fox. " + "He went to the river and he looked for the lamp. " * 12 + END,
        "The fox is lost and found. " * 20 + "</think>" + "a long and good story about a fox " * 4 + END,
        "Once. " + "He went to the river,\n\nand he looked for the lamp.  " * 12 + "He went" + END,
    ],
)
def test_degenerate_output_fails(output):
    assert not stories.score(ITEMS[0], output)


def test_what_is_taught_does_not_loop():
    assert not any(has_loop(text) for text in TEXTS)


def test_tested_pairs_are_not_taught():
    asked = {item.messages[0]["content"].partition(" about ")[2] for item in ITEMS} - {""}
    rng = random.Random(3)
    chats = [sample.messages for sample in (stories.train_sample(rng) for _ in range(4000)) if sample.messages]
    taught = {messages[0]["content"].partition(" about ")[2] for messages in chats}
    assert len(asked) > 20
    assert not asked & taught
