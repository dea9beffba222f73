"""The process in which a checkpoint's chat template runs: a line of JSON in, a line of JSON out.

It is jinja2's sandbox with what transformers gives to templates. The sandbox keeps a template from reaching anything,
not from looping for ever or from doubling a text forty times; limits on this process do, and who started it can end it.
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

MOST_NBYTES = 1 << 30  # of memory; a conversation of a million tokens takes 0.1 GB
_TODAY = datetime(2026, 1, 1)  # templates that print the date would give other tokens, and other scales, every day


def main() -> None:
    """Compile the template that the first line has, then render a conversation for each further line."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_NBYTES, MOST_NBYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a pipe is no file
    answers = os.fdopen(1, "w", encoding="utf-8")
    compiled: jinja2.Template | None = None
    for line in sys.stdin:
        try:
            given: Any = json.loads(line)
            if compiled is None:
                compiled = _sandbox().from_string(given)
                said: dict[str, str] = {}
            else:
                said = {"text": compiled.render(**given)}
        except MemoryError:
            said = {"error": f"it takes more than {MOST_NBYTES >> 20} MiB of memory"}
        except Exception as error:  # a template is a foreign program: whatever it raises, it could not do this
            said = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


class _Generation(Extension):
    """Templates may mark what the model writes with {% generation %}; to a reader of the text it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _sandbox() -> ImmutableSandboxedEnvironment:
    """Return the surroundings that transformers gives to templates; they were written for these."""
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
    """Return JSON as it is; jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _date(pattern: str) -> str:
    return _TODAY.strftime(pattern)


if __name__ == "__main__":
    main()
