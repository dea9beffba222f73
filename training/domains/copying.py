"""Copying and transforming strings: the first thing that a damaged model does badly.

Every answer is decided by the prompt alone, to the last character. Forms and their shares are in MIX: plain echo of
names, codes, hex ids and punctuation; echo of eleven scripts; reverse a word (letter by letter, then joined); change
case; sort, pick and join; markdown tables copied, looked up, a column listed or all turned into CSV (the question
stands after the table, and the table is what must be new). Knobs: MAX_UNITS, MAX_COLUMNS, MAX_REVERSED.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from training.dice import chance, weighted
from training.output import answer_of
from training.sample import Item, Sample, held_out
from training.words.copying_names import (
    CODAS,
    FILE_ENDINGS,
    FIRST_NAMES,
    HEADERS,
    LAST_NAMES,
    PLAIN_WORDS,
    SYLLABLES,
)
from training.words.copying_scripts import LETTERS, MARKS, WORDS

DOMAIN = "copying"
MAX_UNITS = 6  # knob: the most words, codes or lines in one payload
MAX_COLUMNS = 3  # knob: of a table
MAX_REVERSED = 7  # knob: the longest word to reverse, in letters
SHARE_THINKING = 0.3  # of the reversals: the letters are spelled out in the thinking instead of the answer

SCRIPT_WORDS = {script: words.split() for script, words in WORDS.items()}


class Task(NamedTuple):
    """One exercise: what is asked, what must be new about it, and the only right answer."""

    form: str
    key: str
    question: str
    answer: str
    reasoning: str = ""
    boilerplate: str = ""


# --- payloads ---------------------------------------------------------------------------------------------------------


def _made_up_word(rng: random.Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randrange(2, 4))) + rng.choice(CODAS)


def _person(rng: random.Random) -> str:
    last = rng.choice(LAST_NAMES) if chance(rng, 0.5) else _made_up_word(rng).capitalize()
    return f"{rng.choice(FIRST_NAMES)} {last}"


def _hexadecimal(rng: random.Random) -> str:
    groups = rng.choice(((8,), (12,), (16,), (4, 4), (8, 4, 4), (4, 4, 4, 4), (8, 4, 4, 4, 12)))
    return "-".join("".join(rng.choice("0123456789abcdef") for _ in range(size)) for size in groups)


def _code(rng: random.Random) -> str:
    word = rng.choice(PLAIN_WORDS) if chance(rng, 0.5) else _made_up_word(rng)
    number = rng.randrange(10, 10000)
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.randrange(2, 4)))
    match rng.randrange(6):
        case 0:
            return f"{letters}-{number}-{rng.choice('ABCDEFXYZ')}{rng.randrange(10)}"
        case 1:
            return f"{word.capitalize()}_{rng.choice(PLAIN_WORDS).capitalize()}_{number}"
        case 2:
            return f"v{rng.randrange(10)}.{rng.randrange(30)}.{rng.randrange(30)}-rc{rng.randrange(1, 10)}"
        case 3:
            return f"/{word}/{rng.choice(PLAIN_WORDS)}_{number}.{rng.choice(FILE_ENDINGS)}"
        case 4:
            return f"{word}.{rng.choice(PLAIN_WORDS)}{number % 100}@{_made_up_word(rng)}.org"
        case _:
            return f"{letters}{number}{rng.choice(MARKS)}{word}"


def _marks(rng: random.Random) -> str:
    pieces: list[str] = []
    for _ in range(rng.randrange(3, 9)):
        pieces.append(rng.choice(MARKS) if chance(rng, 0.6) else rng.choice((*"abcxyz", *"0123456789")))
    return "".join(pieces)


def _sentence(rng: random.Random) -> str:
    words = [rng.choice(PLAIN_WORDS) if chance(rng, 0.6) else _made_up_word(rng) for _ in range(rng.randrange(3, 8))]
    place = rng.randrange(len(words))
    words[place] = rng.choice((str(rng.randrange(1000)), words[place].upper(), f'"{words[place]}"', f"{words[place]},"))
    return " ".join(words).capitalize() + rng.choice(".!?")


UNITS: tuple[Callable[[random.Random], str], ...] = (_person, _hexadecimal, _code, _code, _marks, _sentence)


def _script_word(rng: random.Random, script: str) -> str:
    if script not in LETTERS or chance(rng, 0.5):
        return rng.choice(SCRIPT_WORDS[script])
    return "".join(rng.choice(LETTERS[script]) for _ in range(rng.randrange(2, 7)))


# --- forms ------------------------------------------------------------------------------------------------------------

ECHO = (
    "Repeat exactly: {}",
    "Copy this without changes:\n{}",
    "Echo the following and nothing else:\n{}",
    "Write this again, character by character: {}",
    "Say only this: {}",
    "Reply with exactly this text:\n{}",
)


def _echoed(rng: random.Random, form: str, payload: str) -> Task:
    template = rng.choice(ECHO)
    return Task(form, payload, template.format(payload), payload, boilerplate=template.format(""))


def _echo(rng: random.Random) -> Task:
    several = chance(rng, 0.3)
    separator = rng.choice(("\n", ", ", " ", "; "))
    count = rng.randrange(2, MAX_UNITS // 2 + 2) if several else 1
    return _echoed(rng, "echo", separator.join(rng.choice(UNITS)(rng) for _ in range(count)))


def _scripts(rng: random.Random) -> Task:
    names = list(SCRIPT_WORDS)
    mixed = chance(rng, 0.25)
    script = rng.choice(names)
    count = rng.randrange(1, MAX_UNITS + 1)
    words = [_script_word(rng, rng.choice(names) if mixed else script) for _ in range(count)]
    if chance(rng, 0.2):
        words.insert(rng.randrange(len(words) + 1), rng.choice(UNITS)(rng))
    return _echoed(rng, "scripts", rng.choice((" ", " ", ", ", "-")).join(words))


def _reverse(rng: random.Random) -> Task:
    word = (rng.choice(PLAIN_WORDS) if chance(rng, 0.2) else _made_up_word(rng))[:MAX_REVERSED]
    chain = f"{' '.join(word)} -> {' '.join(reversed(word))}"
    template = rng.choice(("Reverse the word {}.", "Spell {} backwards.", "Write {} from right to left."))
    backwards = word[::-1]
    if chance(rng, SHARE_THINKING):
        return Task("reverse", word, template.format(word), backwards, reasoning=chain)
    return Task("reverse", word, template.format(word), f"{chain} -> {backwards}")


def _case(rng: random.Random) -> Task:
    words = [
        rng.choice(PLAIN_WORDS) if chance(rng, 0.6) else _made_up_word(rng)
        for _ in range(rng.randrange(1, MAX_UNITS + 1))
    ]
    text = " ".join(words)
    given, change, asked = rng.choice(
        (
            (text, str.upper, "Write in upper case: {}"),
            (text, str.upper, "Make this all capitals: {}"),
            (text.upper(), str.lower, "Write in lower case: {}"),
            (text, str.title, "Capitalize every word: {}"),
        )
    )
    return Task("case", text, asked.format(given), change(given))


def _sort(rng: random.Random) -> Task:
    count = rng.randrange(3, MAX_UNITS + 1)
    if chance(rng, 0.5):
        numbers = rng.sample(range(10, 1000), count)
        down = chance(rng, 0.4)
        given, ordered = [str(n) for n in numbers], [str(n) for n in sorted(numbers, reverse=down)]
        order = "from large to small" if down else "from small to large"
    else:
        given = _words_with_different_first_letters(rng, count)
        ordered, order = sorted(given), "by the alphabet"
    text = ", ".join(given)
    return Task("list", f"sort {order} {text}", f"Sort {order}: {text}", ", ".join(ordered))


def _words_with_different_first_letters(rng: random.Random, count: int) -> list[str]:
    by_letter: dict[str, str] = {}
    while len(by_letter) < count:
        word = rng.choice(PLAIN_WORDS)
        by_letter.setdefault(word[0], word)
    return list(by_letter.values())


PLACES = ("first", "second", "third", "fourth", "fifth", "sixth")


def _list(rng: random.Random) -> Task:
    if chance(rng, 0.5):
        return _sort(rng)
    words = rng.sample(PLAIN_WORDS, rng.randrange(3, MAX_UNITS + 1))
    text = ", ".join(words)
    which = rng.randrange(len(words))
    question, answer = rng.choice(
        (
            (f"Which is the {PLACES[which]} word of this list? {text}", words[which]),
            (f"Which is the last word of this list? {text}", words[-1]),
            (f"Join with dashes: {text}", "-".join(words)),
            (f"Write one word per line: {text}", "\n".join(words)),
            (f"Remove {words[which]} from this list: {text}", ", ".join(w for w in words if w != words[which])),
            (f"Turn the order around: {text}", ", ".join(reversed(words))),
        )
    )
    return Task("list", question, question, answer)


def _cell(rng: random.Random) -> str:
    match rng.randrange(6):
        case 0 | 1:
            return rng.choice(PLAIN_WORDS)
        case 2 | 3:
            return str(rng.randrange(1, 2000))
        case 4:
            return _script_word(rng, rng.choice(("Latin", "Greek", "Cyrillic", "CJK", "Hangul", "Symbols")))
        case _:
            return f"{rng.choice('ABCDEFXYZ')}{rng.randrange(100)}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(rng: random.Random) -> Task:
    headers = ["name", *rng.sample(HEADERS[1:], rng.randrange(1, MAX_COLUMNS))]
    names = rng.sample(FIRST_NAMES, rng.randrange(2, MAX_UNITS))
    rows = [[name, *(_cell(rng) for _ in headers[1:])] for name in names]
    table = "\n".join([_row(headers), _row(["---"] * len(headers)), *map(_row, rows)])
    row, column = rng.choice(rows), rng.randrange(1, len(headers))
    match rng.randrange(5):
        case 0:
            asked, answer = "Copy this table.", table
        case 1:
            asked, answer = "Write this table as CSV.", "\n".join(",".join(cells) for cells in [headers, *rows])
        case 2:
            asked, answer = f"List the column {headers[column]}.", ", ".join(cells[column] for cells in rows)
        case _:
            asked, answer = f"What is the {headers[column]} of {row[0]}?", row[column]
    return Task("table", table, f"{table}\n\n{asked}", answer)


FORMS: dict[str, Callable[[random.Random], Task]] = {
    "echo": _echo,
    "scripts": _scripts,
    "reverse": _reverse,
    "case": _case,
    "list": _list,
    "table": _table,
}
MIX = {"echo": 0.10, "scripts": 0.10, "reverse": 0.08, "case": 0.05, "list": 0.17, "table": 0.50}


def _task(rng: random.Random, *, for_test: bool, form: str | None = None) -> Task:
    while True:
        task = FORMS[form or weighted(rng, MIX)](rng)
        if held_out(f"{DOMAIN}/{task.form}/{task.key}") == for_test:
            return task


def train_sample(rng: random.Random) -> Sample:
    """Return one exercise as a chat."""
    task = _task(rng, for_test=False)
    turn = {"role": "assistant", "content": task.answer}
    if task.reasoning:
        turn["reasoning_content"] = task.reasoning
    messages = ({"role": "user", "content": task.question}, turn)
    return Sample(DOMAIN, messages=messages, thinking=bool(task.reasoning))


def test_items(count: int, seed: int) -> list[Item]:
    """Return items of all forms in turn, each with a payload that training never shows."""
    rng = random.Random(seed)
    items: dict[str, Item] = {}
    while len(items) < count:
        task = _task(rng, for_test=True, form=list(FORMS)[len(items) % len(FORMS)])
        fields = {"form": task.form, "boilerplate": [task.boilerplate] if task.boilerplate else []}
        items.setdefault(
            task.question,
            Item(
                DOMAIN,
                f"{DOMAIN}-{len(items):04d}",
                messages=({"role": "user", "content": task.question},),
                thinking=bool(task.reasoning),
                answer=task.answer,
                fields=fields,
            ),
        )
    return list(items.values())


def score(item: Item, output: str) -> bool:
    """Whether the answer is right to the last character; of a reversal only the result counts."""
    written, right = answer_of(output), item.answer
    if item.fields["form"] == "reverse":
        return written.rpartition(" ")[2] == right.rpartition(" ")[2]
    return written == right
