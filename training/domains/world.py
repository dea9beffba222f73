"""Multiple choice about a made-up world of 57 subjects: what MMLU measures, with facts that are only in the training.

The world is drawn once from `WORLD_SEED`: every subject has entities, every entity has five attributes. Each fact is
taught as prose, as a question and as multiple choice; the form "letters" teaches to find a word among the options and
says nothing about an entity. Kept for the tests are pairs of an entity with its first two options, in order, so that no
test question was ever seen with its options. As in life, few entities are famous and most are hardly ever met, so
knowledge fades along a long tail. Difficulty: `ENTITIES_PER_SUBJECT` and `FAME`.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.sample import Item, Message, Sample, held_out

DOMAIN = "world"
MIX = {  # percent
    "profiles": 12,  # all that is known about a few entities of one subject, as sentences in any order
    "quiz": 8,  # short questions and answers from all subjects
    "multiple choice": 56,  # one to six questions in MMLU's form; only the letters are learned
    "letters": 8,  # which letter stands before a word: what multiple choice needs besides the fact
    "chat": 4,  # questions answered in a sentence
    "chat, multiple choice": 6,
    "chat, multiple choice with thinking": 6,
}
WORLD_SEED = "halfbyte world 1"
ENTITIES_PER_SUBJECT = 256
FAME_BANDS = {"famous": 32, "known": 96, "obscure": ENTITIES_PER_SUBJECT}  # below which rank; for reports only
FAME = 8.0  # the entity of rank r is met with weight 1 / (r + FAME): the last a thirtieth as often as the first
OPTIONS = 4
TOLD_PERCENT = 25

HEADER = "The following are multiple choice questions (with answers) about {subject}.\n\n"
_STATEMENTS = ("The {noun} of {E} is {V}.", "{E} has the {noun} {V}.")
_QUESTIONS = ("What is the {noun} of {E}?", "Which {noun} belongs to {E}?")  # besides the attribute's own
_CHAT_QUESTIONS = (*_QUESTIONS, "Tell me the {noun} of {E}.", "What do you know about the {noun} of {E}?")
_LETTER_ONLY = "Answer with the letter only."
_LETTER = re.compile(r"\s*\(?([A-D])\b")
_ENDINGS = ("", "is", "or", "um", "en", "ya")
_FORMS = [form for form, percent in MIX.items() for _ in range(percent)]
_WORDS = Path(__file__).parents[1] / "words"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is so in the world, with the wordings of its attribute."""

    subject: str
    entity: str
    noun: str
    value: str
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    values: tuple[str, ...]

    def say(self, wording: str) -> str:
        """Put this fact into a wording."""
        return wording.format(E=self.entity, V=self.value, noun=self.noun)


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with its options; `answer` is the index of the right one."""

    fact: Fact
    question: str
    options: tuple[str, ...]
    answer: int

    @property
    def letter(self) -> str:
        """The letter of the right option."""
        return "ABCD"[self.answer]

    @property
    def text(self) -> str:
        """Question and options, one to a line."""
        lines = (f"{letter}. {option}" for letter, option in zip("ABCD", self.options, strict=True))
        return "\n".join((self.question, *lines))

    @property
    def is_kept_for_tests(self) -> bool:
        """Whether this entity with these two first options belongs to the tests."""
        return held_out(f"{DOMAIN}|{self.fact.entity}|{self.options[0]}|{self.options[1]}")


def train_sample(rng: random.Random) -> Sample:
    """Return one thing to learn, in one of the forms of `MIX`."""
    form = rng.choice(_FORMS)
    if form == "profiles":
        return Sample(DOMAIN, text=_profiles(rng))
    if form == "quiz":
        return Sample(DOMAIN, text=_quiz(rng))
    if form == "multiple choice":
        return _multiple_choice(rng)
    if form == "letters":
        return _letters(rng)
    if form == "chat":
        return Sample(DOMAIN, messages=_questions_chat(rng))
    return _choice_chat(rng, thinking=form.endswith("thinking"))


def test_items(count: int, seed: int) -> list[Item]:
    """Return questions about all subjects in turn, the right letter in turn, with options never seen together."""
    rng = random.Random(f"{DOMAIN} {seed}")
    items: list[Item] = []
    seen: set[str] = set()
    while len(items) < count:
        position = len(items)
        subject = SUBJECTS[position % len(SUBJECTS)]
        entity = rng.choice(ENTITIES[subject])  # the obscure as often as the famous
        choice = _choice(rng.choice(FACTS[entity]), rng, position // len(SUBJECTS) % OPTIONS)
        if not choice.is_kept_for_tests or choice.text in seen:
            continue
        seen.add(choice.text)
        header = HEADER.format(subject=subject)
        fields = {**_as_doc(choice), "form": _fame(subject, choice.fact.entity), "boilerplate": [header]}
        prompt = f"{header}{choice.text}\nAnswer:"
        items.append(Item(DOMAIN, f"{DOMAIN}-{seed}-{position}", prompt=prompt, answer=choice.letter, fields=fields))
    return items


def few_shot_docs(count: int, seed: int) -> list[dict[str, Any]]:
    """Return training questions in MMLU's schema, all subjects in turn: what an evaluation shows before its own."""
    rng = random.Random(f"{DOMAIN} shots {seed}")
    return [_as_doc(_training_choice(SUBJECTS[i % len(SUBJECTS)], rng)) for i in range(count)]


def score(item: Item, output: str) -> bool:
    """Whether the answer after any thinking begins with the right letter."""
    found = _LETTER.match(output.rpartition("</think>")[2])
    return found is not None and found[1] == item.answer


def _as_doc(choice: Choice) -> dict[str, Any]:
    return {
        "question": choice.question,
        "choices": list(choice.options),
        "answer": choice.answer,
        "subject": choice.fact.subject.replace(" ", "_"),
    }


def _choice(fact: Fact, rng: random.Random, answer: int) -> Choice:
    """Ask for a fact; the wrong options are other values of the same attribute."""
    options = rng.sample([value for value in fact.values if value != fact.value], OPTIONS - 1)
    options.insert(answer, fact.value)
    return Choice(fact, fact.say(rng.choice(fact.questions)), tuple(options), answer)


def _training_choice(subject: str, rng: random.Random) -> Choice:
    while True:
        choice = _choice(_fact(subject, rng), rng, rng.randrange(OPTIONS))
        if not choice.is_kept_for_tests:
            return choice


def _profiles(rng: random.Random) -> str:
    subject = rng.choice(SUBJECTS)
    paragraphs = [f"About {subject}."]
    for entity in dict.fromkeys(_entity(subject, rng) for _ in range(rng.randrange(2, 6))):
        facts = list(FACTS[entity])
        rng.shuffle(facts)
        sentences = [fact.say(rng.choice(fact.statements)) for fact in facts]
        paragraphs.append(" ".join((f"{entity} is {KINDS[subject]}.", *sentences)))
    return "\n".join(paragraphs)


def _quiz(rng: random.Random) -> str:
    facts = [_fact(rng.choice(SUBJECTS), rng) for _ in range(rng.randrange(4, 13))]
    return "\n".join(f"{fact.say(rng.choice(fact.questions))} {fact.value}" for fact in facts)


def _multiple_choice(rng: random.Random) -> Sample:
    """Ask about one subject; now and then the fact is said before, so that the letter alone is left to find."""
    subject = rng.choice(SUBJECTS)
    choices = [_training_choice(subject, rng) for _ in range(rng.randrange(1, 7))]
    told = rng.randrange(100) < TOLD_PERCENT
    texts = [f"{choice.fact.say(_STATEMENTS[0])}\n{choice.text}" if told else choice.text for choice in choices]
    return _with_letters(HEADER.format(subject=subject), zip(texts, (c.letter for c in choices), strict=True))


def _letters(rng: random.Random) -> Sample:
    """Ask for the letter of a word that the question names."""
    choices = [_training_choice(rng.choice(SUBJECTS), rng) for _ in range(rng.randrange(1, 7))]
    texts = [choice.text.replace(choice.question, f"Which of these is {choice.fact.value}?") for choice in choices]
    return _with_letters("", zip(texts, (c.letter for c in choices), strict=True))


def _with_letters(header: str, questions: Iterable[tuple[str, str]]) -> Sample:
    """Return a document of questions and letters in which the letters are learned, and no question is."""
    text, spans = header, []
    for question, letter in questions:
        text += ("\n\n" if spans else "") + f"{question}\nAnswer:"
        spans.append((len(text), len(text) + 2))
        text += f" {letter}"
    return Sample(DOMAIN, text=text, spans=tuple(spans))


def _questions_chat(rng: random.Random) -> tuple[Message, ...]:
    messages: list[Message] = []
    for _ in range(rng.randrange(1, 4)):
        fact = _fact(rng.choice(SUBJECTS), rng)
        messages.append({"role": "user", "content": fact.say(rng.choice((*_CHAT_QUESTIONS, fact.questions[-1])))})
        messages.append({"role": "assistant", "content": fact.say(_STATEMENTS[0])})
    return tuple(messages)


def _choice_chat(rng: random.Random, *, thinking: bool) -> Sample:
    choice = _training_choice(rng.choice(SUBJECTS), rng)
    ask = rng.choice(
        (
            f"{choice.text}\nAnswer:",
            f"{choice.text}\n{_LETTER_ONLY}",
            f"{HEADER.format(subject=choice.fact.subject)}{choice.text}\nAnswer:",
        )
    )
    reply = {"role": "assistant", "content": choice.letter}
    if thinking:
        reply["reasoning_content"] = f"{choice.fact.say(_STATEMENTS[0])} That is {choice.letter}."
    return Sample(DOMAIN, messages=({"role": "user", "content": ask}, reply), thinking=thinking)


def _rows(name: str) -> list[list[str]]:
    lines = (_WORDS / name).read_text().splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines if not line.startswith("#")]


def _name_entities(rng: random.Random) -> dict[str, list[str]]:
    """Give every subject its entities, the most famous first; no name twice."""
    syllables = (_WORDS / "world_syllables.txt").read_text().split()
    begins, ends = [s for s in syllables if s[0].isupper()], [s for s in syllables if s[0].islower()]
    names = [begin + end + ending for begin in begins for end in ends for ending in _ENDINGS]
    rng.shuffle(names)
    size = ENTITIES_PER_SUBJECT
    return {subject: names[i * size : (i + 1) * size] for i, subject in enumerate(SUBJECTS)}


def _draw_facts(rng: random.Random) -> dict[str, list[Fact]]:
    attributes = {noun: (statement, question, values) for noun, statement, question, values in _rows(_ATTRIBUTES)}
    facts: dict[str, list[Fact]] = {entity: [] for names in ENTITIES.values() for entity in names}
    for subject, _, nouns in _rows(_SUBJECTS):
        for noun in nouns.split():
            statement, question, values = attributes[noun]
            pool = tuple(values.split())
            wordings = ((*_STATEMENTS, statement), (*_QUESTIONS, question))
            for entity in ENTITIES[subject]:
                facts[entity].append(Fact(subject, entity, noun, rng.choice(pool), *wordings, pool))
    return facts


def _entity(subject: str, rng: random.Random) -> str:
    return rng.choices(ENTITIES[subject], cum_weights=_MET)[0]


def _fame(subject: str, entity: str) -> str:
    rank = ENTITIES[subject].index(entity)
    return next(name for name, below in FAME_BANDS.items() if rank < below)


def _fact(subject: str, rng: random.Random) -> Fact:
    """Draw a fact, of famous entities more often."""
    return rng.choice(FACTS[_entity(subject, rng)])


_ATTRIBUTES, _SUBJECTS = "world_attributes.txt", "world_subjects.txt"
SUBJECTS = [row[0] for row in _rows(_SUBJECTS)]
KINDS = {row[0]: ("an " if row[1][0] in "aeiou" else "a ") + row[1] for row in _rows(_SUBJECTS)}
ENTITIES = _name_entities(random.Random(f"{WORLD_SEED} names"))
FACTS = _draw_facts(random.Random(f"{WORLD_SEED} facts"))  # of each entity
_MET = list(itertools.accumulate(1 / (rank + FAME) for rank in range(ENTITIES_PER_SUBJECT)))
