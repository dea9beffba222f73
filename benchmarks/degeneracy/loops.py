"""True loops: good text of any length, then one thing again and again until the tokens ran out.

A loop here has at least six repeats (near-loops: twelve sentences) and 600 characters, 2,400 where it is made of digits
or rulers; an answer of a few hundred tokens has that much. Text may follow after the end of a loop.
"""

import random
from collections.abc import Callable

from benchmarks.degeneracy.held_out_loops import FAMILIES as HELD_OUT
from benchmarks.degeneracy.sources import Labelled, modules, phrase, prose, sentences, slice_of, vocabulary

REPEATS, CHARACTERS, DRAWN_CHARACTERS = 6, 600, 2400
Maker = Callable[[random.Random, str], str]
CARD = ("saliva ", "allergen ", "hairs ", "felis-", "Felis catus ", "the saliva of the cat ", "cat allergens, ")
CJK_WORDS = (
    "猫 过敏 唾液 毛发 的 是 在 我们 因为 所以 非常 可能 研究 表明 医生 建议 今天 天气 城市 学校 朋友 喜欢 知道 开始"
)
KANA_WORDS = "猫は とても かわいい です ので わたしは いつも うれしく 思います そして 今日も 学校へ 行きました"
OTHER_WORDS = (
    "кошка смотрит на море и думает о доме где она живёт давно",  # noqa: RUF001
    "القط ينظر إلى البحر ثم ينام في البيت كل يوم",
    "고양이는 바다를 보고 집을 생각합니다 그리고 잠을 잡니다",
    "γάτα κοιτάζει τη θάλασσα και σκέφτεται το σπίτι",
)
EMOJI = ("😀", "🐱 ", "🎉🎉 ", "! ", "?!", "… ")
LATEX = (r"\frac{1}{2} + ", r"\begin{aligned} ", r"\\ \hline ")
SYLLABLES = ("ha", "la", "blah", "oo", "haha ", "tick-tock ")
WAITS = ("Wait, let me check this again. ", "Hmm, but that is not right. Let me recompute. ", "Actually, no. ",
         "Let me think about it again step by step. ", "So the answer is 42. But wait, is it? ")  # fmt: skip


def repeated(rng: random.Random, unit: str, least: int = CHARACTERS) -> str:
    cover = max(least, REPEATS * len(unit)) * rng.choice((1, 1, 1.5, 2, 4))
    return (unit * (int(cover) // len(unit) + 2))[: int(cover) + rng.randrange(len(unit))]


def _glued(rng: random.Random, words: str, low: int, high: int, mark: str = "") -> str:
    return "".join(rng.choice(words.split()) for _ in range(rng.randint(low, high))) + mark


def _counted(rng: random.Random, part: str) -> str:
    say = phrase(rng, part, 5, 12).capitalize()
    form = rng.choice(
        ("{0}. {1}.\n", "{0}) {1}.\n", "Step {0}: {1}.\n", "{0}. {1} ", "- Day {0}: {1}, as on day {0}.\n")
    )
    first, size = rng.randint(1, 40), len(say) + 8
    return "".join(form.format(first + row, say) for row in range(rng.randint(900 // size + 12, 2400 // size + 24)))


def _near(rng: random.Random, part: str) -> str:
    """One of a few sentences at a time, in no order."""
    few = rng.sample(sentences(part), rng.randint(2, 3))
    return " ".join(rng.choice(few) for _ in range(rng.randint(16, 30)))


def _few_words(rng: random.Random, part: str) -> str:
    few = rng.sample(vocabulary(part), rng.randint(2, 4))
    return " ".join(rng.choice(few) for _ in range(rng.randint(250, 500)))


def _blanks(rng: random.Random, unit: str) -> str:
    """The unit, each time with other white space after it."""
    return "".join(unit + rng.choice((" ", "\n", "\n\n", "  ")) for _ in range(max(8, CHARACTERS // len(unit) + 2)))


def _code_line(rng: random.Random, part: str) -> str:
    a, b, c = (rng.choice(vocabulary(part)) for _ in range(3))
    return rng.choice(
        (f"    self.{a} = {b}.{c}({a})\n", f"import {a}\n", f"    if {a} is None: return {b}\n", f"{a}();\n")
    )


def _json_row(rng: random.Random, part: str) -> str:
    keys = [f'"{rng.choice(vocabulary(part))}": "{rng.choice(vocabulary(part))}"' for _ in range(rng.randint(1, 4))]
    return "{" + ", ".join(keys) + "}," + rng.choice((" ", "\n  "))


def _table_rows(rng: random.Random, part: str) -> str:
    return repeated(rng, f"| {phrase(rng, part, 1, 3)} | {phrase(rng, part, 1, 2)} |\n", 1200)


def _left_again(rng: random.Random, part: str) -> str:
    return repeated(rng, rng.choice(sentences(part)) + " ", 900) + " " + prose(rng, part, 500)


def _near_paragraphs(rng: random.Random, part: str) -> str:
    """A paragraph again and again, with another word here and there."""
    given = prose(rng, part, rng.randint(150, 500)).split()

    def changed() -> str:
        copy = list(given)
        for at in rng.sample(range(len(copy)), rng.randint(0, 2)):
            copy[at] = rng.choice(vocabulary(part))
        return " ".join(copy)

    return "\n\n".join(changed() for _ in range(rng.randint(9, 14)))


def _near_list(rng: random.Random, part: str) -> str:
    """Points that differ in one word, one of a few."""
    few, before, after = rng.sample(vocabulary(part), 4), phrase(rng, part, 4, 8), phrase(rng, part, 3, 8)
    return "\n".join(f"- {before} {rng.choice(few)} {after}." for _ in range(rng.randint(25, 40)))


BOTH: dict[str, tuple[str, Maker]] = {
    "card": ("prose", lambda rng, part: repeated(rng, rng.choice(CARD))),
    "word": ("prose", lambda rng, part: repeated(rng, phrase(rng, part, 1, 1) + " ")),
    "phrase": ("prose", lambda rng, part: repeated(rng, phrase(rng, part, 2, 7) + rng.choice((" ", ", ", ". ")))),
    "sentence": ("prose", lambda rng, part: repeated(rng, rng.choice(sentences(part)) + rng.choice((" ", "\n")))),
    "paragraph": ("prose", lambda rng, part: repeated(rng, prose(rng, part, rng.randint(200, 900)) + "\n\n")),
    "counted list": ("prose", _counted),
    "code line": ("code", lambda rng, part: repeated(rng, _code_line(rng, part), 1200)),
    "JSON rows": ("json", lambda rng, part: "[" + repeated(rng, _json_row(rng, part), 1200)),
    "Chinese": (
        "prose",
        lambda rng, part: repeated(rng, _glued(rng, CJK_WORDS, 1, 14, rng.choice(("", "。", "\uff0c")))),
    ),
    "token 0": ("prose", lambda rng, part: "!" * rng.randint(150, 4000)),
    "thoughts": ("prose", lambda rng, part: "<think>" + repeated(rng, rng.choice(WAITS))),
    "near": ("prose", _near),
}
TUNE_ONLY: dict[str, tuple[str, Maker]] = {
    "few words": ("prose", _few_words),
    "hyphenated": ("prose", lambda rng, part: repeated(rng, phrase(rng, part, 1, 1) + "-")),
    "sentence and blanks": ("prose", lambda rng, part: _blanks(rng, rng.choice(sentences(part)))),
    "digits": ("prose", lambda rng, part: "0." + repeated(rng, rng.choice(("3", "142857", "1, ")), DRAWN_CHARACTERS)),
    "bullets": ("prose", lambda rng, part: repeated(rng, "- **" + phrase(rng, part, 1, 3) + "**\n", 1200)),
    "two sentences": ("prose", lambda rng, part: _blanks(rng, " ".join(rng.sample(sentences(part), 2)))),
    "Japanese": ("prose", lambda rng, part: repeated(rng, _glued(rng, KANA_WORDS, 1, 8, rng.choice(("", "。"))))),
    "other scripts": ("prose", lambda rng, part: repeated(rng, rng.choice(OTHER_WORDS)[: rng.randint(6, 60)] + " ")),
    "emoji": ("prose", lambda rng, part: repeated(rng, rng.choice(EMOJI))),
    "code block": ("code", lambda rng, part: repeated(rng, slice_of(rng, modules(part), 90, 400), 1200)),
    "table rows": ("any", _table_rows),
    "path": ("any", lambda rng, part: "https://" + repeated(rng, phrase(rng, part, 1, 1) + "/", 1200)),
    "blank": ("any", lambda rng, part: rng.choice(("\n", " ", "\t")) * rng.randint(2400, 6000)),
    "ruler": ("any", lambda rng, part: rng.choice("-=_*#.~0") * rng.randint(2400, 6000)),
    "LaTeX": ("any", lambda rng, part: repeated(rng, rng.choice(LATEX), 1200)),
    "syllables": ("prose", lambda rng, part: repeated(rng, rng.choice(SYLLABLES))),
    "verses": ("prose", lambda rng, part: repeated(rng, "\n".join(phrase(rng, part, 3, 7) for _ in range(4)) + "\n\n")),
    "dialogue": ("prose", lambda rng, part: repeated(
        rng, f"User: {rng.choice(sentences(part))}\nAssistant: {rng.choice(sentences(part))}\n")),
    "tool calls": ("json", lambda rng, part: repeated(
        rng, f'{{"name": "{phrase(rng, part, 1, 1)}", "arguments": {{"q": "{phrase(rng, part, 1, 4)}"}}}}\n', 1200)),
    "counted days": ("prose", lambda rng, part: "".join(
        f"On day {at} {say}. " for say in [phrase(rng, part, 6, 14)] for at in range(1, rng.randint(30, 60)))),
    "left again": ("prose", _left_again),
    "near paragraphs": ("prose", _near_paragraphs),
    "near list": ("prose", _near_list),
    "pages": ("prose", lambda rng, part: repeated(rng, prose(rng, part, rng.randint(1500, 3000)) + "\n\n")),
}  # fmt: skip


def loops(part: str, each: int, seed: int = 0) -> list[Labelled]:
    """Return the loops of one part, `each` of every family."""
    families = BOTH | (TUNE_ONLY if part == "tune" else HELD_OUT)
    found: list[Labelled] = []
    for family, (kind, make) in families.items():
        rng = random.Random(f"{part} {family} {seed}")
        for _ in range(each):
            before = rng.choice((0, 0, 100, 400, 1000, 3000))
            good = slice_of(rng, modules(part), 1, 1 + before) if kind in ("code", "json") else prose(rng, part, before)
            found.append(Labelled(f"{good}\n{make(rng, part)}", family, True, kind))
    return found
