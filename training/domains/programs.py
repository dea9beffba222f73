"""Tiny Python functions from one line of English, checked by running them.

Seven families (shares in MIX): pipelines over numbers, words and characters (keep some, change each, combine), chains
of arithmetic, choices with two conditions, loops, and rules that only examples tell. What must be new in a test is the
pair of pieces that makes a program what it is (which to keep and how to change each); all pieces alone are known from
training. The answer is the bare function, without a code fence. Knobs: MAX_CONSTANT, MAX_FACTOR and MAX_STEPS.

Model-written code never runs in this process: `score` parses it, refuses what no answer needs (imports, attributes with
underscores, names such as open or eval), and runs the rest in `python -I` with limits on time and memory. That is a
fence against accidents, not a sandbox against attackers.
"""

from __future__ import annotations

import ast
import random
import re
import secrets
import string
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from training.dice import between, chance, weighted
from training.output import answer_of
from training.sample import Item, Sample, held_out
from training.words import programs_phrases as phrases
from training.words.copying_names import PLAIN_WORDS

DOMAIN = "programs"
MIX = {
    "numbers": 0.2,
    "words": 0.15,
    "characters": 0.1,
    "arithmetic": 0.15,
    "choice": 0.1,
    "loop": 0.1,
    "examples": 0.2,
}
MAX_CONSTANT = 30
MAX_STEPS = 5
MAX_FACTOR = 9
SHARE_WITH_EXAMPLE = 0.8
TESTS_PER_ITEM = 5
DIFFERENT_RESULTS = 2
SECONDS = 5
MEMORY_BYTES = 512 << 20
FORBIDDEN_NAMES = frozenset(
    {"open", "eval", "exec", "compile", "input", "globals", "locals", "vars", "getattr", "setattr"}
)

Inputs = tuple[Any, ...]


class Program(NamedTuple):
    """A function to write: its arguments, what it does in English, its body, and what must be new about it."""

    family: str
    key: str
    arguments: str
    does: str
    body: str


# --- families ---------------------------------------------------------------------------------------------------------


def _filled(rng: random.Random, piece: tuple[str, str]) -> tuple[str, str]:
    """Put a number, letter or separator into a piece, the same in English and in Python."""
    if "{" not in piece[0]:
        return piece
    values = {
        "k": between(rng, 2, MAX_CONSTANT),
        "n": between(rng, 2, 4),
        "l": between(rng, 4, 7),
        "c": rng.choice("abdefghiklmnoprstu"),
        "s": rng.choice(("-", "+", "_", "/", ".", ":")),
        "all": "{all}",
        "list": "{list}",
    }
    return piece[0].format(**values), piece[1].format(**values)


def _piece(rng: random.Random, pieces: Mapping[str, str]) -> tuple[str, str]:
    return _filled(rng, rng.choice(tuple(pieces.items())))


Pieces = Mapping[str, str]
PIPELINES: dict[str, tuple[str, str, Pieces, Pieces, Pieces]] = {
    "numbers": ("numbers", "x", phrases.NUMBER_FILTERS, phrases.NUMBER_MAPS, phrases.NUMBER_ENDS),
    "words": ("words", "w", phrases.WORD_FILTERS, phrases.WORD_MAPS, phrases.WORD_ENDS),
    "characters": ("text", "c", phrases.CHARACTER_FILTERS, phrases.CHARACTER_MAPS, phrases.CHARACTER_ENDS),
}


def _pipeline(rng: random.Random, family: str) -> Program:
    argument, variable, filters, maps, ends = PIPELINES[family]
    keep, condition = _piece(rng, filters)
    change, value = _piece(rng, maps)
    end, combine = _piece(rng, ends)
    if value == "len(w)" and "join" in combine:  # numbers cannot be joined
        end, combine = "returns the list", "{list}"
    loop = f"{value} for {variable} in {argument}" + (f" if {condition}" if condition else "")
    body = f"    return {combine.replace('{all}', loop).replace('{list}', f'[{loop}]')}"
    steps = [f"takes {keep}", change, end] if change else [f"takes {keep}", end]
    return Program(family, f"{keep}/{change}", argument, _in_english(steps), body)


def _arithmetic(rng: random.Random) -> Program:
    start, first = _piece(rng, phrases.ARITHMETIC_STARTS)
    steps = [_piece(rng, phrases.ARITHMETIC_STEPS) for _ in range(between(rng, 1, MAX_STEPS))]
    lines = [f"    result = {first}", *(f"    result = {code}" for _, code in steps), "    return result"]
    english = [start, *(said for said, _ in steps)]
    return Program("arithmetic", "/".join(english[1:3]), "a, b", _in_english(english), "\n".join(lines))


def _choice(rng: random.Random) -> Program:
    labels = rng.sample(phrases.LABELS, 3)
    (said, sign), (said_2, sign_2) = rng.sample(tuple(phrases.COMPARISONS.items()), 2)
    limit, limit_2 = between(rng, 2, 3 * MAX_CONSTANT), between(rng, 2, 3 * MAX_CONSTANT)
    does = (
        f"returns '{labels[0]}' if n is {said} {limit}, '{labels[1]}' if n is {said_2} {limit_2}"
        f" and '{labels[2]}' otherwise"
    )
    lines = [
        f"    if n {sign} {limit}:",
        f"        return '{labels[0]}'",
        f"    if n {sign_2} {limit_2}:",
        f"        return '{labels[1]}'",
        f"    return '{labels[2]}'",
    ]
    return Program("choice", f"{limit}/{labels[1]}", "n", does, "\n".join(lines))


def _loop(rng: random.Random) -> Program:
    condition, test = _piece(rng, phrases.LOOP_CONDITIONS)
    verb, (start, step) = rng.choice(tuple(phrases.LOOP_BODIES.items()))
    first = between(rng, 1, 5)
    lines = [
        f"    total = {start}",
        f"    for i in range({first}, n + 1):",
        f"        if {test}:",
        f"            {step}",
        "    return total",
    ]
    does = f"{verb} from {first} to n that are {condition}"
    # The bounds and the condition must be new together; the verb alone would be too little.
    return Program("loop", f"{first}/{condition}", "n", does, "\n".join(lines))


def _examples(rng: random.Random) -> Program:
    """A rule that nobody says: it must be read off three pairs of numbers."""
    rule = rng.choice(phrases.RULES).format(k=between(rng, 2, MAX_FACTOR), c=between(rng, 1, MAX_CONSTANT))
    given = rng.sample(range(1, MAX_CONSTANT + 1), 3)
    pairs = [f"{n} into {eval(rule, {'n': n})}" for n in given]
    return Program("examples", rule, "n", f"turns {_in_english(pairs)}", f"    return {rule}")


def _in_english(steps: Sequence[str]) -> str:
    return ", ".join(steps[:-1]) + " and " + steps[-1] if len(steps) > 1 else steps[0]


FAMILIES = {"arithmetic": _arithmetic, "choice": _choice, "loop": _loop, "examples": _examples}


def _program(rng: random.Random, family: str, *, for_test: bool) -> Program:
    while True:
        program = FAMILIES[family](rng) if family in FAMILIES else _pipeline(rng, family)
        if held_out(f"{DOMAIN}/{family}/{program.key}") == for_test:
            return program


# --- examples and prompts ---------------------------------------------------------------------------------------------


def _inputs(rng: random.Random, family: str) -> Inputs:
    match family:
        case "numbers":
            return ([between(rng, -9, 20) for _ in range(between(rng, 3, 6))],)
        case "words":
            return (rng.sample(PLAIN_WORDS, between(rng, 2, 5)),)
        case "characters":
            letters = string.ascii_lowercase + "aeiou" * 2 + string.ascii_uppercase[:8] + string.digits
            return ("".join(rng.choice(letters) for _ in range(between(rng, 4, 9))),)
        case "arithmetic":
            return (between(rng, -9, 20), between(rng, -9, 20))
        case "choice":
            return (between(rng, 0, 4 * MAX_CONSTANT),)
        case _:
            return (between(rng, 1, 25),)


def _source(program: Program, name: str) -> str:
    return f"def {name}({program.arguments}):\n{program.body}"


def _cases(rng: random.Random, program: Program, name: str, count: int) -> list[str]:
    """Return `f(1, 2) == 3` for different inputs; the code that runs here is ours, not a model's."""
    space: dict[str, Any] = {}
    exec(compile(_source(program, name), "<reference>", "exec"), space)
    cases: dict[str, str] = {}
    while len(cases) < count:
        values = _inputs(rng, program.family)
        call = f"{name}({', '.join(map(repr, values))})"
        cases[call] = f"{call} == {space[name](*values)!r}"
    return list(cases.values())


def _name(rng: random.Random) -> str:
    return f"{rng.choice(phrases.VERBS)}_{rng.choice(phrases.NOUNS)}"


def _question(program: Program, name: str, example: str) -> str:
    asked = f"Write a Python function {name}({program.arguments}) that {program.does}."
    return f"{asked}\nExample: {example}" if example else asked


def train_sample(rng: random.Random) -> Sample:
    """Return one function to write, as a chat."""
    program, name = _program(rng, weighted(rng, MIX), for_test=False), _name(rng)
    example = _cases(rng, program, name, 1)[0] if chance(rng, SHARE_WITH_EXAMPLE) else ""
    messages = (
        {"role": "user", "content": _question(program, name, example)},
        {"role": "assistant", "content": _source(program, name)},
    )
    return Sample(DOMAIN, messages=messages)


def test_items(count: int, seed: int) -> list[Item]:
    """Return functions of all families in turn, each with the assertions that decide."""
    rng = random.Random(seed)
    items: dict[str, Item] = {}
    while len(items) < count:
        family = list(MIX)[len(items) % len(MIX)]
        program, name = _program(rng, family, for_test=True), _name(rng)
        example, *cases = _cases(rng, program, name, 1 + TESTS_PER_ITEM)
        if len({case.rpartition(" == ")[2] for case in cases}) < DIFFERENT_RESULTS:
            continue  # a function that ignores its input could pass
        fields = {
            "form": family,
            "tests": [f"assert {case}" for case in cases],
            # What must be new: the task with its example, and each line of code. What follows what is Python's form.
            "specific": [program.does, example, *program.body.splitlines()],
            "boilerplate": ["Write a Python function"],
        }
        item = Item(
            DOMAIN,
            f"{DOMAIN}-{len(items):04d}",
            messages=({"role": "user", "content": _question(program, name, example)},),
            answer=_source(program, name),
            fields=fields,
        )
        items.setdefault(program.does, item)
    return list(items.values())


# --- running ----------------------------------------------------------------------------------------------------------

_RUNNER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
exec(compile(sys.stdin.read(), "<answer>", "exec"), {{"__name__": "answer"}})
sys.stdout.write("{mark}")
"""


def code_of(output: str) -> str:
    """Return the code of an answer, taken out of a fence if there is one."""
    answer = answer_of(output)
    fenced = re.search(r"```(?:python)?\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    return fenced[1] if fenced else answer


def is_harmless(code: str) -> bool:
    """Whether the code parses and uses nothing that a tiny function has no business with."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef):
            return False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("__"):
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return False
        if isinstance(node, ast.Name) and (node.id in FORBIDDEN_NAMES or node.id.startswith("__")):
            return False
    return True


def score(item: Item, output: str) -> bool:
    """Whether the function the model wrote passes every assertion of the item."""
    code = code_of(output)
    if not is_harmless(code):
        return False
    script = "\n".join([code, *item.fields["tests"]])
    mark = secrets.token_hex(16)  # which the answer cannot print by itself
    runner = _RUNNER.format(memory=MEMORY_BYTES, seconds=SECONDS, mark=mark)
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", runner],
                input=script,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                cwd=folder,
                env={},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and done.stdout.endswith(mark)
