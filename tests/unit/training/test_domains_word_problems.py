"""Word problems: correct arithmetic, new test items, strict score."""

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from training.domains import word_problems
from training.domains.word_problems import NAMES, NOUNS, few_shot_docs, score, train_sample
from training.domains.word_problems import test_items as make_items
from training.sample import held_out
from training.words.word_problems_templates import TEMPLATES

CALCULATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
ROOT = Path(__file__).parents[3]
WINDOW = 13
SPLITS = (str.split, re.compile(r"\w+").findall)


def samples(count, seed=0):
    rng = random.Random(seed)
    return [train_sample(rng) for _ in range(count)]


@cache
def all_items():
    """All test items; generated once."""
    return make_items(1319, 0)


def texts_of(sample):
    yield sample.text
    for message in sample.messages:
        yield message["content"]
        yield message.get("reasoning_content", "")


def windows(text, split):
    words = split(text)
    return {tuple(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1)}


def people_and_things(text):
    words = set(re.findall(r"\w+", text))
    return {(name, noun) for name in words & set(NAMES) for noun in words & set(NOUNS)}


def is_kept_for_tests(pair):
    return held_out(f"word_problems|{pair[0]}|{pair[1]}")


def test_same_seed_same_bytes():
    assert samples(50, seed=7) == samples(50, seed=7) != samples(50, seed=8)
    items = make_items(20, 3)
    assert items == make_items(20, 3) != make_items(20, 4)
    assert len(json.dumps([item.as_dict() for item in items])) > 1000


DIGEST = """
import hashlib, importlib, random
digest = hashlib.sha256()
for name in ("word_problems", "world", "structured", "tools"):
    domain = importlib.import_module(f"training.domains.{name}")
    rng = random.Random(11)
    made = [domain.train_sample(rng) for _ in range(100)] + domain.test_items(30, 5)
    digest.update(repr(made).encode())
result = digest.hexdigest()
"""


def test_another_process_with_another_hash_seed_makes_the_same_bytes():
    here: dict[str, str] = {}
    exec(DIGEST, here)
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", f"{DIGEST}print(result)"]
    there = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    assert there.stdout.strip() == here["result"]


def test_every_calculation_is_right_and_leads_to_the_answer():
    checked = 0
    for item in all_items():
        solution = item.fields["answer"]
        calculations = CALCULATION.findall(solution)
        assert 2 <= len(calculations) <= 4
        for a, operator, b, result in calculations:
            assert COMPUTE[operator](int(a), int(b)) == int(result)
            assert operator != "/" or int(a) % int(b) == 0
        assert solution.endswith(f"\n#### {calculations[-1][3]}")
        assert item.answer == calculations[-1][3]
    for sample in samples(1500):
        for text in texts_of(sample):
            for a, operator, b, result in CALCULATION.findall(text):
                assert COMPUTE[operator](int(a), int(b)) == int(result)
                checked += 1
    assert checked > 4000


def test_numbers_of_a_solution_come_from_the_question_or_an_earlier_step():
    for item in all_items():
        known = {*re.findall(r"\d+", item.fields["question"]), "2", "3"}  # half, twice, three days
        for a, _, b, result in CALCULATION.findall(item.fields["answer"]):
            assert {a, b} <= known
            known.add(result)


def test_training_never_brings_a_test_pair_together():
    for sample in samples(800, seed=5):
        for text in texts_of(sample):
            for problem in re.split(r"\n\n", text):
                assert not any(is_kept_for_tests(pair) for pair in people_and_things(problem.replace("coins", "")))


def test_any_window_of_a_test_problem_holds_a_test_pair():
    """So no 13 words in a row can be in training: a guarantee, not a sample."""
    for item in all_items()[:150]:
        steps, _, number = item.fields["answer"].rpartition("\n#### ")
        forms = (f"{item.prompt} {item.fields['answer']}", f"{item.fields['question']} {steps} The answer is {number}.")
        for text in forms:
            for split in SPLITS:
                for window in windows(text, split):
                    assert any(map(is_kept_for_tests, people_and_things(" ".join(window)))), window


def test_no_window_is_shared_with_training():
    items = all_items()
    for split in SPLITS:
        tested = set().union(*(windows(f"{item.prompt} {item.fields['answer']}", split) for item in items))
        assert len(tested) > 10_000
        for sample in samples(500, seed=9):
            assert not any(tested & windows(text, split) for text in texts_of(sample))


def test_all_stories_are_told_and_problems_are_short():
    items = all_items()
    assert {item.fields["template"] for item in items} == {template.name for template in TEMPLATES}
    assert len({item.fields["question"] for item in items}) == 1319
    assert max(len(item.prompt.split()) + len(item.fields["answer"].split()) for item in items) < 90


def test_score_takes_the_right_answer_and_no_other():
    item = all_items()[0]
    assert score(item, f" {item.fields['answer']}")
    assert score(item, f"some thought #### 1</think>So. #### {item.answer}<|im_end|>")
    assert score(item, f" #### {item.answer}\n\nQuestion: more? #### 1")
    assert score(replace(item, answer="1234"), "#### 1,234")
    wrong = (f"The answer is {item.answer}.", f"#### {item.answer}1", f"#### 1{item.answer}", f"####{item.answer}", "")
    assert not any(score(item, output) for output in wrong)


def test_all_forms_are_trained():
    drawn = samples(2000, seed=1)
    assert {sample.domain for sample in drawn} == {word_problems.DOMAIN}
    assert any(sample.thinking and "reasoning_content" in sample.messages[-1] for sample in drawn)
    assert any(sample.text.startswith("Q: ") and "The answer is" in sample.text for sample in drawn)
    alone = [sample for sample in drawn if sample.text.count("Question:") == 1]
    assert len(alone) > 600
    assert all(sample.text[sample.learn_from :].startswith(" First the ") for sample in alone)
    assert max(len(sample.text.split()) for sample in drawn) < 600


def test_examples_for_few_shot_prompts_are_training_problems():
    docs = few_shot_docs(200, 0)
    assert docs == few_shot_docs(200, 0)
    for doc in docs:
        assert set(doc) == {"question", "answer"}
        assert not any(map(is_kept_for_tests, people_and_things(doc["question"])))
