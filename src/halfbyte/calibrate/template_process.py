"""Subprocess that renders a checkpoint's chat template: one line of JSON in, one line of JSON out.

It uses jinja2's sandbox with the helper functions of transformers. The sandbox does not stop endless loops or huge
texts, so the process has resource limits and the parent kills it after a timeout.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_NBYTES = 1 << 30  # memory limit; a conversation of a million tokens takes 0.1 GB
_TODAY = datetime(2026, 1, 1)  # fixed, so that templates that print the date give the same tokens and scales every day


def main() -> None:
    """Compile the template in the first line, then render the conversation in each further line."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_NBYTES, MOST_NBYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # does not apply to pipes
    answers = os.fdopen(1, "w", encoding="utf-8")
    compiled: jinja2.Template | None = None
    for line in sys.stdin:
        try:
            request: Any = json.loads(line)
            if compiled is None:
                compiled = _sandbox().from_string(request)
                answer: dict[str, str] = {}
            else:
                answer = {"text": compiled.render(**request)}
        except MemoryError:
            answer = {"error": f"more than {MOST_NBYTES >> 20} MiB of memory needed"}
        except Exception as error:  # untrusted templates can raise anything
            answer = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Generation(Extension):
    """Support for {% generation %} blocks, which mark the model's output and do not change the text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """Return a sandbox with the settings and helper functions of transformers."""
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    sandbox.filters["tojson"] = _to_json
    helpers = cast("dict[str, Any]", sandbox.globals)
    helpers["raise_exception"] = _raise
    helpers["strftime_now"] = _date
    return sandbox


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON, because jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _date(pattern: str) -> str:
    return _TODAY.strftime(pattern)


if __name__ == "__main__":
    main()
