"""Probes of the keep192 card with one right answer: JSON, math, scripts, prose, programs, a tool call.

These are the checks that the card's author made before publishing the weights; vision and long_context have the others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from halfbyte.probe import checks
from halfbyte.probe.answers import Answer
from halfbyte.probe.checks import code_of, lacks_sandbox
from halfbyte.probe.judging import defects, each, first_difference, judged, whole
from halfbyte.probe.probe import Excerpt, Finding, Probe, Setting
from halfbyte.probe.profiles import Item, Items, costs_items, lacks_section
from halfbyte.sandbox.process import Limits, Ran
from halfbyte.sandbox.tiers import Tier, run_python

Check = Callable[[Item, Answer], Sequence[Excerpt]]


def ask_items(setting: Setting, name: str, check: Check, *, cause: str, what: str = "right") -> Finding:
    """Send the items of a section and judge each answer."""
    items = setting.profile.need(name, Items[Item])
    chosen = items.chosen(setting.seed)
    client = setting.client
    answers = client.ask_all(
        [client.chat_ask(item.ask, max_tokens=items.max_tokens, **items.options, **item.options) for item in chosen]
    )
    wrongs = each(answers, lambda number, answer: check(chosen[number], answer))
    return judged(answers, wrongs, what=what, needed=items.needed, cause=cause)


def probe_of_items(name: str, title: str, reason: str, check: Check, cause: str = "wrong-answer") -> Probe:
    """Return a probe of the section with the same name."""

    def run(setting: Setting) -> Finding:
        return ask_items(setting, name, check, cause=cause)

    return Probe(name, "card", title, reason, True, run, costs_items(name), lacks_section(name))


def _ascii_json(item: Item, answer: Answer) -> list[Excerpt]:
    return [*checks.healthy(answer, "json"), *checks.same_json(answer, item.answer), *checks.ascii_only(answer)]


def _math(item: Item, answer: Answer) -> list[Excerpt]:
    return [*checks.healthy(answer), *checks.last_number(answer, float(item.answer))]


def _echo(item: Item, answer: Answer) -> list[Excerpt]:
    return [*checks.healthy(answer), *checks.same_text(answer, str(item.answer))]


def same_json(item: Item, answer: Answer) -> list[Excerpt]:
    """Check that an answer is the JSON of its item."""
    return [*checks.healthy(answer, "json"), *checks.same_json(answer, item.answer)]


def _structured(item: Item, answer: Answer) -> list[Excerpt]:
    """Check JSON from guided decoding, which has no code fence or words around it."""
    if answer.text.lstrip().startswith("```"):
        return [Excerpt(answer.text, "a code fence around the JSON", 0, 3, answer.id)]
    return same_json(item, answer)


def _prose(item: Item, answer: Answer) -> list[Excerpt]:
    terms: list[Any] = item.answer or []
    return [*checks.healthy(answer, "prose"), *checks.has_all(answer, [str(term) for term in terms])]


SHORT = (
    probe_of_items("json", "ASCII JSON", "one wrong quote ends an agent's turn; benchmarks tolerate it", _ascii_json),
    probe_of_items("math", "math", "damaged weights still write fluently but no longer calculate", _math),
    probe_of_items(
        "unicode-echo", "unicode echo", "rare tokens show damage first: other scripts are miscopied", _echo
    ),
    probe_of_items(
        "structured", "structured JSON", "response_format must be enforced, not left to the model",
        _structured, "structured",
    ),
    probe_of_items(
        "long-json", "longer JSON", "structure that holds for five lines can be lost after fifty", same_json
    ),
    probe_of_items(
        "unicode-math", "unicode math table", "symbols such as √ and ≤ are rare single tokens, lost first", _prose
    ),
    probe_of_items(
        "philosophy", "philosophy with Greek and CJK",
        "mixed scripts in prose provoke mojibake, wrong look-alikes and language drift", _prose,
    ),
)  # fmt: skip


# Test harness: runs a model-written program, then its tests, and prints a mark if all of them passed.
#
# An exit code is not enough, because a program that calls `sys.exit()` or `unittest.main()` would exit with code 0
# before its tests. So a random mark, passed through stdin, must be printed after the tests, and an exit of the
# program is deferred until then. Tests use the original builtins and compare values of built-in types only, so an
# object that equals everything fails. A program could still search the interpreter for the mark: this tests models,
# not attackers. The sandbox contains attackers.

_AROUND = """
def _around(program, tests):
    import ast, builtins, os, sys, types
    run, build, write, kept = exec, compile, os.write, dict(vars(builtins))
    mark, told = sys.stdin.readline(), os.dup(2)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    here = vars(module)

    def plain(value):
        if value is None or isinstance(value, bool):
            return value
        for kind in (int, float, complex):
            if isinstance(value, kind):
                return kind.__pos__(value)
        for kind in (str, bytes):
            if isinstance(value, kind):
                return kind.__getitem__(value, slice(None))
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return kind(map(plain, kind.__iter__(value)))
        if isinstance(value, dict):
            return {plain(key): plain(inner) for key, inner in dict.items(value)}
        raise AssertionError("a value of type %s, which is not a built-in type" % type(value).__name__)

    class Compared(ast.NodeTransformer):
        def visit_Compare(self, node):
            self.generic_visit(node)
            if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
                same = ast.Name("_same", ast.Load())
                return ast.copy_location(ast.Call(same, [node.left, node.comparators[0]], []), node)
            return node

    ended = None
    try:
        run(build(program, "program", "exec", dont_inherit=True), here)
    except SystemExit as exit:
        ended = exit
    vars(builtins).update(kept)
    scope = {name: value for name, value in here.items() if name not in kept}
    scope |= {"__name__": "tests", "__builtins__": kept, "_same": lambda a, b: plain(a) == plain(b)}
    for number, test in enumerate(tests):
        tree = ast.fix_missing_locations(Compared().visit(ast.parse(test)))
        run(build(tree, "test %d: %s" % (number, test), "exec", dont_inherit=True, optimize=0), scope)
    write(told, mark.encode())
    if ended is not None:
        raise ended

"""


def run_tested(program: str, tests: Sequence[str], *, tier: Tier | None, limits: Limits) -> tuple[Ran, bool]:
    """Run a program and its tests; return the outcome, and whether all of it ran and passed."""
    mark = secrets.token_hex(16)
    source = f"{_AROUND}_around({json.dumps(program)}, {json.dumps(list(tests))})\n"
    ran = run_python(source, tier=tier, limits=limits, stdin=f"{mark}\n")
    return ran, ran.succeeded and mark in ran.stderr


# Programs: they must parse, be ASCII, and pass their tests when run.

RUN_S = 30.0  # enough for a busy machine; programs that loop forever are rare


class Task(Item):
    """A program to write and the tests to run after it; `prints` is the expected output, if it matters."""

    tests: list[str] = Field(default_factory=list[str])
    prints: str | None = None


def valid_python(item: Item, answer: Answer) -> list[Excerpt]:
    """Check that an answer is valid Python and defines what its item asks for."""
    return [*checks.healthy(answer, "code"), *checks.python(answer, item.answer)]


def _ascii_python(item: Item, answer: Answer) -> list[Excerpt]:
    return [*valid_python(item, answer), *checks.ascii_only(answer)]


def _runs(setting: Setting, task: Task, answer: Answer) -> list[Excerpt]:
    wrong = [*defects(answer, "code"), *checks.ended(answer), *checks.python(answer, task.answer)]
    if wrong:
        return wrong
    source = code_of(answer.text)
    ran, passed = run_tested(source, task.tests, tier=setting.sandbox, limits=Limits(seconds=RUN_S))
    if not passed:
        silent = "ended before its tests" if ran.succeeded else f"ended by {ran.ended}"
        last = (ran.stderr.strip().splitlines() or [silent])[-1]
        test = next((line.strip() for line in ran.stderr.splitlines() if 'File "test ' in line), "")
        return [Excerpt(source, f"{last} {test}".strip(), 0, len(source), answer.id)]
    if task.prints is not None:
        shown = first_difference(task.prints.strip(), ran.stdout.strip(), answer.id)
        return [shown] if shown else []
    return []


def _canary(setting: Setting, name: str) -> Finding:
    tasks = setting.profile.need(name, Items[Task])
    chosen = tasks.chosen(setting.seed)
    client = setting.client
    answers = client.ask_all([client.chat_ask(task.ask, max_tokens=tasks.max_tokens) for task in chosen])
    wrongs = each(answers, lambda number, answer: _runs(setting, chosen[number], answer))
    return judged(
        answers,
        wrongs,
        what="ran correctly",
        needed=tasks.needed,
        numbers={"sandbox": setting.sandbox.sentence if setting.sandbox else None},
    )


PROGRAMS: Sequence[Probe] = (
    probe_of_items(
        "code", "Python code", "code that does not parse is useless, and graders drop it silently", valid_python
    ),
    probe_of_items("ascii-code", "ASCII-only code", "curly quotes and odd dashes silently break code", _ascii_python),
    probe_of_items("long-code", "longer code", "indentation and brackets must hold over many lines", valid_python),
)


def _run_probe(name: str, title: str, reason: str) -> Probe:
    def run(setting: Setting) -> Finding:
        return _canary(setting, name)

    def lacks(setting: Setting) -> str | None:
        return lacks_section(name)(setting) or lacks_sandbox(setting)

    return Probe(name, "card", title, reason, True, run, costs_items(name, Items[Task]), lacks)


RUN_PROGRAMS: Sequence[Probe] = (
    _run_probe(
        "coding-canary", "executable coding canary", "six programs that must run: one damaged token shows at once"
    ),
    _run_probe("unicode-chart", "unicode chart program", "block characters in code must arrive unchanged"),
)


# Tool-call smoke test: the right function with the right arguments, and nothing leaked into the text.

TOOL_CALL_NAME = "tool-call"


class Call(Item):
    """A request, its tools as JSON, and the expected call: name and arguments."""

    tools: list[dict[str, Any]] = Field(min_length=1)


def _wrong_call(expected: dict[str, Any], answer: Answer) -> list[Excerpt]:
    faults = defects(answer)
    if faults:
        return faults
    if not answer.tool_calls:
        return [whole(answer, "no tool was called")]
    function: dict[str, Any] = answer.tool_calls[0].get("function") or {}
    if function.get("name") != expected["name"]:
        return [
            Excerpt(str(function), f"{function.get('name')} was called instead of {expected['name']}", 0, 0, answer.id)
        ]
    text = str(function.get("arguments"))
    try:
        arguments = json.loads(text)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return [Excerpt(text, f"arguments are not valid JSON: {error}", at, at + 1, answer.id)]
    if arguments != expected["arguments"]:
        right = json.dumps(expected["arguments"], ensure_ascii=False)
        return [Excerpt(text, f"expected {right}", 0, len(text), answer.id)]
    if answer.finish_reason != "tool_calls":
        return [Excerpt(text, f"finish_reason is {answer.finish_reason}, not tool_calls", 0, 0, answer.id)]
    return []


def _run_tool_call(setting: Setting) -> Finding:
    calls = setting.profile.need(TOOL_CALL_NAME, Items[Call])
    chosen = calls.chosen(setting.seed)
    client = setting.client
    asks = [
        client.chat_ask(call.ask, tools=call.tools, tool_choice="auto", max_tokens=calls.max_tokens) for call in chosen
    ]
    answers = client.ask_all(asks)
    wrongs = each(answers, lambda number, answer: _wrong_call(chosen[number].answer, answer))
    return judged(answers, wrongs, what="called correctly", needed=calls.needed, cause="tool-parser")


TOOL_CALL = Probe(
    TOOL_CALL_NAME, "card", "tool call", "a call that arrives as text or with broken arguments stops every agent", True,
    _run_tool_call, costs_items(TOOL_CALL_NAME, Items[Call]), lacks_section(TOOL_CALL_NAME),
)  # fmt: skip
