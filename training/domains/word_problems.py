"""Word problems in two to four steps, solved in plain sentences: what GSM8K measures, at a size a small model learns.

Two things are kept for the tests: pairs of a person and a counted thing, and combinations of a story with its numbers.
A test problem has both new. Difficulty: `LARGE_NUMBER` and `RANGES` in words/word_problems_templates.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.sample import Item, Sample, held_out
from training.words.word_problems_templates import RANGES, TEMPLATES, WORDS, Step, Template

DOMAIN = "word_problems"
MIX = {  # percent
    "gsm8k": 40,  # "Question: ...\nAnswer: ...\n#### N", no other problem before it
    "gsm8k few-shot": 20,  # two to six of them in a row
    "cot few-shot": 10,  # "Q: ...\nA: ... The answer is N.", one to nine in a row
    "chat": 15,
    "chat with thinking": 15,
}
SMALLEST_NUMBER, LARGEST_RESULT = 2, 99_999
TRIES = 20  # to find numbers that work out, before another story is drawn: so that no story becomes rare
PEOPLE = 3  # drawn for every problem, whether it needs them or not
SHORT_PROBLEM = 26  # words of a question: what long rows of examples are made of

_FORMS = [form for form, percent in MIX.items() for _ in range(percent)]
_WORDS = Path(__file__).parents[1] / "words"
NAMES = (_WORDS / "word_problems_names.txt").read_text().split()
NOUNS = (_WORDS / "word_problems_nouns.txt").read_text().split()
_HELD_OUT_PAIRS = frozenset((name, noun) for name in NAMES for noun in NOUNS if held_out(f"{DOMAIN}|{name}|{noun}"))
_TEST_NAMES = {noun: [name for name in NAMES if (name, noun) in _HELD_OUT_PAIRS] for noun in NOUNS}
_TEST_NOUNS = {name: [noun for noun in NOUNS if (name, noun) in _HELD_OUT_PAIRS] for name in NAMES}
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else -1,  # -1: no such problem
}
_NUMBER = re.compile(r"[0-9]+")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_CHAT_FORMS = (
    "{question}",
    "{question}",
    "Question: {question}\nAnswer:",
    "Solve the problem step by step.\n{question}",
    "Think step by step, then give the answer.\n{question}",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the sentences that solve it, and the number they end with."""

    template: str
    question: str
    steps: tuple[str, ...]
    answer: int

    @property
    def solution(self) -> str:
        """The answer in GSM8K's form."""
        return "\n".join((*self.steps, f"#### {self.answer}"))


def train_sample(rng: random.Random) -> Sample:
    """Return one thing to learn, in one of the forms of `MIX`."""
    form = rng.choice(_FORMS)
    if form.startswith("chat"):
        return _chat(_training_problem(rng), rng, thinking=form == "chat with thinking")
    if form == "gsm8k":
        problem = _training_problem(rng)
        prompt = _prompt(problem)
        return Sample(DOMAIN, text=f"{prompt} {problem.solution}", learn_from=len(prompt))
    if form == "gsm8k few-shot":
        problems = [_training_problem(rng, short=True) for _ in range(rng.randrange(2, 7))]
        return Sample(DOMAIN, text="\n\n".join(f"{_prompt(problem)} {problem.solution}" for problem in problems))
    problems = [_training_problem(rng, short=True) for _ in range(rng.randrange(1, 10))]
    return Sample(DOMAIN, text="\n\n".join(_chain_of_thought(problem) for problem in problems))


def test_items(count: int, seed: int) -> list[Item]:
    """Return problems whose person and thing never met in training, with numbers that their story never had."""
    rng = random.Random(f"{DOMAIN} {seed}")
    items: list[Item] = []
    seen: set[str] = set()
    while len(items) < count:
        problem = _problem(rng, test=True)
        if problem is None or problem.question in seen:
            continue
        seen.add(problem.question)
        fields = {
            "question": problem.question,
            "answer": problem.solution,
            "template": problem.template,
            "form": f"{len(str(max(map(int, _NUMBER.findall(problem.solution)))))} digits",
            "boilerplate": [],
        }
        name = f"{DOMAIN}-{seed}-{len(items)}"
        items.append(Item(DOMAIN, name, prompt=_prompt(problem), answer=str(problem.answer), fields=fields))
    return items


def few_shot_docs(count: int, seed: int) -> list[dict[str, Any]]:
    """Return short training problems in GSM8K's schema: what an evaluation shows before its question."""
    rng = random.Random(f"{DOMAIN} shots {seed}")
    problems = [_training_problem(rng, short=True) for _ in range(count)]
    return [{"question": problem.question, "answer": problem.solution} for problem in problems]


def score(item: Item, output: str) -> bool:
    """Whether the first `#### N` after any thinking is the answer: GSM8K's strict match."""
    found = _STRICT.search(output.rpartition("</think>")[2])
    return found is not None and found[1].replace(",", "").rstrip(".") == item.answer


def _prompt(problem: Problem) -> str:
    return f"Question: {problem.question}\nAnswer:"


def _chain_of_thought(problem: Problem) -> str:
    return f"Q: {problem.question}\nA: {' '.join(problem.steps)} The answer is {problem.answer}."


def _chat(problem: Problem, rng: random.Random, *, thinking: bool) -> Sample:
    ask = {"role": "user", "content": rng.choice(_CHAT_FORMS).format(question=problem.question)}
    if not thinking:
        return Sample(DOMAIN, messages=(ask, {"role": "assistant", "content": problem.solution}))
    reply = {
        "role": "assistant",
        "reasoning_content": "\n".join(problem.steps),
        "content": f"{problem.steps[-1]}\n#### {problem.answer}",
    }
    return Sample(DOMAIN, messages=(ask, reply), thinking=True)


def _training_problem(rng: random.Random, *, short: bool = False) -> Problem:
    while True:
        problem = _problem(rng, test=False)
        if problem is not None and not (short and problem.question.count(" ") > SHORT_PROBLEM):
            return problem


def _problem(rng: random.Random, *, test: bool) -> Problem | None:
    """Draw a problem; None when the numbers do not work out or belong to the other side of the split."""
    template = rng.choice(TEMPLATES)
    numbers = _numbers(template, rng, test=test)
    if numbers is None or held_out(f"{DOMAIN}|{template.name}|{sorted(numbers.items())}") != test:
        return None
    words = _words(rng, test=test)
    if words is None:
        return None
    words.update({slot: rng.choice(choices) for slot, choices in WORDS.items()})
    story = template.story.format(**words, **numbers)
    steps: list[str] = []
    for step in template.steps:
        calculation = _calculate(step, numbers)
        if calculation is None:
            return None
        steps.append(step.text.format(**words, **numbers, **{"=": calculation}))
    return Problem(template.name, story, tuple(steps), numbers[template.steps[-1].result])


def _numbers(template: Template, rng: random.Random, *, test: bool) -> dict[str, int] | None:
    for _ in range(TRIES):
        numbers = {name: _number(size, rng, test=test) for name, size in template.draws.items()}
        for name, rule in template.derived.items():
            numbers[name] = rule(numbers)
        if all(SMALLEST_NUMBER <= number <= LARGEST_RESULT for number in numbers.values()) and _works_out(
            template, dict(numbers)
        ):
            return numbers
    return None


def _number(size: str, rng: random.Random, *, test: bool) -> int:
    """Draw a number; training sees fewer of the large ones, as in life, and tests ask for all alike."""
    low, high = RANGES[size]
    return rng.randint(low, rng.randint(low, high) if size == "many" and not test else high)


def _works_out(template: Template, numbers: dict[str, int]) -> bool:
    return all(_calculate(step, numbers) is not None for step in template.steps)


def _calculate(step: Step, numbers: dict[str, int]) -> str | None:
    left, operator, right = step.calculation.split()
    a, b = (numbers[name] if name.isalpha() else int(name) for name in (left, right))
    result = _OPERATIONS[operator](a, b)
    numbers[step.result] = result
    return f"{a}{operator}{b}={result}" if 1 <= result <= LARGEST_RESULT else None


def _words(rng: random.Random, *, test: bool) -> dict[str, str] | None:
    """Draw people and things. In training no person meets a thing that the tests keep for them; in tests all do."""
    noun = rng.choice(NOUNS)
    people = _TEST_NAMES[noun] if test else NAMES
    if len(people) < PEOPLE:
        return None
    name, second, third = rng.sample(people, PEOPLE)
    other = rng.choice(_TEST_NOUNS[name] if test else NOUNS)
    pairs = ((name, noun), (second, noun), (third, noun), (name, other))
    if noun == other or any((pair in _HELD_OUT_PAIRS) != test for pair in pairs):
        return None
    return {"N": name, "M": second, "K": third, "X": noun, "Y": other}
