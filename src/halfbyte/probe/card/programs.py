"""Programs: they must parse, be ASCII, and pass their tests when run."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.card import checks
from halfbyte.probe.card.harness import run_tested
from halfbyte.probe.card.items import Item, Items, costs_items, lacks_section
from halfbyte.probe.card.short import probe_of_items
from halfbyte.probe.code import code_of, lacks_sandbox
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import Finding, Probe, Setting, Shown
from halfbyte.probe.marks import defects, first_difference
from halfbyte.sandbox.process import Limits

RUN_S = 30.0  # enough for a busy machine; programs that loop forever are rare


class Task(Item):
    """A program to write and the tests to run after it; `prints` is the expected output, if it matters."""

    tests: list[str] = Field(default_factory=list[str])
    prints: str | None = None


def _python(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer, "code"), *checks.python(answer, item.answer)]


def _ascii_python(item: Item, answer: Answer) -> list[Shown]:
    return [*_python(item, answer), *checks.ascii_only(answer)]


def _runs(setting: Setting, task: Task, answer: Answer) -> list[Shown]:
    wrong = [*defects(answer, "code"), *checks.ended(answer), *checks.python(answer, task.answer)]
    if wrong:
        return wrong
    source = code_of(answer.text)
    ran, passed = run_tested(source, task.tests, tier=setting.sandbox, limits=Limits(seconds=RUN_S))
    if not passed:
        silent = "ended before its tests" if ran.succeeded else f"ended by {ran.ended}"
        last = (ran.stderr.strip().splitlines() or [silent])[-1]
        test = next((line.strip() for line in ran.stderr.splitlines() if 'File "test ' in line), "")
        return [Shown(source, f"{last} {test}".strip(), 0, len(source), answer.id)]
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
    probe_of_items("code", "Python code", "code that does not parse is useless, and graders drop it silently", _python),
    probe_of_items("ascii-code", "ASCII-only code", "curly quotes and odd dashes silently break code", _ascii_python),
    probe_of_items("long-code", "longer code", "indentation and brackets must hold over many lines", _python),
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
