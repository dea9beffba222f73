"""Read requests and write results in the file format of the K2 vendor verifier.

A line of requests is the body of a chat. A line of results has such a body under `request`, and the server's decision
under `finish_reason`. As input, it is a recorded reference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.untrusted_files import parsed, plain_text
from halfbyte.endpoint.client import values_without_keys
from halfbyte.errors import UsageError
from halfbyte.evidence.jsonl import encoded
from halfbyte.probe.answers import Answer
from halfbyte.probe.tools.calls import invalid
from halfbyte.probe.tools.cases import Case

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
        "last_run_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "duration_ms": round(1000 * answer.seconds),
        "hash": hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest(),
    }
