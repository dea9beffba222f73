"""Short questions with one right answer: JSON, math, echoes of other scripts, structured JSON, longer JSON, prose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from halfbyte.probe.answers import Answer
from halfbyte.probe.card import checks
from halfbyte.probe.card.items import Item, Items, costs_items, lacks_section
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import Finding, Probe, Setting, Shown

Check = Callable[[Item, Answer], Sequence[Shown]]


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


def _ascii_json(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer, "json"), *checks.same_json(answer, item.answer), *checks.ascii_only(answer)]


def _math(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer), *checks.last_number(answer, float(item.answer))]


def _echo(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer), *checks.same_text(answer, str(item.answer))]


def _json(item: Item, answer: Answer) -> list[Shown]:
    return [*checks.healthy(answer, "json"), *checks.same_json(answer, item.answer)]


def _structured(item: Item, answer: Answer) -> list[Shown]:
    """Check JSON from guided decoding, which has no code fence or words around it."""
    if answer.text.lstrip().startswith("```"):
        return [Shown(answer.text, "a code fence around the JSON", 0, 3, answer.id)]
    return _json(item, answer)


def _prose(item: Item, answer: Answer) -> list[Shown]:
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
    probe_of_items("long-json", "longer JSON", "structure that holds for five lines can be lost after fifty", _json),
    probe_of_items(
        "unicode-math", "unicode math table", "symbols such as √ and ≤ are rare single tokens, lost first", _prose
    ),
    probe_of_items(
        "philosophy", "philosophy with Greek and CJK",
        "mixed scripts in prose provoke mojibake, wrong look-alikes and language drift", _prose,
    ),
)  # fmt: skip
