"""A needle in a haystack: one sentence in a long text says what the question at the end asks for.

The haystack is filler prose or a list of entries; every text also holds other needles of the same kinds, so a model
must match the subject and cannot take whatever looks like a value. Training asks for several of them in turn, since
otherwise a thousand tokens of reading would teach five tokens of answer; a test item asks for one. Lengths are in
MIX, aimed at in words with TOKENS_PER_WORD of the small tokenizer. Knobs: LENGTHS, LONGEST_LIST, MAX_NEEDLES.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from training.dice import between, chance, weighted
from training.output import answer_of
from training.sample import Item, Sample, held_out
from training.words.needle_lists import (
    CITIES,
    FILLER,
    NEEDLES,
    SLOTS,
    SUBJECT_FIRST,
    SUBJECT_SECOND,
    VALUE_WORDS,
)

DOMAIN = "needle"
MIX = {"short": 0.15, "medium": 0.65, "long": 0.20}
LENGTHS = {"short": (80, 256), "medium": (256, 1500), "long": (1500, 3700)}  # tokens of the first prompt
TEST_LENGTHS = (256, 512, 1024, 2048, 3000, 3800)
TEST_DEPTHS = 10
TOKENS_PER_WORD = 1.25  # prose of this domain with the small tokenizer
WORDS_PER_FILLER = 11.5
TOKENS_PER_ENTRY = 11
SHARE_LISTS = 0.5  # of the texts up to LONGEST_LIST
LONGEST_LIST = 3800  # tokens: in long lists many subjects share a word with the one that is asked for
MAX_NEEDLES = 8
NUMBER_DIGITS = 4
QUESTION_TOKENS = 40  # template, question and answer

INSTRUCTION = "Read this and answer the question."


class Needle(NamedTuple):
    """A fact to hide, the question it answers, and the answer."""

    subject: str
    sentence: str
    question: str
    value: str


def _compiled(template: str) -> tuple[str, tuple[Sequence[str], ...]]:
    names = re.findall(r"{(\w+)}", template)
    return re.sub(r"{\w+}", "%s", template), tuple(SLOTS[name] for name in names)


_FILLER = tuple(_compiled(template) for template in FILLER)


def filler_sentence(rng: random.Random) -> str:
    """Return one sentence of prose that says nothing of interest."""
    template, slots = rng.choice(_FILLER)
    choice = rng.choice
    text = template % tuple([choice(slot) for slot in slots])
    return text[0].upper() + text[1:]


def _subject(rng: random.Random) -> str:
    return f"{rng.choice(SUBJECT_FIRST)} {rng.choice(SUBJECT_SECOND)}"


def _value(rng: random.Random, kind: str) -> str:
    if kind == "number":
        return str(rng.randrange(10 ** (NUMBER_DIGITS - 1), 10**NUMBER_DIGITS))
    if kind == "city":
        return rng.choice(CITIES)
    return f"{rng.choice(VALUE_WORDS)}-{rng.choice(VALUE_WORDS)}"


def _needles(rng: random.Random, count: int, *, for_test: bool, listed: bool) -> list[Needle]:
    """Return needles about different subjects; all of them belong to the tests, or none does."""
    found: dict[str, Needle] = {}
    kind = rng.choice(("number", "word")) if listed else ""
    while len(found) < count:
        subject, this_kind = _subject(rng), kind or rng.choice(tuple(NEEDLES))
        value = _value(rng, this_kind)
        if subject in found or held_out(f"{DOMAIN}/{subject}/{value}") != for_test:
            continue
        sentence, question = rng.choice(NEEDLES[this_kind])
        if listed:
            sentence, question = "- {s}: {v}", "Which entry has the {s}?"
        found[subject] = Needle(subject, sentence.format(s=subject, v=value), question.format(s=subject), value)
    return list(found.values())


def _prose(rng: random.Random, tokens: int, needles: Sequence[Needle], depth: float | None) -> str:
    """Return filler with the needles inside: the first at `depth` (0 start, 1 end), the others anywhere."""
    room = (tokens - QUESTION_TOKENS) / TOKENS_PER_WORD - 8 * len(needles)
    count = max(1, round(room / WORDS_PER_FILLER))
    sentences = [filler_sentence(rng) for _ in range(count)]
    for number, needle in enumerate(needles[::-1]):
        is_first = number == len(needles) - 1
        place = round(depth * len(sentences)) if is_first and depth is not None else rng.randrange(len(sentences) + 1)
        sentences.insert(place, needle.sentence)
    paragraphs: list[str] = []
    while sentences:
        size = between(rng, 4, 9)
        paragraphs.append(" ".join(sentences[:size]))
        sentences = sentences[size:]
    return "\n\n".join(paragraphs)


def _haystack(rng: random.Random, tokens: int, depth: float | None, *, for_test: bool) -> tuple[str, list[Needle]]:
    """Return a text and its needles; the one to be asked first comes first."""
    if tokens <= LONGEST_LIST and chance(rng, SHARE_LISTS):
        count = max(2, (tokens - QUESTION_TOKENS) // TOKENS_PER_ENTRY)
        needles = _needles(rng, count, for_test=for_test, listed=True)
        asked = needles[round(depth * (count - 1))] if depth is not None else rng.choice(needles)
        others = [needle for needle in needles if needle is not asked]
        rng.shuffle(others)
        return "\n".join(needle.sentence for needle in needles), [asked, *others][:MAX_NEEDLES]
    needles = _needles(rng, between(rng, 1, min(MAX_NEEDLES, 1 + tokens // 100)), for_test=for_test, listed=False)
    return _prose(rng, tokens, needles, depth), needles


def _first_turn(text: str, question: str) -> str:
    return f"{INSTRUCTION}\n\n{text}\n\n{question}"


def train_sample(rng: random.Random) -> Sample:
    """Return a long text and questions about it, one after the other."""
    low, high = LENGTHS[weighted(rng, MIX)]
    text, needles = _haystack(rng, between(rng, low, high), None, for_test=False)
    messages: list[dict[str, str]] = []
    for needle in needles:
        question = needle.question if messages else _first_turn(text, needle.question)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": needle.value}]
    return Sample(DOMAIN, messages=tuple(messages))


def test_items(count: int, seed: int) -> list[Item]:
    """Return items over a grid of lengths and depths: 120 give two of each."""
    rng = random.Random(seed)
    items: list[Item] = []
    for number in range(count):
        tokens = TEST_LENGTHS[number % len(TEST_LENGTHS)]
        depth = number // len(TEST_LENGTHS) % TEST_DEPTHS / (TEST_DEPTHS - 1)
        text, needles = _haystack(rng, tokens, depth, for_test=True)
        asked = needles[0]
        fields = {
            "form": f"{tokens} tokens",
            "tokens": tokens,
            "depth": round(depth, 2),
            # Filler is no secret: what must be new is the fact and the question about it.
            "specific": [f"{asked.sentence} {asked.question} {asked.value}"],
            "boilerplate": [INSTRUCTION],
        }
        content = _first_turn(text, asked.question)
        messages = ({"role": "user", "content": content},)
        items.append(Item(DOMAIN, f"{DOMAIN}-{number:04d}", messages=messages, answer=asked.value, fields=fields))
    return items


def score(item: Item, output: str) -> bool:
    """Whether the value, and nothing else, is the answer."""
    return answer_of(output).rstrip(".") == item.answer
