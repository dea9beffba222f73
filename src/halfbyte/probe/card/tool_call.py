"""Tool-call smoke test: the right function with the right arguments, and nothing leaked into the text."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from halfbyte.probe.answers import Answer
from halfbyte.probe.card.items import Item, Items, costs_items, lacks_section
from halfbyte.probe.judging import each, judged
from halfbyte.probe.kinds import Finding, Probe, Setting, Shown
from halfbyte.probe.marks import defects, whole

NAME = "tool-call"


class Call(Item):
    """A request, its tools as JSON, and the expected call: name and arguments."""

    tools: list[dict[str, Any]] = Field(min_length=1)


def _wrong(expected: dict[str, Any], answer: Answer) -> list[Shown]:
    faults = defects(answer)
    if faults:
        return faults
    if not answer.tool_calls:
        return [whole(answer, "no tool was called")]
    function: dict[str, Any] = answer.tool_calls[0].get("function") or {}
    if function.get("name") != expected["name"]:
        return [
            Shown(str(function), f"{function.get('name')} was called instead of {expected['name']}", 0, 0, answer.id)
        ]
    text = str(function.get("arguments"))
    try:
        arguments = json.loads(text)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return [Shown(text, f"arguments are not valid JSON: {error}", at, at + 1, answer.id)]
    if arguments != expected["arguments"]:
        right = json.dumps(expected["arguments"], ensure_ascii=False)
        return [Shown(text, f"expected {right}", 0, len(text), answer.id)]
    if answer.finish_reason != "tool_calls":
        return [Shown(text, f"finish_reason is {answer.finish_reason}, not tool_calls", 0, 0, answer.id)]
    return []


def _run(setting: Setting) -> Finding:
    calls = setting.profile.need(NAME, Items[Call])
    chosen = calls.chosen(setting.seed)
    client = setting.client
    asks = [
        client.chat_ask(call.ask, tools=call.tools, tool_choice="auto", max_tokens=calls.max_tokens) for call in chosen
    ]
    answers = client.ask_all(asks)
    wrongs = each(answers, lambda number, answer: _wrong(chosen[number].answer, answer))
    return judged(answers, wrongs, what="called correctly", needed=calls.needed, cause="tool-parser")


TOOL_CALL = Probe(
    NAME, "card", "tool call", "a call that arrives as text or with broken arguments stops every agent", True,
    _run, costs_items(NAME, Items[Call]), lacks_section(NAME),
)  # fmt: skip
