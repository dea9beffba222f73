"""Redact API keys from the environment in displayed text.

Some servers echo a rejected key in a status line, a header or a body.
"""

from __future__ import annotations

import os
import re

_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_VALUE = 12  # shorter values are ordinary words that occur in other text
_REDACTED = "***"


def key_variables() -> dict[str, str]:
    """Return the environment variables that hold keys, by name."""
    named = {name: value.strip() for name, value in os.environ.items() if _VARIABLE.search(name)}
    return {name: value for name, value in named.items() if len(value) >= _SHORTEST_VALUE and "/" not in value[:1]}


def without_key_values(text: str) -> str:
    """Replace the value of every key variable in a text with `***`."""
    for value in key_variables().values():
        text = text.replace(value, _REDACTED)
    return text
