"""Hard negatives: sound texts that repeat much, as tables, code, songs, logs and numbers do."""

import base64
import random
from collections.abc import Callable

from benchmarks.degeneracy.held_out_sound import FAMILIES as HELD_OUT
from benchmarks.degeneracy.sound_copies import FAMILIES as COPIES
from benchmarks.degeneracy.sources import (
    Labelled,
    documents,
    licence,
    modules,
    pages,
    phrase,
    prose,
    records,
    sentences,
    slice_of,
    vocabulary,
)

Maker = Callable[[random.Random, str], str]


def _word(rng: random.Random, part: str) -> str:
    return rng.choice(vocabulary(part))


def _rows(rng: random.Random, low: int, high: int, row: Callable[[int], str]) -> str:
    return "\n".join(row(at) for at in range(1, rng.randint(low, high)))


def _markdown_table(rng: random.Random, part: str) -> str:
    width = rng.randint(2, 8)
    cells = [rng.choice(("yes", "no", "-", "", "0", "n/a", "OK", _word(rng, part))) for _ in range(4)]
    head = "| " + " | ".join(_word(rng, part) for _ in range(width)) + " |\n" + "|---" * width + "|\n"
    return head + _rows(
        rng,
        5,
        40,
        lambda at: f"| {_word(rng, part)} | " + " | ".join(rng.choice(cells) for _ in range(width - 1)) + " |",
    )


def _html_table(rng: random.Random, part: str) -> str:
    width, empty = rng.randint(3, 7), rng.random() * 0.7

    def row(at: int) -> str:
        return (
            "<tr>"
            + "".join(f"<td>{'' if rng.random() < empty else rng.randint(1, 31)}</td>" for _ in range(width))
            + "</tr>"
        )

    return f"<table>\n{_rows(rng, 5, 40, row)}\n</table>"


def _song(rng: random.Random, part: str) -> str:
    refrain = "\n".join(phrase(rng, part, 4, 8) for _ in range(rng.randint(1, 4)))
    tail = "\n".join(rng.choice(("la la la la la", "hey, hey, hey", "na na na na")) for _ in range(rng.randint(0, 6)))
    verses = [
        "\n".join(phrase(rng, part, 4, 8) for _ in range(rng.randint(2, 5))) + f"\n\n{refrain}"
        for _ in range(rng.randint(3, 7))
    ]
    return "\n\n".join([*verses, *[refrain] * rng.randint(0, 2), tail])


def _litany(rng: random.Random, part: str) -> str:
    answer = rng.choice(("pray for us.", "have mercy on us.", "hear our prayer.", "we thank you."))
    return _rows(rng, 10, 50, lambda at: f"{phrase(rng, part, 1, 4).capitalize()}, {answer}")


def _chant(rng: random.Random, part: str) -> str:
    line = phrase(rng, part, 2, 6).capitalize() + "!"
    return "\n".join([prose(rng, part, 200), *[line] * rng.randint(2, 4), prose(rng, part, 300)])


def _bottles(rng: random.Random, part: str) -> str:
    thing = _word(rng, part)
    first = rng.randint(10, 99)
    line = (
        "{0} bottles of {1} on the wall, {0} bottles of {1}.\n"
        "Take one down and pass it around, {2} bottles of {1} on the wall."
    )
    return "\n".join(line.format(first - at, thing, first - at - 1) for at in range(rng.randint(4, 10)))


def _digits(rng: random.Random, part: str) -> str:
    """Digits of a fraction or of a root: the first are periodic."""
    count = rng.randint(300, 1200)
    number = rng.choice((3, 7, 11, 13, 17, 27, 37, 41, 97, 101))
    if rng.random() < 0.5:
        return f"1/{number} = 0." + str(10 ** min(count, 900) // number).zfill(min(count, 900))
    from math import isqrt

    return f"The root of {number} is " + str(isqrt(number * 10 ** (2 * count)))


def _json_array(rng: random.Random, part: str) -> str:
    keys = [_word(rng, part) for _ in range(rng.randint(2, 5))]
    values = ("null", "true", "false", "0", '""', "[]", f'"{_word(rng, part)}"')
    rows = [
        "  {" + f'"id": {at}, ' + ", ".join(f'"{key}": {rng.choice(values)}' for key in keys) + "}"
        for at in range(rng.randint(5, 60))
    ]
    return "[\n" + ",\n".join(rows) + "\n]"


def _matrix(rng: random.Random, part: str) -> str:
    cell = rng.choice(("0", "0.0", "null", "1", "false"))
    count = rng.randint(20, 80)
    row = "[" + ", ".join([cell] * rng.randint(4, 12)) + "]"
    return '{"' + _word(rng, part) + '": [' + ", ".join([row] * (count // 8)) + f'], "{_word(rng, part)}": {cell}}}'


def _log(rng: random.Random, part: str) -> str:
    what = [phrase(rng, part, 2, 6) for _ in range(3)]
    second = rng.randint(0, 50000)

    def row(at: int) -> str:
        nonlocal second
        second += rng.choice((0, 1, 1, 1, 5))
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        return (
            f"2026-03-01 {clock} {rng.choice(('INFO', 'INFO', 'WARN'))} {rng.choice(what)} in {rng.randint(1, 40)} ms"
        )

    return _rows(rng, 8, 80, row)


def _retries(rng: random.Random, part: str) -> str:
    line = f"{phrase(rng, part, 2, 4)}: {phrase(rng, part, 3, 7)}, trying again"
    return "\n".join([_log(rng, part), *[line] * rng.randint(2, 4), "gave up", _log(rng, part)])


def _times_table(rng: random.Random, part: str) -> str:
    sign, step = rng.choice(("x", "*", "times", "\u00d7")), rng.randint(1, 12)
    return _rows(rng, 8, 30, lambda at: f"{at} {sign} {step} = {at * step}")


def _in_words(rng: random.Random, part: str) -> str:
    thing = _word(rng, part)
    return _rows(rng, 5, 30, lambda at: f"{at} {thing} and {at + 1} {thing} is {2 * at + 1}")


def _csv(rng: random.Random, part: str) -> str:
    names = [_word(rng, part) for _ in range(3)]
    return _rows(
        rng, 10, 80, lambda at: f"{at},{rng.choice(names)},{rng.randint(0, 3)},{rng.choice(('', '0', '1.5'))},,"
    )


def _base64(rng: random.Random, part: str) -> str:
    data = bytes(rng.randint(0, 120)) + rng.randbytes(rng.randint(100, 2000)) + bytes(rng.randint(0, 120))
    return base64.encodebytes(data).decode()


def _dna(rng: random.Random, part: str) -> str:
    repeat = "".join(rng.choice("ACGT") for _ in range(rng.randint(2, 4))) * rng.randint(5, 40)
    bases = "".join(rng.choice("ACGT") for _ in range(rng.randint(300, 2000)))
    return ">seq\n" + bases + repeat[:150] + bases[::-1] + "A" * rng.randint(5, 120)


def _latex(rng: random.Random, part: str) -> str:
    width = rng.randint(3, 8)
    rows = [" & ".join(rng.choice(("0", "1", "-1", "x")) for _ in range(width)) for _ in range(rng.randint(3, 14))]
    return f"{prose(rng, part, 200)}\n\\begin{{pmatrix}}\n" + " \\\\\n".join(rows) + "\n\\end{pmatrix}"


def _tests(rng: random.Random, part: str) -> str:
    name = _word(rng, part)
    rows = [
        f"tests/test_{name}.py::test_{phrase(rng, part, 1, 3).replace(' ', '_')}[{at}] PASSED [{at:3d}%]"
        for at in range(100)
    ]
    return "\n".join(rows[: rng.randint(10, 100)]) + "\n" + "." * rng.randint(20, 400)


def _numbered_tests(rng: random.Random, part: str) -> str:
    name = phrase(rng, part, 1, 3).replace(" ", "_")
    return _rows(rng, 10, 80, lambda at: f"test_{name}_{at} (test_{name}.Tests) ... ok")


def _sql(rng: random.Random, part: str) -> str:
    table = _word(rng, part)
    return _rows(
        rng,
        6,
        50,
        lambda at: f"INSERT INTO {table} (id, name, mail) VALUES ({at}, 'user{at}', 'user{at}@example.com');",
    )


def _art(rng: random.Random, part: str) -> str:
    width = rng.randint(20, 80)
    rows = rng.choice((
        ["+" + "-" * width + "+", *["|" + " " * width + "|"] * rng.randint(3, 12), "+" + "-" * width + "+"],
        [" " * (width - at) + "*" * (2 * at + 1) for at in range(rng.randint(5, 25))],
        ["".join(rng.choice(" .:-=+*#%@") for _ in range(width)) for _ in range(rng.randint(5, 25))],
        ["#" * width, *["# " + phrase(rng, part, 2, 4) for _ in range(4)], "#" * width],
    ))  # fmt: skip
    return prose(rng, part, 150) + "\n\n" + "\n".join(rows) + "\n\n" + prose(rng, part, 150)


def _hexdump(rng: random.Random, part: str) -> str:
    line = " ".join(["00"] * 16)
    return _rows(
        rng, 8, 40, lambda at: f"{16 * at:08x}  " + (line if rng.random() < 0.6 else rng.randbytes(16).hex(" "))
    )


def _page(rng: random.Random, part: str) -> str:
    inner = "\n".join(
        f'    <div class="{_word(rng, part)}">{phrase(rng, part, 1, 6)}</div>' for _ in range(rng.randint(5, 30))
    )
    return "<div>" * rng.randint(2, 12) + "\n" + inner + "\n" + "</div>" * rng.randint(2, 12)


def _plan(rng: random.Random, part: str) -> str:
    rest = phrase(rng, part, 2, 3)
    return _rows(rng, 8, 40, lambda at: f"{at}. {phrase(rng, part, 3, 9).capitalize()} ({rest}).")


def _talk(rng: random.Random, part: str) -> str:
    return "\n\n".join(
        f'"{rng.choice(sentences(part))}" said {rng.choice(("Anna", "Ben"))}.' for _ in range(rng.randint(6, 30))
    )


def _licence(rng: random.Random, part: str) -> str:
    text = licence()
    start = rng.randrange(len(text) - 2000)
    return text[start : start + rng.randint(1000, 6000)]


def _chinese(rng: random.Random, part: str) -> str:
    from benchmarks.degeneracy.loops import CJK_WORDS

    words = [*CJK_WORDS.split(), *[chr(rng.randint(0x4E00, 0x8FFF)) for _ in range(300)]]
    return "。".join("".join(rng.choice(words) for _ in range(rng.randint(5, 20))) for _ in range(rng.randint(10, 60)))


def _asserts(rng: random.Random, part: str) -> str:
    name, factor = phrase(rng, part, 1, 2).replace(" ", "_"), rng.randint(2, 9)
    return _rows(rng, 6, 50, lambda at: f"    assert {name}({at}) == {at * factor}, {name}({at})")


def _weeks(rng: random.Random, part: str) -> str:
    """A training plan: most weeks have the same two days."""
    rest = [f"{day}: {phrase(rng, part, 2, 4)}." for day in ("Monday", "Thursday")]
    weeks = [
        f"Week {at}\n{rest[0]}\n{phrase(rng, part, 3, 12).capitalize()}.\n{rest[1]}"
        for at in range(1, rng.randint(5, 16))
    ]
    return "\n\n".join(weeks)


def _cumulative(rng: random.Random, part: str) -> str:
    """The house that Jack built: each verse has all earlier ones in it."""
    lines = [f"that {phrase(rng, part, 2, 4)} the {_word(rng, part)}" for _ in range(rng.randint(5, 9))]
    return "\n\n".join("This is the one\n" + "\n".join(lines[at::-1]) for at in range(len(lines)))


def _move(rng: random.Random) -> str:
    return rng.choice(("", "N", "B", "R", "Q", "K")) + rng.choice("abcdefgh") + rng.choice("12345678")


def _yaml(rng: random.Random, part: str) -> str:
    keys = [_word(rng, part) for _ in range(3)]
    return "services:\n" + _rows(
        rng,
        4,
        30,
        lambda at: (
            f"  {keys[0]}-{at}:\n    {keys[1]}: true\n    {keys[2]}: {rng.choice((0, 1, 80))}\n    restart: always"
        ),
    )


def _weather(rng: random.Random, part: str) -> str:
    sky = ("sunny", "cloudy", "rainy", "windy", "foggy")
    towns = rng.sample(vocabulary(part), rng.randint(8, 25))
    return "\n".join(
        f"In {town.title()} it will be {rng.choice(sky)} with a high of {rng.randint(5, 30)} degrees"
        f" and {rng.choice(sky)} at night."
        for town in towns
    )


def _twelve_days(rng: random.Random, part: str) -> str:
    """Each day has one gift more, and then those of all days before."""
    gifts = [f"{at} {phrase(rng, part, 2, 3)}" for at in range(1, 13)]
    days = [
        f"On day {at + 1} of the feast my true love gave to me\n" + ",\n".join(gifts[at::-1]) + "." for at in range(12)
    ]
    return "\n\n".join(days[: rng.randint(4, 12)])


BOTH: dict[str, tuple[str, Maker]] = {
    "documentation": ("prose", lambda rng, part: slice_of(rng, documents(part))),
    "source code": ("code", lambda rng, part: slice_of(rng, modules(part))),
    "Markdown pages": ("any", lambda rng, part: slice_of(rng, pages(part))),
    "JSON files": ("json", lambda rng, part: slice_of(rng, records(part))),
    "prose": ("prose", lambda rng, part: prose(rng, part, rng.randint(400, 6000))),
    "Markdown tables": ("any", _markdown_table),
    "songs": ("prose", _song),
    "JSON arrays": ("json", _json_array),
    "logs": ("any", _log),
    "times tables": ("any", _times_table),
    "digits": ("any", _digits),
    "ASCII art": ("any", _art),
    "numbered plans": ("prose", _plan),
    "CSV": ("any", _csv),
}
TUNE_ONLY: dict[str, tuple[str, Maker]] = {
    "HTML tables": ("any", _html_table),
    "litanies": ("prose", _litany),
    "test output": ("any", _tests),
    "base64": ("any", _base64),
    "retries": ("any", _retries),
    "cumulative rhymes": ("prose", _cumulative),
    "counting songs": ("prose", _bottles),
    "matrices": ("json", _matrix),
    "sums in words": ("any", _in_words),
    "numbered tests": ("any", _numbered_tests),
    "SQL": ("any", _sql),
    "chants": ("prose", _chant),
    "DNA": ("any", _dna),
    "LaTeX": ("any", _latex),
    "hex dumps": ("any", _hexdump),
    "HTML": ("any", _page),
    "talk": ("prose", _talk),
    "licence": ("prose", _licence),
    "Chinese": ("prose", _chinese),
    "shell": ("code", lambda rng, part: _rows(rng, 6, 60, lambda at: f"mv {part}/page-{at}.txt {part}/{at:03d}.txt")),
    "asserts": ("code", _asserts),
    "weeks": ("prose", _weeks),
    "chess": (
        "any",
        lambda rng, part: " ".join(f"{at}. {_move(rng)} {_move(rng)}" for at in range(1, rng.randint(20, 90))),
    ),
    "contents": (
        "any",
        lambda rng, part: _rows(
            rng,
            8,
            40,
            lambda at: f"Chapter {at}. {phrase(rng, part, 1, 5).title()} " + "." * rng.randint(5, 60) + f" {9 * at}",
        ),
    ),
    "survey": (
        "any",
        lambda rng, part: _rows(
            rng, 8, 60, lambda at: f"Question {at}: {rng.choice(('yes', 'no', 'agree', 'disagree', 'no answer'))}"
        ),
    ),
    "YAML": ("code", _yaml),
    "weather": ("prose", _weather),
    "twelve days": ("prose", _twelve_days),
    "questions": (
        "prose",
        lambda rng, part: _rows(
            rng, 5, 30, lambda at: f"Q{at}: What is {phrase(rng, part, 1, 3)}?\nA: It is {phrase(rng, part, 3, 8)}."
        ),
    ),
    "progress": (
        "any",
        lambda rng, part: _rows(
            rng,
            5,
            50,
            lambda at: f"epoch {at:3d}: {'#' * (at // 2):25s} loss {rng.random():.4f}, accuracy {rng.random():.3f}",
        ),
    ),
}


def sound(part: str, each: int, seed: int = 0) -> list[Labelled]:
    """Return the sound texts of one part, `each` of every family."""
    families = BOTH | (TUNE_ONLY | COPIES if part == "tune" else HELD_OUT)
    found: list[Labelled] = []
    for family, (kind, make) in families.items():
        rng = random.Random(f"{part} {family} {seed}")
        found += [Labelled(make(rng, part), family, False, kind) for _ in range(each)]
    return found
