"""Texts cut at the token limit: loops after three to six copies, and healthy texts that repeat themselves.

A loop is a preamble, or none, then a unit of 40 to 400 characters, copied three to six times, then part of one more
copy. In the families "counter" and "name" a number or a name changes from copy to copy. A healthy text is cut at any
character after its first third. The families of the two parts differ, and so do the texts that they draw on. The limits
were chosen on the tuning part only.
"""

import json
import random
from collections.abc import Callable, Iterator

from benchmarks.degeneracy.sources import (
    Labelled,
    documents,
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
Copies = Callable[[random.Random, str], Callable[[int], str]]
PERIODS = (40, 400)  # characters of a unit
REPEATS = (3, 6)
NAMES = ("Anna", "Ben", "Carla", "David", "Eva", "Farid", "Grace", "Hugo", "Ines", "Jan", "Kofi", "Lea")
LANGUAGES = {
    "tune": (
        "Die Katze liegt auf dem Sofa, und draußen regnet es seit dem frühen Morgen ohne Pause.",
        "El tren sale a las ocho de la mañana y llega a la ciudad poco antes del mediodía.",
        "Кошка спит на подоконнике, а за окном медленно падает первый снег этой зимы.",  # noqa: RUF001
        "今天的天气非常好, 我们一起去公园散步, 然后在湖边的小店里喝茶, 聊了很久才回家。",
        "학생들은 도서관에서 책을 읽고, 선생님은 조용히 다음 수업을 준비하고 있습니다.",
        "Le marché ouvre chaque samedi sur la place, et les gens viennent de tous les villages.",
    ),
    "held-out": (
        "Il treno arriva in ritardo, ma nessuno si lamenta perché il sole splende sulla stazione.",
        "A menina corre pela praia enquanto o irmão constrói um castelo de areia muito alto.",
        "猫は窓のそばに座って、庭に来る小鳥を一日中じっと見ています。それから眠ります。",
        "القطار يصل متأخرا كل يوم ولكن المسافرين ينتظرون بهدوء في المحطة القديمة.",
        "बच्चे नदी के किनारे खेल रहे हैं और उनकी माँ घर पर खाना बना रही है।",
        "De kat ligt in de zon op het dak en kijkt naar de vogels in de tuin van de buren.",
        "Το τρένο φτάνει αργά κάθε βράδυ και οι επιβάτες περιμένουν στον παλιό σταθμό.",  # noqa: RUF001
    ),
}


def _unit(rng: random.Random, make: Callable[[], str]) -> str:
    """Return pieces joined until a unit of a random length is full, cut to the allowed range."""
    low, high = PERIODS
    wanted, unit = rng.randint(low, high - 60), ""
    while len(unit) < wanted:
        unit += make()
    return unit[:high]


def _same(make: Maker) -> Copies:
    def copies(rng: random.Random, part: str) -> Callable[[int], str]:
        unit = make(rng, part)
        return lambda at: unit

    return copies


def _word(rng: random.Random, part: str) -> str:
    return rng.choice(vocabulary(part))


def _paragraph(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: rng.choice(sentences(part)) + " ").rstrip() + "\n\n"


def _code(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: slice_of(rng, modules(part), 40, 160).split("\n\n")[0] + "\n") + "\n"


def _json_objects(rng: random.Random, part: str) -> str:
    return _unit(
        rng,
        lambda: json.dumps({_word(rng, part): phrase(rng, part, 1, 4), _word(rng, part): rng.randint(0, 99)}) + ",\n",
    )


def _math(rng: random.Random, part: str) -> str:
    def step() -> str:
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        return rng.choice(
            (
                f"So {a} + {b} = {a + b}, and {a + b} divided by {b} is not a whole number.\n",
                f"Let x = {a}. Then {b}x = {a * b}, which is not {a * b + 1}.\n",
                f"Wait, {a} times {b} is {a * b}. Let me check the {_word(rng, part)} again.\n",
            )
        )

    return _unit(rng, step)


def _bullets(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: f"- {phrase(rng, part, 2, 7).capitalize()}\n") + "\n"


def _language(rng: random.Random, part: str) -> str:
    return " ".join(rng.sample(LANGUAGES[part], rng.choice((1, 1, 2)))) + " "


def _counter(rng: random.Random, part: str) -> Callable[[int], str]:
    say, first = _unit(rng, lambda: rng.choice(sentences(part)) + " ").strip(), rng.randint(1, 9)
    form = rng.choice(("{0}. {1}\n", "Step {0}: {1}\n\n", "On day {0} {1} "))
    return lambda at: form.format(first + at, say)


def _name(rng: random.Random, part: str) -> Callable[[int], str]:
    say, names = _unit(rng, lambda: rng.choice(sentences(part)) + " "), rng.sample(NAMES, 8)
    return lambda at: f"{names[at % 8]} said: {say}\n"


def _dialogue(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: f'"{rng.choice(sentences(part))}" {rng.choice(NAMES)} asked.\n')


def _html(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: f'<p class="{_word(rng, part)}">{phrase(rng, part, 2, 8)}</p>\n')


def _sql(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: f"SELECT {_word(rng, part)} FROM {_word(rng, part)} WHERE {_word(rng, part)} > 10;\n")


def _recipe(rng: random.Random, part: str) -> str:
    return _unit(rng, lambda: f"Stir in the {_word(rng, part)} and wait until the {phrase(rng, part, 1, 3)} is warm. ")


def _doubts(rng: random.Random, part: str) -> str:
    return f"Hmm, wait. {rng.choice(sentences(part))} But is it? Let me reconsider the {phrase(rng, part, 1, 5)}.\n\n"


def _tool_calls(rng: random.Random, part: str) -> str:
    arguments = {_word(rng, part): phrase(rng, part, 1, 6), "limit": rng.randint(1, 50)}
    return json.dumps({"name": f"get_{_word(rng, part)}", "arguments": arguments}, indent=1) + "\n"


def _derivation(rng: random.Random, part: str) -> str:
    return _unit(
        rng,
        lambda: (
            f"$$ \\frac{{{rng.choice('xyz')}}}{{{rng.randint(2, 9)}}} = {rng.randint(2, 99)} $$"
            f" so the {_word(rng, part)} holds.\n"
        ),
    )


def _sections(rng: random.Random, part: str) -> str:
    return f"## {phrase(rng, part, 1, 3).title()}\n\n" + _paragraph(rng, part)[:330]


def _day(rng: random.Random, part: str) -> Callable[[int], str]:
    say, first = _paragraph(rng, part).strip(), rng.randint(1950, 2020)
    return lambda at: f"In {first + at} {say}\n"


LOOPS: dict[str, dict[str, tuple[str, Copies]]] = {
    "tune": {
        "prose": ("prose", _same(_paragraph)),
        "code": ("code", _same(_code)),
        "JSON": ("json", _same(_json_objects)),
        "math steps": ("any", _same(_math)),
        "list": ("prose", _same(_bullets)),
        "multilingual": ("prose", _same(_language)),
        "counter": ("prose", _counter),
        "name": ("prose", _name),
    },
    "held-out": {
        "dialogue": ("prose", _same(_dialogue)),
        "HTML": ("any", _same(_html)),
        "SQL": ("code", _same(_sql)),
        "recipe": ("prose", _same(_recipe)),
        "doubts": ("prose", _same(_doubts)),
        "tool calls": ("json", _same(_tool_calls)),
        "derivation": ("any", _same(_derivation)),
        "sections": ("prose", _same(_sections)),
        "other languages": ("prose", _same(_language)),
        "counter": ("prose", _day),
        "name": ("prose", _name),
    },
}


def cut_loops(part: str, each: int, seed: int = 0) -> Iterator[tuple[Labelled, int]]:
    """Yield loops cut inside a copy, with the number of whole copies before the cut."""
    for family, (kind, make) in LOOPS[part].items():
        rng = random.Random(f"cut {part} {family} {seed}")
        for at in range(each):
            copy, repeats = make(rng, part), REPEATS[0] + at % (REPEATS[1] - REPEATS[0] + 1)
            last = copy(repeats)
            before = prose(rng, part, rng.choice((0, 200, 600, 1500)))
            copies = "".join(map(copy, range(repeats))) + last[: rng.randrange(1, len(last))]
            yield Labelled(f"{before}\n\n{copies}", family, True, kind), repeats


def _poem(rng: random.Random, part: str) -> str:
    refrain = "\n".join(phrase(rng, part, 4, 8).capitalize() for _ in range(rng.randint(1, 4)))
    verses = ["\n".join(phrase(rng, part, 4, 8).capitalize() for _ in range(4)) for _ in range(rng.randint(3, 6))]
    ending = [refrain] * rng.randint(0, 2)  # with the last verse's refrain up to three in a row
    return "\n\n".join([*(f"{verse}\n\n{refrain}" for verse in verses), *ending, phrase(rng, part, 3, 6)])


def _table(rng: random.Random, part: str) -> str:
    cells, width = ("yes", "no", "-", "0", "n/a", "not tested"), rng.randint(2, 7)
    rows = [
        f"| {_word(rng, part)} | " + " | ".join(rng.choice(cells[: rng.randint(1, 6)]) for _ in range(width)) + " |"
        for _ in range(rng.randint(6, 30))
    ]
    return "\n".join(rows)


def _blocks(rng: random.Random, part: str) -> str:
    """Code whose blocks differ in one name; now and then a block stands there twice."""
    a, b, c = (_word(rng, part) for _ in range(3))
    blocks = [
        f"    if {_word(rng, part)} is None:\n        raise ValueError('{a} needs {b}')\n    {c}.append({a})\n"
        for _ in range(rng.randint(4, 14))
    ]
    return f"def {a}({b}, {c}):\n" + "".join(block * rng.choice((1, 1, 1, 2)) for block in blocks)


def _boilerplate(rng: random.Random, part: str) -> str:
    body = prose(rng, part, rng.randint(100, 500))
    return "\n\n".join(f"Dear {name},\n\n{body}\n\nBest,\n{_word(rng, part)}" for name in rng.sample(NAMES, 5))


def _template_list(rng: random.Random, part: str) -> str:
    before, after = phrase(rng, part, 2, 5).capitalize(), phrase(rng, part, 2, 5)
    return "\n".join(
        f"{at}. {before} {phrase(rng, part, 1, 3)} {after} {_word(rng, part)}." for at in range(1, rng.randint(8, 30))
    )


def _quoted_twice(rng: random.Random, part: str) -> str:
    quoted = _paragraph(rng, part).strip()
    return f"{prose(rng, part, 300)}\n\n> {quoted}\n\n{quoted}\n\n{prose(rng, part, 300)}\n\n> {quoted}\n\n{quoted}"


def _similar_objects(rng: random.Random, part: str) -> str:
    keys = [_word(rng, part) for _ in range(rng.randint(2, 5))]
    values = (None, True, 0, "", [], _word(rng, part))
    rows = [{"id": at, **{key: rng.choice(values) for key in keys}} for at in range(rng.randint(5, 30))]
    return json.dumps(rows, indent=rng.choice((None, 1, 2)))


def _unit_tests(rng: random.Random, part: str) -> str:
    thing = _word(rng, part)
    return "\n\n".join(
        f"def test_{phrase(rng, part, 1, 3).replace(' ', '_')}():\n    {thing} = make_{thing}()\n"
        f"    assert {thing}.{_word(rng, part)} is not None\n    assert {thing}.closed is False"
        for _ in range(rng.randint(5, 20))
    )


def _cells(rng: random.Random, part: str) -> str:
    """A calendar or a board: runs of equal cells, the longest of five."""
    empty = f'  <td class="{_word(rng, part)} {rng.choice(("empty", "day", "off"))}">&nbsp;</td>\n'
    return "<table>\n" + "".join(
        f"<tr>\n{empty * rng.randint(0, 5)}  <td>{at}</td>\n</tr>\n" for at in range(rng.randint(4, 20))
    )


def _equal_objects(rng: random.Random, part: str) -> str:
    """A configuration: up to four machines have the same values."""
    rows: list[dict[str, str]] = []
    for _ in range(rng.randint(3, 8)):
        row = {_word(rng, part): _word(rng, part) for _ in range(rng.randint(2, 4))}
        rows += [row] * rng.choice((1, 1, 2, 3, 4))
    return json.dumps(rows, indent=rng.choice((None, 1, 2)))


def _three_copies(rng: random.Random, part: str) -> str:
    """A requested text, repeated three times verbatim, with other text after it."""
    return f"{prose(rng, part, 150)}\n\n" + (_paragraph(rng, part) * 3) + prose(rng, part, 300)


def _chorus(rng: random.Random, part: str) -> str:
    chorus = "[Chorus]\n" + "\n".join(phrase(rng, part, 3, 7) for _ in range(rng.randint(2, 4)))
    verses = ["[Verse]\n" + "\n".join(phrase(rng, part, 3, 7) for _ in range(4)) for _ in range(rng.randint(2, 4))]
    return "\n\n".join([*(one for verse in verses for one in (verse, chorus)), *[chorus] * rng.randint(0, 2)])


def _terraform(rng: random.Random, part: str) -> str:
    kind, tags = _word(rng, part), f'  tags = {{\n    team = "{_word(rng, part)}"\n    env  = "prod"\n  }}\n'
    return "\n".join(
        f'resource "{kind}" "{_word(rng, part)}" {{\n  size = {rng.choice((10, 20, 50))}\n{tags}}}'
        for _ in range(rng.randint(4, 16))
    )


def _clauses(rng: random.Random, part: str) -> str:
    ending = f"in accordance with {phrase(rng, part, 3, 7)}, unless the parties agree otherwise in writing."
    return "\n\n".join(
        f"{at}. The {rng.choice(('Tenant', 'Landlord'))} shall {phrase(rng, part, 3, 10)} {ending}"
        for at in range(1, rng.randint(6, 20))
    )


def _lab(rng: random.Random, part: str) -> str:
    return "\n".join(
        f"Sample {at}: {rng.choice(('negative', 'negative', 'positive'))} after {rng.choice((24, 48))} hours at 37 C"
        for at in range(1, rng.randint(8, 40))
    )


def _api(rng: random.Random, part: str) -> str:
    common = "Returns `404` if the object does not exist and `403` if the caller may not read it."
    return "\n\n".join(
        f"### `GET /{_word(rng, part)}/{{id}}`\n\n{rng.choice(sentences(part))}\n\n{common}"
        for _ in range(rng.randint(4, 14))
    )


def _go_tests(rng: random.Random, part: str) -> str:
    name = _word(rng, part).title()
    return "\n".join(
        f"func Test{name}{_word(rng, part).title()}(t *testing.T) {{\n\tgot, err := {name}({rng.randint(0, 99)})\n"
        f"\tif err != nil {{\n\t\tt.Fatal(err)\n\t}}\n\tif got != {rng.randint(0, 99)} {{\n"
        '\t\tt.Errorf("got %d", got)\n\t}\n}'
        for _ in range(rng.randint(4, 14))
    )


def _prayer(rng: random.Random, part: str) -> str:
    answer = rng.choice(("Lord, hear our prayer.", "We give you thanks.", "Have mercy on us."))
    return "\n".join(f"For {phrase(rng, part, 3, 9)}, let us pray.\n{answer}" for _ in range(rng.randint(6, 25)))


def _flash_cards(rng: random.Random, part: str) -> str:
    return "\n\n".join(
        f"Front: What does {_word(rng, part)} mean?\nBack: It means {phrase(rng, part, 2, 5)}.\nDeck: words"
        for _ in range(rng.randint(5, 25))
    )


def _zeros(rng: random.Random, part: str) -> str:
    row = "[" + ", ".join(["0"] * rng.randint(4, 16)) + "]"
    rows = [row if rng.random() < 0.8 else row.replace("0", "1", 1) for _ in range(rng.randint(6, 30))]
    return f'{{"{_word(rng, part)}": [\n  ' + ",\n  ".join(rows) + "\n]}"


def _calls(rng: random.Random, part: str) -> str:
    """A shell session that polls: the same command, answers that differ."""
    command = f"$ kubectl get {_word(rng, part)} -n {_word(rng, part)}"
    return "\n".join(
        f"{command}\n{_word(rng, part)}-{rng.randint(0, 1)}   "
        f"{rng.choice(('Pending', 'Pending', 'Running'))}   {5 * at}s"
        for at in range(1, rng.randint(5, 25))
    )


HEALTHY: dict[str, dict[str, tuple[str, Maker]]] = {
    "tune": {
        "poems": ("prose", _poem),
        "tables": ("any", _table),
        "code blocks": ("code", _blocks),
        "boilerplate": ("prose", _boilerplate),
        "template lists": ("prose", _template_list),
        "quoted twice": ("prose", _quoted_twice),
        "similar objects": ("json", _similar_objects),
        "unit tests": ("code", _unit_tests),
        "equal cells": ("any", _cells),
        "equal objects": ("json", _equal_objects),
        "three copies": ("prose", _three_copies),
        "documentation": ("prose", lambda rng, part: slice_of(rng, documents(part), 600, 4000)),
        "source code": ("code", lambda rng, part: slice_of(rng, modules(part), 600, 4000)),
    },
    "held-out": {
        "choruses": ("prose", _chorus),
        "Terraform": ("code", _terraform),
        "clauses": ("prose", _clauses),
        "lab reports": ("any", _lab),
        "API pages": ("any", _api),
        "Go tests": ("code", _go_tests),
        "prayers": ("prose", _prayer),
        "flash cards": ("prose", _flash_cards),
        "matrices": ("json", _zeros),
        "polling": ("any", _calls),
        "three copies": ("prose", _three_copies),
        "Markdown pages": ("any", lambda rng, part: slice_of(rng, pages(part), 600, 4000)),
        "JSON files": ("json", lambda rng, part: slice_of(rng, records(part), 600, 4000)),
    },
}


def cut_healthy(part: str, each: int, seed: int = 0) -> list[Labelled]:
    """Return healthy texts cut at any character after their first third."""
    texts: list[Labelled] = []
    for family, (kind, make) in HEALTHY[part].items():
        rng = random.Random(f"cut healthy {part} {family} {seed}")
        for _ in range(each):
            text = make(rng, part)
            texts.append(Labelled(text[: rng.randint(len(text) // 3, len(text))], family, False, kind))
    return texts
