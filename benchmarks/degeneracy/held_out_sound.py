"""Healthy texts of families that the limits were not chosen on: hard ones, with much repetition.

They were written after the limits were fixed, and evaluated once. After a change of a limit because of them, move them
to sound.py and write others.
"""

import random
from collections.abc import Callable

from benchmarks.degeneracy.sources import phrase, prose, sentences, vocabulary

Maker = Callable[[random.Random, str], str]
PEOPLE = ("Ms. Okafor", "Mr. Lindqvist", "Dr. Tanaka", "Mrs. Moreau", "Prof. Haddad", "Mr. Novak", "Ms. Silva")
SIGNS = ("Aries", "Taurus", "Gemini", "Cancer", "Leo", "Virgo", "Libra", "Scorpio", "Sagittarius", "Capricorn")
MANTRAS = ("Om mani padme hum. ", "I am calm. I am safe. ", "Row, row, row your boat. ", "Breathe in. Breathe out. ")


def _word(rng: random.Random, part: str) -> str:
    return rng.choice(vocabulary(part))


def _merged_mail(rng: random.Random, part: str) -> str:
    """One reminder to three, four or five customers, each with a sum and a day."""
    body, last = prose(rng, part, rng.randint(200, 800)), prose(rng, part, 80)
    return "\n\n---\n\n".join(
        f"Dear {who},\n\nYour balance of {rng.randint(20, 900)}.{rng.randint(0, 99):02d} euros is due on"
        f" {rng.randint(1, 28)} March. {body}\n\n{last}\nKind regards"
        for who in rng.sample(PEOPLE, rng.randint(3, 5))
    )


def _invoices(rng: random.Random, part: str) -> str:
    seller, notes = phrase(rng, part, 2, 3).title(), prose(rng, part, rng.randint(60, 250))
    return "\n\n".join(
        f"INVOICE {2026000 + at}\n{seller} Ltd.\n{_word(rng, part).title()}    {rng.randint(1, 9)} x"
        f" {rng.randint(5, 90)}.00\nTotal    {rng.randint(5, 900)}.00\n{notes}"
        for at in range(rng.randint(3, 6))
    )


def _minutes(rng: random.Random, part: str) -> str:
    heads = [phrase(rng, part, 1, 3).title() for _ in range(4)]
    return "\n\n".join(
        f"Meeting of week {week}\nPresent: Anna, Ben, Carla. Absent: nobody.\n"
        + "\n".join(
            f"{head}: {rng.choice(('nothing new.', 'postponed.', rng.choice(sentences(part))))}" for head in heads
        )
        for week in range(1, rng.randint(4, 12))
    )


def _chorus(rng: random.Random, part: str) -> str:
    """Verse, chorus, bridge; the chorus up to five times, twice at the end."""
    lines = [phrase(rng, part, 3, 6) for _ in range(rng.randint(2, 4))]
    chorus = "[Chorus]\n" + "\n".join([*lines, lines[0], lines[0]])
    verses = ["[Verse]\n" + "\n".join(phrase(rng, part, 3, 7) for _ in range(4)) for _ in range(rng.randint(2, 3))]
    return "\n\n".join([part for verse in verses for part in (verse, chorus)] + ["[Outro]", chorus, chorus])


def _mantra(rng: random.Random, part: str) -> str:
    return prose(rng, part, 200) + "\n\n" + rng.choice(MANTRAS) * rng.randint(3, 8) + "\n\n" + prose(rng, part, 300)


def _python_tests(rng: random.Random, part: str) -> str:
    name, thing = _word(rng, part), _word(rng, part)
    return "\n\n".join(
        f"def test_{name}_{_word(rng, part)}():\n    {thing} = {name.title()}({rng.randint(0, 99)})\n"
        f"    assert {thing}.{_word(rng, part)}() == {rng.randint(0, 99)}\n    assert not {thing}.closed"
        for _ in range(rng.randint(5, 30))
    )


def _css(rng: random.Random, part: str) -> str:
    return "\n".join(
        f".{_word(rng, part)} {{\n  margin: 0;\n  padding: {rng.choice((0, 4, 8))}px;\n"
        f"  color: #{rng.randrange(4096):03x};\n}}"
        for _ in range(rng.randint(6, 40))
    )


def _changes(rng: random.Random, part: str) -> str:
    starts = ("Fixed a bug in", "Fixed a crash in", "Added support for", "Removed the deprecated option", "Updated")
    return "\n".join(f"- {rng.choice(starts)} {phrase(rng, part, 1, 3)}." for _ in range(rng.randint(10, 60)))


def _dictionary(rng: random.Random, part: str) -> str:
    return "\n".join(
        f"{_word(rng, part)} ({rng.choice(('n.', 'v.', 'adj.'))}): of or relating to {phrase(rng, part, 2, 6)}."
        for _ in range(rng.randint(8, 50))
    )


def _choices(rng: random.Random, part: str) -> str:
    """A questionnaire: the same five answers below each question."""
    answers = "A) Never  B) Rarely  C) Sometimes  D) Often  E) Always"
    if rng.random() < 0.5:
        answers = "\n".join(f"( ) {answer}" for answer in ("agree", "rather agree", "rather disagree", "disagree"))
    return "\n\n".join(
        f"{at}. How often do you {phrase(rng, part, 3, 10)}?\n{answers}" for at in range(1, rng.randint(6, 25))
    )


def _contract(rng: random.Random, part: str) -> str:
    starts = ("The Supplier shall", "The Customer shall not", "Neither party shall", "The Supplier may, upon notice,")
    return "\n".join(
        f"{rng.randint(1, 9)}.{at} {rng.choice(starts)} {phrase(rng, part, 6, 18)}, unless agreed otherwise in writing."
        for at in range(1, rng.randint(6, 30))
    )


def _config(rng: random.Random, part: str) -> str:
    keys = [_word(rng, part) for _ in range(4)]
    return "\n\n".join(
        f"[{_word(rng, part)}.{at}]\nenabled = true\n" + "\n".join(f"{key} = {rng.choice((0, 1, 10))}" for key in keys)
        for at in range(rng.randint(4, 25))
    )


def _grid(rng: random.Random, part: str) -> str:
    line = "+---+---+---+---+---+---+---+---+---+"
    rows = ["| " + " | ".join(rng.choice("      123456789") for _ in range(9)) + " |" for _ in range(9)]
    return prose(rng, part, 150) + "\n\n" + "\n".join(f"{line}\n{row}" for row in rows) + f"\n{line}\n"


def _play(rng: random.Random, part: str) -> str:
    def spoken() -> str:
        return rng.choice(("Yes.", "No.", "Yes.", "Why?", "(Pause.)", "(Silence.)", rng.choice(sentences(part))))

    return "\n".join(f"{rng.choice(('VLADIMIR', 'ESTRAGON'))}: {spoken()}" for _ in range(rng.randint(20, 90)))


def _horoscope(rng: random.Random, part: str) -> str:
    """The same frame for each sign, filled with other words."""
    signs = SIGNS[: rng.randint(5, 10)]
    return "\n\n".join(
        f"{sign}\nThis week the stars ask you to {phrase(rng, part, 3, 8)}. In love, be {_word(rng, part)} and"
        f" {_word(rng, part)}. At work, {phrase(rng, part, 4, 9)}. Your lucky number is {rng.randint(1, 99)}."
        for sign in signs
    )


def _git_log(rng: random.Random, part: str) -> str:
    return "\n\n".join(
        f"commit {rng.randbytes(20).hex()}\nAuthor: Anna Berg <anna@example.com>\nDate:   Mon Mar {rng.randint(1, 31)}"
        f" 10:{rng.randint(0, 59):02d}:00 2026 +0100\n\n    {phrase(rng, part, 2, 8).capitalize()}"
        for _ in range(rng.randint(4, 30))
    )


def _assembly(rng: random.Random, part: str) -> str:
    rows = [f"    mov {rng.choice(('eax', 'ebx'))}, [rbp-{4 * rng.randint(1, 9)}]" for _ in range(rng.randint(5, 30))]
    return f"{_word(rng, part)}:\n" + "\n".join([*rows, *["    nop"] * rng.randint(0, 30), "    ret"])


def _ping(rng: random.Random, part: str) -> str:
    return "\n".join(
        f"64 bytes from 10.0.0.{rng.randint(1, 2)}: icmp_seq={at} ttl=64 time=0.0{rng.randint(30, 60)} ms"
        for at in range(1, rng.randint(10, 80))
    )


def _drills(rng: random.Random, part: str) -> str:
    """A language lesson: one verb through all persons, in several sentences."""
    persons = ("I", "You", "He", "She", "It", "We", "You all", "They")
    return "\n\n".join(
        "\n".join(f"{person} will {what}." for person in persons)
        for what in (phrase(rng, part, 2, 6) for _ in range(rng.randint(2, 6)))
    )


def _stories(rng: random.Random, part: str) -> str:
    """A tale with the same words at each of three doors."""
    asked = " ".join(rng.choice(sentences(part)) for _ in range(rng.randint(1, 4)))
    doors = ("first", "second", "third", "fourth")[: rng.randint(3, 4)]
    return "\n\n".join(
        f"At the {door} door she said: {asked} {prose(rng, part, rng.randint(40, 200))}" for door in doors
    )


FAMILIES: dict[str, tuple[str, Maker]] = {
    "merged mail": ("prose", _merged_mail),
    "invoices": ("any", _invoices),
    "minutes": ("prose", _minutes),
    "choruses": ("prose", _chorus),
    "mantras": ("prose", _mantra),
    "Python tests": ("code", _python_tests),
    "CSS": ("code", _css),
    "changes": ("prose", _changes),
    "dictionaries": ("prose", _dictionary),
    "multiple choice": ("any", _choices),
    "contracts": ("prose", _contract),
    "settings": ("code", _config),
    "grids": ("any", _grid),
    "plays": ("prose", _play),
    "horoscopes": ("prose", _horoscope),
    "git logs": ("any", _git_log),
    "assembly": ("code", _assembly),
    "ping": ("any", _ping),
    "drills": ("prose", _drills),
    "three doors": ("prose", _stories),
}
