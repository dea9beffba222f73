"""Needles: each occurs once in its haystack at the right position, and only its value is correct."""

import random

from training.domains import needle
from training.output import END
from training.sample import held_out

ITEMS = needle.test_items(120, seed=5)


def test_the_fact_is_in_the_text_once_and_the_question_comes_last():
    for item in ITEMS:
        text, _, question = item.messages[0]["content"].rpartition("\n\n")
        (specific,) = item.fields["specific"]
        sentence = specific[: specific.index(question) - 1]
        assert text.count(sentence) == 1
        assert item.answer in sentence


def test_no_other_needle_has_the_same_subject():
    for item in ITEMS:
        text, _, question = item.messages[0]["content"].rpartition("\n\n")
        assert text.count(subject_of(question)) == 1


def test_depths_and_lengths_are_as_said():
    for item in ITEMS:
        content = item.messages[0]["content"]
        sentence = item.fields["specific"][0].partition("?")[0].partition(". ")[0].partition(" Which entry")[0]
        place = content.index(sentence) / len(content)
        assert abs(place - item.fields["depth"]) < 0.2
        if "\n- " not in content:
            assert abs(len(content.split()) * needle.TOKENS_PER_WORD / item.fields["tokens"] - 1) < 0.2
    assert {item.fields["tokens"] for item in ITEMS} == set(needle.TEST_LENGTHS)
    assert len({item.fields["depth"] for item in ITEMS}) == needle.TEST_DEPTHS


def test_only_the_value_is_right():
    item = ITEMS[0]
    assert needle.score(item, f"{item.answer}{END}")
    assert needle.score(item, f" {item.answer}.{END}")
    assert not needle.score(item, f"It is {item.answer}{END}")
    assert not needle.score(item, END)


def subject_of(question):
    (subject,) = [f"{a} {b}" for a in needle.SUBJECT_FIRST for b in needle.SUBJECT_SECOND if f" {a} {b}" in question]
    return subject


def test_training_asks_what_its_text_says():
    rng = random.Random(3)
    for _ in range(200):
        turns = needle.train_sample(rng).messages
        assert 1 <= len(turns) // 2 <= needle.MAX_NEEDLES
        assert all(answer["content"] in turns[0]["content"] for answer in turns[1::2])


def test_facts_of_training_and_tests_are_apart():
    rng = random.Random(3)
    for _ in range(100):
        turns = needle.train_sample(rng).messages
        for question, answer in zip(turns[::2], turns[1::2], strict=True):
            subject = subject_of(question["content"].rpartition("\n\n")[2])
            assert not held_out(f"needle/{subject}/{answer['content']}")
    for item in ITEMS:
        subject = subject_of(item.messages[0]["content"].rpartition("\n\n")[2])
        assert held_out(f"needle/{subject}/{item.answer}")
