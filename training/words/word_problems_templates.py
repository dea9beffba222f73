"""The stories that word problems are made of, each with the steps of its solution.

`{N}` is who it is about and `{X}` what is counted: both stand in every sentence, so that any 13 words in a row hold the
pair that `word_problems` keeps apart for the tests. `{M}` and `{K}` are other people, `{Y}` is another thing. Small
letters are numbers, `{=}` in a step is its calculation, and the other words in braces are slots of `WORDS`.
Calculations are written without spaces, as GSM8K does: a space before a number would be a token of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

LARGE_NUMBER = 4000  # how hard the arithmetic is: the largest number that a story starts from

RANGES: Mapping[str, tuple[int, int]] = {"few": (2, 60), "dozen": (3, 120), "many": (11, LARGE_NUMBER)}

WORDS: Mapping[str, tuple[str, ...]] = {
    "buys": ("buys", "gets", "finds", "orders"),
    "loses": ("loses", "sells", "gives away", "uses", "throws away"),
    "makes": ("makes", "collects", "sorts", "packs", "paints", "cleans"),
    "boxes": ("boxes", "bags", "baskets", "crates", "trays", "packs"),
    "now": ("now", "then", "in the end"),
    "friends": ("friends", "cousins", "neighbours", "children"),
    "days": ("days", "weeks", "months"),
    "first": ("On Monday", "At first", "In the morning", "One day"),
    "then": ("Then", "Later", "After that", "The next day"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """One sentence of a solution: `left operator right` gives `result`, which later steps can use."""

    text: str
    calculation: str
    result: str


@dataclass(frozen=True, slots=True)
class Template:
    """A story: which numbers are drawn from which range, which follow from them, and how it is solved."""

    name: str
    draws: Mapping[str, str]
    story: str
    steps: tuple[Step, ...]
    derived: Mapping[str, Callable[[Mapping[str, int]], int]]


def _template(name: str, draws: str, story: str, *steps: tuple[str, str, str], **derived: Callable) -> Template:
    pairs = dict(pair.split(":") for pair in draws.split())
    return Template(name, pairs, story, tuple(Step(*step) for step in steps), derived)


TEMPLATES: tuple[Template, ...] = (
    _template(
        "buys boxes",
        "a:many b:few c:dozen",
        "{N} has {a} {X}. {then} {N} {buys} {b} {boxes} with {c} {X} each. How many {X} does {N} have {now}?",
        ("First the {X}: in the {boxes} {N} has {=} {X}.", "b * c", "t"),
        ("With the other {X} {N} has {=} {X}.", "a + t", "u"),
    ),
    _template(
        "loses from boxes",
        "a:many b:few c:dozen",
        "{N} has {b} {boxes} with {c} {X} each. {then} {N} {loses} {a} {X}. How many {X} does {N} have {now}?",
        ("First the {X}: {N} has {=} {X}.", "b * c", "t"),
        ("After that {N} has {=} {X}.", "t - a", "u"),
    ),
    _template(
        "more than",
        "a:many b:many",
        "{N} has {a} {X}. {M} has {b} more {X} than {N}. How many {X} do {N} and {M} have together?",
        ("First the {X}: {M} has {=} {X}.", "a + b", "t"),
        ("Together {N} and {M} have {=} {X}.", "a + t", "u"),
    ),
    _template(
        "times as many",
        "a:many b:few",
        "{N} has {a} {X}. {M} has {b} times as many {X} as {N}. How many {X} do {N} and {M} have together?",
        ("First the {X}: {M} has {=} {X}.", "b * a", "t"),
        ("Together {N} and {M} have {=} {X}.", "a + t", "u"),
    ),
    _template(
        "change",
        "a:few p:dozen r:many",
        "{N} has {m} coins. {N} buys {a} {X} for {p} coins each. How many coins does {N} have after buying {X}?",
        ("First the {X}: they cost {N} {=} coins.", "a * p", "t"),
        ("After buying {X} {N} has {=} coins.", "m - t", "u"),
        m=lambda v: v["a"] * v["p"] + v["r"],
    ),
    _template(
        "profit",
        "a:many p:dozen d:few",
        "{N} buys {a} {X} for {p} coins each. {then} {N} sells all {X} for {q} coins each. "
        "How many coins does {N} earn with the {X}?",
        ("First the {X}: with each {N} earns {=} coins.", "q - p", "t"),
        ("With all {X} {N} earns {=} coins.", "a * t", "u"),
        q=lambda v: v["p"] + v["d"],
    ),
    _template(
        "shares",
        "b:many c:few q:dozen",
        "{N} has {a} {X} and {buys} {b} more {X}. {then} {N} shares the {X} equally among {c} {friends}. "
        "How many {X} does {N} give to each?",
        ("First the {X}: in all {N} has {=} {X}.", "a + b", "t"),
        ("To each of them {N} gives {=} {X}.", "t / c", "u"),
        a=lambda v: v["c"] * v["q"] - v["b"],
    ),
    _template(
        "every day",
        "a:dozen d:few b:many",
        "{N} {makes} {a} {X} per day for {d} days. {then} {N} {loses} {b} {X}. How many {X} does {N} have {now}?",
        ("First the {X}: in {d} days {N} {makes} {=} {X}.", "d * a", "t"),
        ("After that {N} has {=} {X}.", "t - b", "u"),
    ),
    _template(
        "packs the rest",
        "b:many c:few q:dozen",
        "{N} has {a} {X} and {loses} {b} {X}. {N} puts the other {X} into {boxes} of {c}. "
        "How many {boxes} does {N} fill with {X}?",
        ("First the {X}: without those {N} has {=} {X}.", "a - b", "t"),
        ("With these {X} {N} fills {=} {boxes}.", "t / c", "u"),
        a=lambda v: v["c"] * v["q"] + v["b"],
    ),
    _template(
        "hours of work",
        "a:dozen b:few c:few",
        "{N} {makes} {a} {X} per hour. {first} {N} works {b} hours on the {X}. "
        "{then} {N} works {c} more hours on the {X}. How many {X} does {N} finish?",
        ("First the {X}: for them {N} works {=} hours.", "b + c", "t"),
        ("So of {X} {N} {makes} {=}.", "t * a", "u"),
    ),
    _template(
        "three days",
        "a:many b:few",
        "On Monday {N} {makes} {a} {X}. On Tuesday {N} has twice as many {X}. On Wednesday {N} has {b} {X} "
        "fewer than on Tuesday. How many {X} does {N} have in all?",
        ("First the {X}: on Tuesday {N} has {=} {X}.", "2 * a", "t"),
        ("On Wednesday {N} has {=} {X}.", "t - b", "u"),
        ("In two days {N} has {=} {X}.", "a + t", "v"),
        ("In three days {N} has {=} {X}.", "v + u", "w"),
    ),
    _template(
        "gives half",
        "h:many b:many",
        "{N} has {a} {X}. {N} gives half of the {X} to {M}. {then} {N} {buys} {b} {X}. "
        "How many {X} does {N} have {now}?",
        ("First the {X}: for {N} half is {=} {X}.", "a / 2", "t"),
        ("After that {N} has {=} {X}.", "t + b", "u"),
        a=lambda v: 2 * v["h"],
    ),
    _template(
        "two prices",
        "a:few p:dozen b:few q:dozen",
        "{N} buys {a} {X} for {p} coins each. With the {X} {N} buys {b} {Y} for {q} coins each. "
        "How many coins does {N} pay for {X} and {Y}?",
        ("First the {X}: they cost {N} {=} coins.", "a * p", "t"),
        ("Like the {X}, the {Y} cost {N} {=} coins.", "b * q", "u"),
        ("For {X} and {Y} {N} pays {=} coins.", "t + u", "v"),
    ),
    _template(
        "still needs",
        "b:many c:dozen d:few e:many",
        "{N} needs {a} {X}. {N} has {b} {X}. {N} gets {c} {X} from each of {d} {friends}. "
        "How many {X} does {N} still need?",
        ("First the {X}: from the {friends} {N} gets {=} {X}.", "d * c", "t"),
        ("With the other {X} {N} has {=} {X}.", "b + t", "u"),
        ("So {N} still needs {=} {X}.", "a - u", "v"),
        a=lambda v: v["b"] + v["c"] * v["d"] + v["e"],
    ),
    _template(
        "two kinds of rows",
        "a:few b:dozen c:few d:dozen",
        "{N} lays out {a} rows with {b} {X} each. {then} {N} lays out {c} rows with {d} {X} each. "
        "How many {X} does {N} use?",
        ("First the {X}: {N} uses {=} {X}.", "a * b", "t"),
        ("Then {N} uses {=} {X}.", "c * d", "u"),
        ("In all {N} uses {=} {X}.", "t + u", "v"),
    ),
    _template(
        "broken ones",
        "a:dozen t:dozen c:few",
        "{N} {buys} {a} {boxes} with {b} {X} each. {c} of the {X} that {N} sees in each are broken. "
        "How many good {X} does {N} have?",
        ("First the {X}: in each {N} has {=} good {X}.", "b - c", "g"),
        ("In all {N} has {=} good {X}.", "a * g", "u"),
        b=lambda v: v["t"] + v["c"],
    ),
    _template(
        "average",
        "b:many c:many q:many",
        "On Monday {N} {makes} {a} {X}. On Tuesday {N} {makes} {b} {X}. On Wednesday {N} {makes} {c} {X}. "
        "How many {X} is that for {N} per day?",
        ("First the {X}: in two days {N} {makes} {=} {X}.", "a + b", "t"),
        ("In three days {N} {makes} {=} {X}.", "t + c", "u"),
        ("Per day {N} {makes} {=} {X}.", "u / 3", "v"),
        a=lambda v: 3 * v["q"] - v["b"] - v["c"],
    ),
    _template(
        "savings",
        "a:dozen b:few c:many",
        "To buy {X}, {N} saves {a} coins a week for {b} weeks. The {X} cost {N} {c} coins. "
        "How many coins does {N} have after buying {X}?",
        ("First the {X}: for them {N} saves {=} coins.", "b * a", "t"),
        ("After buying {X} {N} has {=} coins.", "t - c", "u"),
    ),
    _template(
        "three people",
        "t:many b:few c:few",
        "{N} has {a} {X}. {M} has {b} fewer {X} than {N}. {K} has {c} times as many {X} as {M}. "
        "How many more {X} than {N} does {K} have?",
        ("First the {X}: {M} has {=} {X}.", "a - b", "u"),
        ("Next, {K} has {=} {X}.", "c * u", "v"),
        ("More {X} than {N}: {K} has {=} more {X}.", "v - a", "w"),
        a=lambda v: v["t"] + v["b"],
    ),
    _template(
        "who has more",
        "a:dozen b:dozen c:few d:few",
        "{N} fills {a} {boxes} with {b} {X} each. {M} fills {c} {boxes} with {d} {X} each. "
        "How many more {X} does {N} have than {M}?",
        ("First the {X}: in the {boxes} {N} has {=} {X}.", "a * b", "t"),
        ("In the {boxes} {M} has {=} {X}.", "c * d", "u"),
        ("More {X} than {M}: {N} has {=} more {X}.", "t - u", "v"),
    ),
    _template(
        "uses up",
        "b:dozen c:few e:many",
        "{N} has {a} {X} and uses {b} {X} every day. After {c} days {N} {buys} {d} {X}. "
        "How many {X} does {N} have {now}?",
        ("First the {X}: in {c} days {N} uses {=} {X}.", "c * b", "t"),
        ("Before buying {X} {N} has {=} {X}.", "a - t", "u"),
        ("After that {N} has {=} {X}.", "u + d", "v"),
        a=lambda v: v["b"] * v["c"] + v["e"],
        d=lambda v: v["e"] // 2 + v["b"],
    ),
    _template(
        "sells twice",
        "a:many b:many p:few",
        "{first} {N} sells {a} {X}. {then} {N} sells {b} {X}. {N} gets {p} coins for each of the {X}. "
        "How many coins does {N} get?",
        ("First the {X}: in all {N} sells {=} {X}.", "a + b", "t"),
        ("For the {X} {N} gets {=} coins.", "p * t", "u"),
    ),
    _template(
        "splits packs",
        "b:few c:dozen d:many",
        "{N} {buys} {b} {boxes} with {c} {X} each. {N} shares the {X} equally with {M}. {N} already has {d} {X}. "
        "How many {X} does {N} have {now}?",
        ("First the {X}: in the {boxes} {N} has {=} {X}.", "b * c", "t"),
        ("Of these {X} {N} keeps {=} {X}.", "t / 2", "u"),
        ("With the other {X} {N} has {=} {X}.", "d + u", "v"),
    ),
    _template(
        "gives to each",
        "b:few c:dozen d:few e:many",
        "{N} has {a} {X}. {N} gives {b} {X} to each of {c} {friends}. {then} {N} {loses} {d} {X}. "
        "How many {X} does {N} have {now}?",
        ("First the {X}: to the {friends} {N} gives {=} {X}.", "c * b", "t"),
        ("After giving, {N} has {=} {X}.", "a - t", "u"),
        ("After that {N} has {=} {X}.", "u - d", "v"),
        a=lambda v: v["b"] * v["c"] + v["d"] + v["e"],
    ),
)
