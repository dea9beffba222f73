"""Requests with tools, from the profile or from `--tool-calls FILE`, and checks of the calls in their answers."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jsonschema
from pydantic import Field
from referencing import Registry

from halfbyte.checkpoint.untrusted_files import parsed, plain_text
from halfbyte.endpoint.client import values_without_keys
from halfbyte.errors import UsageError
from halfbyte.evidence.jsonl import encoded
from halfbyte.probe.answers import Answer
from halfbyte.probe.client import Ask, Client
from halfbyte.probe.probe import Cost, Excerpt, Setting
from halfbyte.probe.profiles import TOKENS_PER_CHARACTER, Questions
from halfbyte.ui.units import timestamp

SECTION = "tools"


class Case(Questions):
    """One request. `calls` are the expected calls in order, or None if unknown."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = Field(min_length=1)
    calls: list[dict[str, Any]] | None = None
    triggered: bool | None = None  # recorded decision of a reference
    options: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def size(self) -> int:
        """Return the number of characters of the request."""
        return len(str(self.messages)) + len(str(self.tools))

    @property
    def should_call(self) -> bool | None:
        """Whether a tool call is expected, if known."""
        return self.triggered if self.calls is None else bool(self.calls)


class ToolQuestions(Questions):
    """Requests and limits of the profile."""

    cases: list[Case] = Field(min_length=1)
    take: int | None = None
    streamed: int = Field(gt=0)  # number of requests that are also streamed
    max_tokens: int = Field(gt=0)
    id_form: str | None = None  # such as functions.{name}:{index}
    least_valid: float = Field(gt=0, le=1)  # of all calls
    least_parallel: float = Field(gt=0, le=1)  # of the requests that expect several calls
    least_equal: float = Field(gt=0, le=1)  # of streams
    least_f1: float = Field(gt=0, le=1)  # without a live reference
    f1_margin: float = Field(ge=0, lt=1)  # below the self-agreement of the reference


def section(setting: Setting) -> ToolQuestions:
    """Return the profile's section."""
    return setting.profile.need(SECTION, ToolQuestions)


def chosen(setting: Setting) -> list[Case]:
    """Return the requests of a run, the same for all probes: the whole file, or a sample of the profile by the seed."""
    if setting.tool_cases is not None:
        return list(setting.tool_cases)
    questions = section(setting)
    if questions.take is None or questions.take >= len(questions.cases):
        return list(questions.cases)
    return random.Random(setting.seed).sample(questions.cases, questions.take)


def streamed(setting: Setting) -> list[Case]:
    """Return the requests that are also streamed: those that expect a call first."""
    cases = sorted(chosen(setting), key=lambda case: not case.should_call)
    return cases[: section(setting).streamed]


def request(client: Client, case: Case, max_tokens: int, *, stream: bool = False, repetition: int = 0) -> Ask:
    """Build the request of a case."""
    chat: dict[str, Any] = {"tools": case.tools, "max_tokens": max_tokens, "tool_choice": "auto"}
    ask = client.chat_ask(case.messages, repetition=repetition, **chat)
    options = {**case.options, **({"stream": True} if stream else {})}  # with any names
    return replace(ask, body=client.body_of(ask.body, options))


def ask_plain(setting: Setting, client: Client, cases: Sequence[Case], repetition: int = 0) -> list[Answer]:
    """Send the cases; a second probe reads the answers from the trace."""
    max_tokens = section(setting).max_tokens
    return client.ask_all([request(client, case, max_tokens, repetition=repetition) for case in cases])


def ask_streamed(setting: Setting, cases: Sequence[Case]) -> list[Answer]:
    """Send the cases as streams."""
    client, max_tokens = setting.client, section(setting).max_tokens
    return client.ask_all([request(client, case, max_tokens, stream=True) for case in cases])


def cost(
    setting: Setting, cases: Sequence[Case], *, streams: Sequence[Case] = (), reference_repetitions: int = 0
) -> Cost:
    """Return the cost of the unanswered requests: plain, streamed, and to the reference."""
    client, reference, max_tokens = setting.client, setting.reference, section(setting).max_tokens
    asks = [(case, client, request(client, case, max_tokens)) for case in cases]
    asks += [(case, client, request(client, case, max_tokens, stream=True)) for case in streams]
    if reference is not None:
        asks += [
            (case, reference, request(reference, case, max_tokens, repetition=repetition))
            for repetition in range(reference_repetitions)
            for case in cases
        ]
    sizes = [case.size for case, target, ask in asks if target.unanswered([ask])]
    return Cost(
        len(sizes), int(sum(sizes) * TOKENS_PER_CHARACTER), len(sizes) * max_tokens // 2, setting.profile.concurrency
    )


# Checks of tool calls: declared functions, valid JSON arguments, schemas, ids and leaked markup.

MARKUP = re.compile(r"<\|tool_\w*|<\|im_\w*|</?tool_calls?>|tool_calls?_section|functions\.[\w-]+:\d+")
_EMPTY_REGISTRY: Any = cast("Any", Registry)()  # so that a `$ref` in a request is not fetched from the network


def function_of(call: dict[str, Any]) -> tuple[str, str]:
    """Return the name of a call and its arguments as text."""
    function = cast("dict[str, Any]", call.get("function") or {})
    arguments = function.get("arguments")
    return str(function.get("name")), arguments if isinstance(arguments, str) else json.dumps(arguments)


def values_of(call: dict[str, Any]) -> tuple[str, Any]:
    """Return the name of a call and its parsed arguments; invalid JSON stays text."""
    name, text = function_of(call)
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def invalid(call: dict[str, Any], case: Case, answer: Answer) -> list[Excerpt]:
    """Return the faults of a call; none if its schema is itself invalid."""
    name, text = function_of(call)
    declared: dict[str, Any] = {tool["function"]["name"]: tool["function"] for tool in case.tools if "function" in tool}
    if name not in declared:
        return [Excerpt(name, f"{name} is not declared", 0, len(name), answer.id)]
    try:
        arguments = json.loads(text)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        return [Excerpt(text, f"arguments of {name} are not valid JSON: {error}", at, at + 1, answer.id)]
    wrong = violation(arguments, declared[name].get("parameters") or {})
    return [Excerpt(text, f"arguments of {name} violate the schema: {wrong}", 0, len(text), answer.id)] if wrong else []


def violation(value: Any, schema: Any) -> str | None:
    """Return how a value violates a schema; None if it is valid, or if the schema is invalid."""
    library: Any = jsonschema
    kind: Any = library.validators.validator_for(schema, default=library.Draft202012Validator)
    try:
        kind.check_schema(schema)
        errors: list[Any] = list(kind(schema, registry=_EMPTY_REGISTRY).iter_errors(value))
    except Exception:  # an invalid or remote schema is a fault of the request, not of the model
        return None
    error = library.exceptions.best_match(errors)
    if error is None:
        return None
    path = "/".join(map(str, error.absolute_path))
    return f"{path}: {error.message}" if path else str(error.message)


def leaks(answer: Answer) -> list[Excerpt]:
    """Return tool-call markup in the content or the reasoning."""
    return [
        Excerpt(text, f"tool-call markup in the {name}", match.start(), match.end(), answer.id)
        for name, text in (("content", answer.text), ("reasoning", answer.reasoning or ""))
        for match in [MARKUP.search(text)]
        if match
    ]


def wrong_ids(calls: Sequence[dict[str, Any]], form: str | None, answer: Answer) -> list[Excerpt]:
    """Return ids that are missing, duplicate, malformed or not consecutive."""
    faults: list[Excerpt] = []
    ids = [str(call.get("id") or "") for call in calls]
    first: int | None = None
    for place, (call, name) in enumerate(zip(calls, ids, strict=True)):
        if not name or ids.count(name) > 1:
            faults.append(Excerpt(name, "duplicate id" if name else "no id", 0, len(name), answer.id))
        if form is None:
            continue
        function, _ = function_of(call)
        pattern = re.escape(form).replace(r"\{name\}", re.escape(function)).replace(r"\{index\}", r"(\d+)")
        match = re.fullmatch(pattern, name)
        if match is None:
            expected = form.replace("{name}", function).replace("{index}", str(place))
            faults.append(Excerpt(name, f"id does not match {expected}", 0, len(name), answer.id))
            continue
        first = int(match[1]) - place if first is None else first
        if int(match[1]) != first + place:
            faults.append(Excerpt(name, f"number {match[1]} instead of {first + place}", 0, len(name), answer.id))
    return faults


# Read requests and write results in the file format of the K2 vendor verifier.
#
# A line of requests is the body of a chat. A line of results has such a body under `request`, and the server's
# decision under `finish_reason`. As input, it is a recorded reference.

RESULTS = "tool_calls.jsonl"
_OURS = frozenset({"messages", "tools", "model", "stream", "stream_options"})  # not request options
_ROLES = {"_input": "system"}


def read_cases(path: Path) -> list[Case]:
    """Read a file; reject an invalid line with its number."""
    try:
        lines = plain_text(path).removeprefix("\ufeff").split("\n")  # U+2028 ends a line for Python, not for JSONL
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path), fix="pass a JSONL file of requests") from None
    cases = [_case(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not cases:
        raise UsageError("no requests in the file", where=str(path), fix="pass a JSONL file of requests")
    return cases


def _case(line: str, where: str) -> Case:
    fix = "each line is the body of a chat with messages and tools, as in the K2 vendor verifier's samples.jsonl"
    try:
        row: Any = parsed(line)
        body: dict[str, Any] = row.get("request", row)
        messages = [{**message, "role": _ROLES.get(message["role"], message["role"])} for message in body["messages"]]
        finish_reason: Any = row.get("finish_reason") if "request" in row else None
        options = {key: value for key, value in body.items() if key not in _OURS}
        names = [tool["function"]["name"] for tool in body["tools"] if "function" in tool]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a function without a name")
        return Case.model_validate(
            {
                "messages": messages,
                "tools": body["tools"],
                "triggered": None if finish_reason is None else finish_reason == "tool_calls",
                "options": options,
            }
        )
    except (ValueError, LookupError, TypeError, AttributeError):  # pydantic's errors are ValueErrors
        raise UsageError("not a valid request with tools", where=where, fix=fix) from None


def write_results(folder: Path, cases: Sequence[Case], answers: Sequence[Answer]) -> Path:
    """Write the answers, one line per request."""
    path = folder / RESULTS
    rows = [_row(number, case, answer) for number, (case, answer) in enumerate(zip(cases, answers, strict=True), 1)]
    part = path.with_name(path.name + ".part")
    part.write_bytes(b"".join(encoded(values_without_keys(row)) for row in rows))
    part.replace(path)
    return path


def _row(number: int, case: Case, answer: Answer) -> dict[str, Any]:
    request: dict[str, Any] = {"messages": case.messages, "tools": case.tools, **case.options}
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "tool_calls": list(answer.tool_calls)}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    choice = cast("dict[str, Any]", {"message": message, "finish_reason": answer.finish_reason})
    response = {"error": answer.error} if answer.error else {"choices": [choice], "usage": dict(answer.usage)}
    called = answer.finish_reason == "tool_calls"
    return {
        "data_index": number,
        "request": request,
        "extra_body": {},
        "response": response,
        "status": "failed" if answer.error else "success",
        "finish_reason": answer.finish_reason,
        "tool_calls_valid": not any(invalid(call, case, answer) for call in answer.tool_calls) if called else None,
        "last_run_at": timestamp(),
        "duration_ms": round(1000 * answer.seconds),
        "hash": hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest(),
    }
