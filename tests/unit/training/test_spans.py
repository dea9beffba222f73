"""A document with spans: only those spans and the end are trained on, and the tokens are those of the whole text."""

import random
from itertools import groupby
from operator import itemgetter

import pytest
from training import chat, tokenizer
from training.corpus import Encoder
from training.domains import world
from training.sample import Sample

END = tokenizer.IDS[chat.END]
TEXT = "Which of these is tea?\na. tea\nb. milk\nAnswer: A\n\nAnd now?\nAnswer: B, or not"


@pytest.fixture(scope="module")
def encoder():
    return Encoder()


def learned_text(encoder, sample):
    """Return the text of the learned tokens before the end, one string per run."""
    ids, marks = encoder.encode(sample)
    runs = groupby(list(zip(ids, marks, strict=True))[:-1], key=itemgetter(1))
    return [encoder.tokenizer.decode([number for number, _ in run]) for learn, run in runs if learn]


@pytest.mark.parametrize(
    "stretches",
    [(" A", " B"), ("Which of these",), (" A", " or not"), (TEXT,)],
    ids=["letters", "at the beginning", "at the end", "everything"],
)
def test_only_the_stretches_and_the_end_are_learned(encoder, stretches):
    spans = tuple((TEXT.index(part), TEXT.index(part) + len(part)) for part in stretches)
    sample = Sample("x", text=TEXT, spans=spans)
    assert learned_text(encoder, sample) == list(stretches)
    ids, marks = encoder.encode(sample)
    assert (ids[-1], marks[-1]) == (END, True)


def test_pieces_are_the_text_in_order():
    sample = Sample("x", text="ab cd ef", spans=((2, 5),))
    assert chat.pieces(sample) == [
        chat.Piece("ab"),
        chat.Piece(" cd", learn=True),
        chat.Piece(" ef"),
        chat.Piece(chat.END, is_token=True, learn=True),
    ]


def test_without_spans_all_of_it_is_learned(encoder):
    ids, marks = encoder.encode(Sample("x", text=TEXT))
    assert len(ids) > 10
    assert all(marks)


def test_tokens_are_those_of_the_whole_text(encoder):
    """An engine reads the text in one piece: a stretch that began inside a token would teach what it never sees."""
    rng = random.Random(6)
    drawn = [sample for sample in (world.train_sample(rng) for _ in range(600)) if sample.spans]
    assert len(drawn) > 300
    for sample in drawn:
        whole = encoder.tokenizer.encode(sample.text, add_special_tokens=False).ids
        ids, marks = encoder.encode(sample)
        assert ids == [*whole, END]
        assert sum(marks) == len(sample.spans) + 1  # a letter is one token
        assert learned_text(encoder, sample) == [sample.text[begin:end] for begin, end in sample.spans]
