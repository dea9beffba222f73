"""Tool calls: choose the function among those declared, fill its arguments, call twice, use results, or just answer.

Kept for the tests: what is called with which values, and (for a third of the test items) functions whose names were in
no training declaration. Difficulty: `MOST_TOOLS`.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.domains.structured import fits
from training.sample import Item, Message, Sample, held_out
from training.words.tools_functions import ENUMS, INTEGERS, INTENTS, WORDS, Intent, Parameter

DOMAIN = "tools"
MIX = {  # percent of turns; one to three turns make a conversation
    "one call": 45,
    "two calls": 15,  # of the same function, in parallel
    "small talk": 15,  # no call: nothing is wanted that a tool could do
    "no such tool": 15,  # no call: what is wanted is not declared
    "ask back": 10,  # no call: an argument is missing
}
THINKING_PERCENT = 10
MOST_TOOLS = 6
MOST_TURNS = 3
NEW_FUNCTION_PERCENT = 33  # of the test items

_FORMS = [form for form, percent in MIX.items() for _ in range(percent)]
_CALLS = ("one call", "two calls")
_SECTION = re.compile(r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>", re.DOTALL)
_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*functions\.([\w-]+):(\d+)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)
_KEPT_NAMES = [[name for name in intent.names if held_out(f"{DOMAIN}|function|{name}")] for intent in INTENTS]
_KNOWN_NAMES = [[name for name in intent.names if not held_out(f"{DOMAIN}|function|{name}")] for intent in INTENTS]
_NO_TOOL = "No tool fits."
WINDOW = 13  # words in a row that training and tests must not share


@dataclass(frozen=True, slots=True)
class Function:
    """One declared function: an intent with the names that it has here."""

    intent: Intent
    name: str
    keys: tuple[str, ...]

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as the OpenAI API declares it."""
        properties = {key: _property(p) for key, p in zip(self.keys, self.intent.parameters, strict=True)}
        parameters = {"type": "object", "properties": properties, "required": list(self.keys)}
        function = {"name": self.name, "description": self.intent.description, "parameters": parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says, and what must follow: calls with their results and a report, or an answer at once."""

    request: str
    calls: tuple[tuple[str, dict[str, Any]], ...]
    results: tuple[str, ...]
    answer: str
    thought: str
    form: str


def train_sample(rng: random.Random) -> Sample:
    """Return one conversation of one to three turns, with results of calls, all of the assistant's turns learned."""
    functions = _declare(rng, test=False)
    turns = [_turn(functions, rng, test=False) for _ in range(rng.randrange(1, MOST_TURNS + 1))]
    thinking = rng.randrange(100) < THINKING_PERCENT
    messages = _messages(turns[:1] if thinking else turns, thinking=thinking)
    if thinking and rng.randrange(2):
        messages = messages[:2]  # Kimi's template drops the thoughts before a last answer: so these end with the call
    return Sample(DOMAIN, messages=messages, tools=tuple(f.declaration for f in functions), thinking=thinking)


def test_items(count: int, seed: int) -> list[Item]:
    """Return conversations that end with a user's request or with a result, and what must follow."""
    rng = random.Random(f"{DOMAIN} {seed}")
    items: list[Item] = []
    for position in range(count):
        functions = _declare(rng, test=True)
        turns = [_turn(functions, rng, test=True) for _ in range(rng.choice((1, 1, 1, 2)))]
        last = turns[-1]
        before = _messages(turns[:-1], thinking=False)
        ends_with_result = last.form in _CALLS and rng.randrange(5) == 0
        whole = _messages(turns, thinking=False)
        messages = whole[:-1] if ends_with_result else whole[: len(before) + 1]
        calls = () if ends_with_result else last.calls
        fields = {
            "form": "report" if ends_with_result else last.form,
            "calls": [{"name": name, "arguments": arguments} for name, arguments in calls],
            "new_functions": [f.name for f in functions if held_out(f"{DOMAIN}|function|{f.name}")],
            "boilerplate": [json.dumps(f.declaration) for f in functions],
        }
        answer = "" if calls else last.answer
        tools = tuple(f.declaration for f in functions)
        items.append(Item(DOMAIN, f"{DOMAIN}-{seed}-{position}", "", messages, tools, answer=answer, fields=fields))
    return items


def score(item: Item, output: str) -> bool:
    """Whether exactly the right calls were made, in order; or none, and the answer in words is the right one."""
    if not item.fields["calls"]:
        return not triggered(output) and _spoken(output) == item.answer
    expected = [(call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in item.fields["calls"]]
    made = [(name, json.dumps(arguments, sort_keys=True)) for name, arguments in parse_calls(output)]
    return made == expected and valid(item, output)


def triggered(output: str) -> bool:
    """Whether the output calls a tool (or tries to)."""
    return "<|tool_calls_section_begin|>" in output


def should_trigger(item: Item) -> bool:
    """Whether a call is the right thing here."""
    return bool(item.fields["calls"])


def valid(item: Item, output: str) -> bool:
    """Whether every call in the output is whole, declared, and has arguments that fit: true where there is none."""
    if not triggered(output):
        return True
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item.tools}
    calls = parse_calls(output)
    is_whole = bool(calls) and len(calls) == output.count("<|tool_call_begin|>")
    return is_whole and all(name in schemas and fits(arguments, schemas[name]) for name, arguments in calls)


def parse_calls(output: str) -> list[tuple[str, Any]]:
    """Return names and arguments of all calls; arguments that are not JSON become None."""
    section = _SECTION.search(output)
    return [(name, _load(text)) for name, _, text in _CALL.findall(section[1])] if section else []


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _spoken(output: str) -> str:
    return output.rpartition("</think>")[2].replace("<|im_end|>", "").strip()


def _property(parameter: Parameter) -> dict[str, Any]:
    rule: dict[str, Any] = {"type": "string"}
    if parameter.kind in INTEGERS:
        rule = {"type": "integer"}
    elif parameter.kind == "switch":
        rule = {"type": "boolean"}
    elif parameter.kind in ENUMS:
        rule = {"type": "string", "enum": list(ENUMS[parameter.kind])}
    return {**rule, "description": parameter.description}


def _declare(rng: random.Random, *, test: bool) -> list[Function]:
    """Declare some functions; in some tests the names are new, in training none of these ever is."""
    new = test and rng.randrange(100) < NEW_FUNCTION_PERCENT
    functions: dict[str, Function] = {}
    for position in rng.sample(range(len(INTENTS)), rng.randrange(1, MOST_TOOLS + 1)):
        intent = INTENTS[position]
        kept = _KEPT_NAMES[position]
        name = rng.choice(kept if new and kept else _KNOWN_NAMES[position])
        functions.setdefault(name, Function(intent, name, tuple(rng.choice(p.keys) for p in intent.parameters)))
    return list(functions.values())


def _turn(functions: Sequence[Function], rng: random.Random, *, test: bool) -> Turn:
    form = rng.choice(_FORMS)
    if form == "small talk":
        request, answer = _small_talk(functions, rng, test=test)
        return Turn(request, (), (), answer, "No tool is needed.", form)
    if form == "no such tool":
        declared = [function.intent for function in functions]
        intent = rng.choice([intent for intent in INTENTS if not any(intent is other for other in declared)])
        values = _values(intent, rng, test=test)
        return Turn(_say(rng.choice(intent.requests), values), (), (), _NO_TOOL, "That needs another tool.", form)
    function = rng.choice(functions)
    intent = function.intent
    if form == "ask back":
        person = _draw("person", "talk", rng, test=test)
        answer = f"Please tell me the {function.keys[0]}, {person}."
        return Turn(f"I am {person}. {intent.incomplete}", (), (), answer, "A value is missing.", form)
    count = 2 if form == "two calls" else 1
    rows = [_values(intent, rng, test=test) for _ in range(count)]
    turn = _call_turn(function, rows, rng)
    is_right = count == 1 or rows[0] != rows[1]
    is_right = is_right and _keeps_together(turn.request, rows) and _keeps_together(turn.answer, rows)
    return turn if is_right else _turn(functions, rng, test=test)


def _keeps_together(text: str, rows: Sequence[Sequence[Any]]) -> bool:
    """Whether any 13 words of a text hold all values of a call: these are what the tests keep for themselves."""
    words = [word.strip(".,?") for word in text.split()]
    wanted = [{_speak(value) for value in values} for values in rows]
    windows = (set(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1))
    return all(any(values <= window for values in wanted) for window in windows)


def _call_turn(function: Function, rows: Sequence[Sequence[Any]], rng: random.Random) -> Turn:
    intent = function.intent
    requests = [_say(rng.choice(intent.requests), values) for values in rows]
    calls = tuple((function.name, dict(zip(function.keys, values, strict=True))) for values in rows)
    results: list[str] = []
    reports: list[str] = []
    for values in rows:
        result = {key: _value(kind, rng) for key, kind in intent.result}
        results.append(json.dumps(result))
        reports.append(_say(intent.report, values, tuple(result.values())))
    thought = f"I call {function.name}."
    return Turn(" ".join(requests), calls, tuple(results), " ".join(reports), thought, _CALLS[len(rows) - 1])


def _small_talk(functions: Sequence[Function], rng: random.Random, *, test: bool) -> tuple[str, str]:
    person = _draw("person", "talk", rng, test=test)
    word = _draw("word", "talk", rng, test=test)
    names = " and ".join(function.name for function in functions)
    return rng.choice(
        (
            (f"Hello, I am {person}.", f"Hello! How can I help, {person}?"),
            (f"Say goodbye to {person}.", f"Goodbye, {person}!"),
            (f"My name is {person}. What is my name?", f"Your name is {person}."),
            (f"Thank you from {person}!", f"You are welcome, {person}!"),
            (f"I am {person}. Which tools do you have?", f"I have {names}."),
            (f"Repeat the word {word}.", f"{word}"),
            (f"Write the word {word} twice.", f"{word} {word}"),
        )
    )


def _draw(kind: str, use: str, rng: random.Random, *, test: bool) -> Any:
    while True:
        value = _value(kind, rng)
        if held_out(f"{DOMAIN}|{use}|{value}") == test:
            return value


def _values(intent: Intent, rng: random.Random, *, test: bool) -> list[Any]:
    """Draw a value for every parameter, none twice, from this side of the split."""
    while True:
        values = [_value(parameter.kind, rng) for parameter in intent.parameters]
        if len(set(values)) == len(values) and held_out(f"{DOMAIN}|{intent.nouns[0]}|{values}") == test:
            return values


def _value(kind: str, rng: random.Random) -> Any:
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        return rng.randrange(low, high + 1)
    if kind == "switch":
        return rng.randrange(2) == 1
    return rng.choice(ENUMS[kind] if kind in ENUMS else WORDS[kind])


def _say(wording: str, values: Sequence[Any], result: Sequence[Any] = ()) -> str:
    words = dict(zip("abc", map(_speak, values), strict=False))
    return wording.format(**words, **dict(zip("rs", map(_speak, result), strict=False)))


def _speak(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _messages(turns: Sequence[Turn], *, thinking: bool) -> tuple[Message, ...]:
    """Write turns as OpenAI messages; calls are numbered through the whole conversation, as Kimi's are."""
    messages: list[Message] = []
    number = 0
    for turn in turns:
        messages.append({"role": "user", "content": turn.request})
        thought = {"reasoning_content": turn.thought} if thinking else {}
        if turn.calls:
            ids = [f"functions.{name}:{number + i}" for i, (name, _) in enumerate(turn.calls)]
            number += len(ids)
            calls = [
                {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for i, (name, arguments) in zip(ids, turn.calls, strict=True)
            ]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls, **thought})
            for i, result in zip(ids, turn.results, strict=True):
                messages.append({"role": "tool", "tool_call_id": i, "content": result})
            thought = {"reasoning_content": "I report the result."} if thinking else {}
        messages.append({"role": "assistant", "content": turn.answer, **thought})
    return tuple(messages)
