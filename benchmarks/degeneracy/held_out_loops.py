"""Loops of families that the limits were not chosen on, and loops cut after few repeats.

They were written after the limits were fixed, and evaluated once. After a change of a limit because of them, move them
to loops.py and write others.
"""

import random
from collections.abc import Callable

from benchmarks.degeneracy.sources import Labelled, modules, phrase, prose, sentences, slice_of, vocabulary

Maker = Callable[[random.Random, str], str]
EUROPEAN = (
    "Die Katze sitzt am Fenster und schaut hinaus auf die Straße. ",
    "El gato duerme todo el día y por la noche sale a cazar. ",
    "Le chat regarde par la fenêtre et ne dit rien à personne. ",
    "Kot śpi na piecu i śni o myszach, które biegają po łące. ",
    "Kissa istuu ikkunalla ja katselee, kun lumi sataa hiljaa. ",
)
OTHERS = (
    "बिल्ली खिड़की पर बैठी है और बाहर देख रही है। ",
    "แมวนั่งอยู่ที่หน้าต่างและมองออกไปข้างนอก ",
    "החתול יושב ליד החלון ומסתכל החוצה. ",
    "კატა ფანჯარასთან ზის და გარეთ იყურება. ",
    "Con mèo ngồi bên cửa sổ và nhìn ra ngoài. ",
)
APOLOGIES = (
    "I apologize for the confusion in my previous answer.",
    "You are right, and I am sorry for the mistake.",
    "Let me correct that for you now.",
    "Here is the corrected version of the answer.",
)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
THOUGHTS = ("So the total is {0}. But wait, I should check {1} again.", "Let me verify: {1} gives {0}, so it is {0}.",
            "Hmm, {0} does not look right for {1}. Let me redo it.")  # fmt: skip


def again(rng: random.Random, unit: str, least: int = 700) -> str:
    """At least six times, and until an answer of a few hundred tokens is full."""
    times = max(6, least // len(unit) + 1)
    return unit * rng.randint(times, 2 * times) + unit[: rng.randrange(len(unit))]


def _steps(rng: random.Random, part: str) -> str:
    rows = [f"{at}. {phrase(rng, part, 3, 9).capitalize()}." for at in range(1, rng.randint(3, 6))]
    return again(rng, "\n".join(rows) + "\n\n")


def _quarrel(rng: random.Random, part: str) -> str:
    what = phrase(rng, part, 2, 6)
    return again(rng, f'"It is {what}," said Anna. "It is not {what}," said Ben.\n')


def _asks_itself(rng: random.Random, part: str) -> str:
    return again(rng, f"Question: What is {phrase(rng, part, 1, 4)}?\nAnswer: {rng.choice(sentences(part))}\n\n")


def _apologies(rng: random.Random, part: str) -> str:
    """One of four sentences at a time, never the same twice in a row."""
    said = [rng.choice(APOLOGIES)]
    while len(said) < rng.randint(40, 70):
        said.append(rng.choice([one for one in APOLOGIES if one != said[-1]]))
    return " ".join(said)


def _conclusions(rng: random.Random, part: str) -> str:
    """The last section again and again; a word of its heading differs."""
    body = prose(rng, part, rng.randint(120, 400))
    heads = ("Conclusion", "Summary", "Final thoughts", "In closing")
    return "\n\n".join(f"## {rng.choice(heads)}\n\n{body}" for _ in range(rng.randint(9, 16)))


def _ordinals(rng: random.Random, part: str) -> str:
    """It counts, in words."""
    say = phrase(rng, part, 8, 16)
    return " ".join(f"The {ORDINALS[at % 10]} reason is that {say}." for at in range(rng.randint(14, 30)))


def _thoughts(rng: random.Random, part: str) -> str:
    number, what = rng.randint(10, 999), phrase(rng, part, 1, 3)
    return "<think>" + " ".join(rng.choice(THOUGHTS).format(number, what) for _ in range(rng.randint(30, 50)))


def _items(rng: random.Random, part: str) -> str:
    word = rng.choice(vocabulary(part))
    return "<ul>\n" + again(rng, f'  <li><a href="/{word}">{phrase(rng, part, 1, 3)}</a></li>\n', 1400)


def _function(rng: random.Random, part: str) -> str:
    name, other = rng.choice(vocabulary(part)), rng.choice(vocabulary(part))
    return again(rng, f"def {name}(self, {other}):\n    return self.{name}({other})\n\n", 1400)


def _session(rng: random.Random, part: str) -> str:
    words = [rng.choice(vocabulary(part)) for _ in range(3)]
    return again(rng, f"$ ls {words[0]}\n{words[1]}.txt  {words[2]}.txt\n$ cd {words[0]}\n", 1400)


def _query(rng: random.Random, part: str) -> str:
    name, value = rng.choice(vocabulary(part)), rng.choice(vocabulary(part))
    return f"https://example.com/{value}?" + again(rng, f"{name}={value}&", 1400)


def _shouted(rng: random.Random, part: str) -> str:
    return again(rng, phrase(rng, part, 1, 3).upper() + rng.choice(("! ", "!!! ", "... ")))


def _section(rng: random.Random, part: str) -> str:
    """A heading, a paragraph, a list."""
    points = "".join(f"- {phrase(rng, part, 2, 6)}\n" for _ in range(3))
    return again(rng, f"### {phrase(rng, part, 1, 3).title()}\n\n{prose(rng, part, 250)}\n\n{points}\n")


def _drifts_in(rng: random.Random, part: str) -> str:
    """Two sentences take turns, then only one is left."""
    one, two = rng.sample(sentences(part), 2)
    return f"{one} {two} " * 3 + f"{one} " * rng.randint(9, 16)


FAMILIES: dict[str, tuple[str, Maker]] = {
    "steps": ("prose", _steps),
    "quarrel": ("prose", _quarrel),
    "asks itself": ("prose", _asks_itself),
    "apologies": ("prose", _apologies),
    "conclusions": ("prose", _conclusions),
    "ordinals": ("prose", _ordinals),
    "thoughts in no order": ("prose", _thoughts),
    "European": ("prose", lambda rng, part: again(rng, rng.choice(EUROPEAN))),
    "more scripts": ("prose", lambda rng, part: again(rng, rng.choice(OTHERS))),
    "HTML items": ("any", _items),
    "functions": ("code", _function),
    "sessions": ("any", _session),
    "queries": ("any", _query),
    "shouted": ("prose", _shouted),
    "sections": ("prose", _section),
    "drifts in": ("prose", _drifts_in),
}
REPEATS = (3, 4, 5, 6, 8, 12)
UNITS: dict[str, tuple[str, Maker]] = {
    "a word": ("prose", lambda rng, part: phrase(rng, part, 1, 1) + " "),
    "a sentence": ("prose", lambda rng, part: rng.choice(sentences(part)) + " "),
    "a paragraph": ("prose", lambda rng, part: prose(rng, part, rng.randint(300, 700)) + "\n\n"),
    "a list": ("prose", lambda rng, part: "".join(f"- {phrase(rng, part, 3, 8)}\n" for _ in range(4)) + "\n"),
    "lines of code": ("code", lambda rng, part: slice_of(rng, modules(part), 120, 400) + "\n"),
}


def cut_loops(part: str, each: int, repeats: int, unit: str) -> list[Labelled]:
    """Return texts that were cut after so many repeats: fewer than six are detected late or never."""
    kind, make = UNITS[unit]
    rng = random.Random(f"{part} {unit} {repeats}")
    return [
        Labelled(prose(rng, part, rng.choice((0, 200, 1000))) + "\n\n" + make(rng, part) * repeats, unit, True, kind)
        for _ in range(each)
    ]
