"""Text defects: each kind is found at its position, and similar healthy text is not flagged."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfbyte.degeneracy.defects import Severity, find_defects
from halfbyte.degeneracy.rules import suffix_cycle
from halfbyte.degeneracy.watch import (
    DEEP,
    EVERY,
    LoopWatch,
    find_loop,
    loop_at_end,
)

COUNTED = "".join(f"{n}. The cat is very cute and soft.\n" for n in range(1, 40))
SENTENCE = "The cat sat on the mat and looked at the moon for a while. "


@pytest.mark.parametrize(
    ("text", "rule", "unit"),
    [
        ("It began well. " + "saliva " * 60, "cycle", "saliva"),
        ("Cats are " + "felis-" * 70, "cycle", "felis-"),
        ("Good. " + "!" * 200, "character", "!"),
        ("Good. " + "a" * 300, "character", "a"),
        (SENTENCE * 15 + "Then it ended in another way.", "cycle", SENTENCE.strip()),
        ((SENTENCE + "\n\n") * 9, "cycle", SENTENCE.strip()),
        ("猫はかわいいです。" * 20, "cycle", "猫はかわいいです。"),
        (COUNTED, "counting", "1. The cat is very cute and soft."),
        ("\n" * 2000, "character", "\n"),
    ],
)  # fmt: skip
def test_loops_are_found_and_marked(text, rule, unit):
    loop = find_loop(text)
    assert loop is not None and (loop.rule, loop.unit) == (rule, unit)
    assert " ".join(text[loop.start : loop.end].split()).startswith(unit.strip())
    assert loop.start == len(text.partition(unit[:20])[0])
    kinds = [one.kind for one in find_defects(text) if (one.start, one.end) == (loop.start, loop.end)]
    assert kinds == ["repeated-character" if rule == "character" else "loop"]


@pytest.mark.parametrize(
    "text",
    [
        "", "-" * 400, "=" * 80 + "\n" + "no " * 60, "0, " * 200, "<td></td>" * 30, SENTENCE * 3,
        "\n".join(f"{n} x 7 = {7 * n}" for n in range(1, 60)),
        "\n".join(f"test_case_{n} ... ok" for n in range(200)),
        "\n".join(f'{{"id": {n}, "name": null}},' for n in range(200)),
    ],
)  # fmt: skip
def test_repetition_that_is_not_a_loop(text):
    assert find_loop(text) is None


def test_prose_is_judged_sooner_than_anything():
    text = "He waited for the bus. " * 10
    assert find_loop(text, "prose") is not None and find_loop(text, "any") is None


TEXTS = [
    "It began well. " + "saliva " * 60, SENTENCE * 15, COUNTED,
    "x" * 5000, "\n".join(f"{n} x 7 = {7 * n}" for n in range(300)),
    " ".join(random.Random(1).choice(("one", "two", "three")) for _ in range(900)),
    " ".join(random.Random(2).choice(SENTENCE.split()) for _ in range(4000)),
    (" ".join(random.Random(3).choices(SENTENCE.split(), k=500)) + "\n") * 6,
]  # fmt: skip


@given(text=st.sampled_from(TEXTS) | st.text(alphabet="ab \n1.", max_size=900), seed=st.integers(0, 1000))
def test_streamed_is_the_same_as_whole(text, seed):
    """For any split into pieces, a watch agrees with the rule at the first checked character."""
    rng, watch, at, streamed = random.Random(seed), LoopWatch(), 0, None
    while at < len(text) and streamed is None:
        size = rng.choice((1, 3, 17, 64, 65, 700))
        streamed = watch.feed(text[at : at + size])
        at += size
    streamed = streamed or watch.end()
    points = [(at, False) for at in range(EVERY, len(text) + 1, EVERY)] + [(len(text), True)]
    said = (loop_at_end(text[:at][-DEEP:], at, "any", last=last) for at, last in points)
    assert streamed == next((one for one in said if one is not None), None) == find_loop(text)


def test_a_watch_keeps_little_and_remembers_its_loop():
    watch = LoopWatch()
    rng = random.Random(0)
    for _ in range(3000):
        assert watch.feed(f"{rng.getrandbits(80):x} ") is None
    assert len(watch._tail) <= DEEP + EVERY
    result = watch.feed("saliva " * 60)
    assert result is not None and watch.feed("and on") == result == watch.end()


@given(
    unit=st.text(alphabet="ab ", min_size=1, max_size=30),
    before=st.text(alphabet="abc", max_size=40),
    times=st.integers(1, 40),
)
def test_cycles_are_those_of_the_definition(unit, before, times):
    text = before + unit * times

    def needed(part: str) -> int:
        return max(60, 3 * len(part))

    def holds(period: int, covered: int) -> bool:
        return all(text[-1 - at] == text[-1 - at - period] for at in range(covered - period))

    wanted = next((p for p in range(1, len(text)) if needed("x" * p) <= len(text) and holds(p, needed("x" * p))), None)
    result = suffix_cycle(text, needed)
    assert (None if result is None else result.period) == wanted
    if result is not None:
        assert holds(result.period, result.covered)
        assert result.covered == len(text) or not holds(result.period, result.covered + 1)


@pytest.mark.parametrize(
    ("text", "kind", "marked"),
    [
        ("bad \ufffd\ufffd end", "replacement-character", "\ufffd\ufffd"),
        ("a caf\u00c3\u00a9 here", "mojibake", "\u00c3\u00a9"),
        ("it\u00e2\u20ac\u2122s", "mojibake", "\u00e2\u20ac\u2122"),
        ("\u00ef\u00bb\u00bfHello", "mojibake", "\u00ef\u00bb\u00bf"),
        ("привет".encode().decode("latin-1"), "mojibake", "привет".encode().decode("latin-1")),
        ("a\x00b", "control-character", "\x00"),
        ("a\x1b[0m", "control-character", "\x1b"),
        ("x\ud83dy", "lone-surrogate", "\ud83d"),
        ("Yes.<|im_end|>", "special-token", "<|im_end|>"),
        ("<|tool_calls_section_begin|>", "special-token", "<|tool_calls_section_begin|>"),
        ("Yes. [EOS]", "special-token", "[EOS]"),
    ],
)
def test_broken_characters_and_leaked_tokens(text, kind, marked):
    result = [one for one in find_defects(text) if one.kind == kind]
    assert [text[one.start : one.end] for one in result] == [marked] and result[0].severity is Severity.HARD


def test_thoughts_leak_into_prose_only():
    assert [one.kind for one in find_defects("So </think> yes", kind_of_text="prose")] == ["special-token"]
    assert find_defects("So </think> yes", kind_of_text="code") == []


@pytest.mark.parametrize(
    "text",
    [
        "Ça coûte 5 €, à São Paulo: « naïve » — “quoted” … ½ ° ± ÷ Â À Ã",
        "猫と犬。「はい」", "Привет, мир!", "مرحبا",
        "tab\tand\r\nline", "a < b | c > d", "emoji 👩‍👩‍👧 🇩🇪 ✔️", "x[0] = [UNKNOWN]",
        "Ã ÃO", "naïveté Müller Šárka Žižek",
    ],
)  # fmt: skip
def test_valid_characters_are_not_defects(text):
    assert find_defects(text) == []


def test_script_drift():
    good = "The cat sat on the mat. " * 2
    drift = find_defects(good + "然后它看着月亮并且想着大海和天空", script="latin")
    assert [(one.kind, one.severity) for one in drift] == [("script-drift", Severity.SOFT)]
    assert (good + "然后它看着月亮并且想着大海和天空")[
        drift[0].start : drift[0].end
    ] == "然后它看着月亮并且想着大海和天空"
    assert find_defects("The word 猫 means cat, and Афины is Athens; π is 3.14.", script="latin") == []
    assert find_defects("これは猫です。日本語の文章には漢字があります。", script="kana") == []
    assert [one.kind for one in find_defects("In W\u0430rsaw")] == ["mixed-script"]
    with pytest.raises(ValueError, match="unknown script 'klingon'; known: latin"):
        find_defects("x", script="klingon")


def test_copied_lines_and_compression_are_soft():
    words = [f"{a} {b}" for a in ("red", "blue", "green", "black") for b in ("fox", "hen", "cow", "dog", "owl")]
    lines = [line for word in words for line in (f"Here comes the {word} now.", "And all of them sing along.")]
    result = find_defects("\n".join(lines), kind_of_text="prose")
    assert {one.kind for one in result} == {"copied-lines", "compression"}
    assert {one.severity for one in result} == {Severity.SOFT}
    assert find_defects("\n".join(lines), kind_of_text="code") == []


BODY = (
    "We are writing to let you know that the library will be closed for two weeks in August. Books that are due in"
    " these days may be brought back in September, and nobody will be asked to pay for them. If you need something for"
    " an exam, please come before the first of the month, or write to us, so that we can find a way together."
)
NAMES = ("Anna", "Ben", "Carla", "David", "Eva", "Farid", "Grace", "Hugo", "Ines", "Jan", "Kim", "Lea")


@pytest.mark.parametrize("kind", ["any", "prose"])
def test_five_copies_of_a_letter_are_not_a_loop_but_many_are(kind):
    letters = [f"Dear {name},\n\n{BODY}\n\nYours, {NAMES[at - 3]}\n\n" for at, name in enumerate(NAMES)]
    assert find_loop("".join(letters[:5]), kind) is None
    assert find_loop(f"{BODY}\n\n" * 5, kind) is None
    assert find_loop("".join(letters), kind).rule == "sameness"
    assert find_loop(f"{BODY}\n\n" * 7, kind).rule == "cycle"


def test_long_units_need_fewer_repeats():
    page = " ".join(f"{one}{two} goes to {two} and {one} stays." for one in NAMES for two in NAMES)[:3500]
    assert find_loop(page * 2) is None and find_loop(page * 4) is not None


FORM = "Name: ________\nI will come on the first of May, with a plate and a cup of my own.\n\n"
STEP = 'Then {0} opened the "north" door, counted the lamps behind it and wrote the sum into the book. '


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
@pytest.mark.parametrize(("kind", "copies"), [("prose", 3), ("any", 4), ("code", 4), ("json", 4)])
def test_a_text_cut_inside_a_copy_loops_after_fewer_copies(kind, copies, part):
    unit = STEP.format("Anna")
    text = "It was late. " + unit * copies + unit[: int(part * len(unit))]
    assert find_loop(text, kind) is None
    loop = find_loop(text, kind, cut=True)
    assert loop is not None and (loop.rule, loop.period, loop.end) == ("cycle", len(unit), len(text))
    assert find_loop(text[: -len(unit)], kind, cut=True) is None
    assert [one.kind for one in find_defects(text, kind_of_text=kind, cut=True)] == ["loop"]


FENCED = "```python\ndef total(first, second):\n    return first + second\n```\n\n"


@pytest.mark.parametrize(
    ("unit", "copies"),
    [
        ("I am a cat. ", 14), ("The cat sat on mats ", 8), ("The cat sat on mats again ", 7),
        ("The cat sat on the old mats. ", 6), ("The cat sat on the big old mats. ", 5),
        ("The answer is 42, so the answer is 42. ", 7), (FENCED, 4),
    ],
)  # fmt: skip
def test_a_cut_text_loops_after_as_many_characters_of_a_short_unit(unit, copies):
    before = "Let me look at the numbers in the table first, and then at the rest.\n\n"
    assert find_loop(before + unit * copies + unit[:5], "prose", cut=True) is not None
    assert find_loop(before + unit * copies + unit[:5], "prose") is None
    assert find_loop(before + unit * (copies // 2) + unit[:5], "prose", cut=True) is None


@pytest.mark.parametrize("blank", ["\n", " ", "\t"])
@pytest.mark.parametrize("cut", [True, False])
def test_prose_that_ends_in_white_space_loops(blank, cut):
    assert find_loop("It began well." + blank * 200, "prose", cut=cut).rule == "character"
    assert find_loop("It began well." + blank * 150, "prose", cut=cut) is None
    assert find_loop("It began well." + blank * 200, "any", cut=cut) is None


def test_a_limit_inside_a_character_hides_no_loop():
    text = STEP.format("Anna") * 3 + "Then Anna opened\ufffd\ufffd"
    loop = find_loop(text, "prose", cut=True)
    assert loop is not None and loop.end == len(text) - 2


@pytest.mark.parametrize(
    "text",
    [
        "She sang. " + STEP.format("Anna") * 3,  # three requested copies, without the start of a fourth
        "Print:\n" + FORM * 4 + FORM[:10],
        "<td></td>" * 27, "la la la la " * 12, "She said no. " * 12,
        "".join(STEP.format(name) for name in ("Anna", "Ben", "Carla", "David", "Eva")),
    ],
)  # fmt: skip
def test_healthy_text_that_the_limit_cut(text):
    assert find_loop(text, "prose", cut=True) is None


def test_a_cut_text_that_counts_loops_after_four_copies():
    text = "".join(f"On day {n} the cat slept on the roof and looked at the moon. " for n in range(3, 8))
    assert find_loop(text, "prose") is None and find_loop(text, "prose", cut=True).rule == "counting"
    assert find_loop(text[: 3 * len(text) // 5], "prose", cut=True) is None


@given(text=st.sampled_from(TEXTS) | st.text(alphabet="ab \n1.", max_size=400), kind=st.sampled_from(("prose", "any")))
def test_the_limit_hides_no_loop_that_a_whole_text_has(text, kind):
    """With the information that a text was cut, the detector finds at least as much as without."""
    assert find_loop(text, kind) is None or find_loop(text, kind, cut=True) is not None
