"""Keys that the environment holds: they go to the server that they are for, and are shown to nobody.

Some servers repeat the key that they refuse, in a status, a header or a body, and whoever shows that shows the key.
"""

from __future__ import annotations

import os
import re

_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_VALUE = 12  # of a variable: shorter ones are words that texts have anyway
_INSTEAD = "***"


def key_variables() -> dict[str, str]:
    """Return the environment's variables that hold keys, by name."""
    named = {name: value.strip() for name, value in os.environ.items() if _VARIABLE.search(name)}
    return {name: value for name, value in named.items() if len(value) >= _SHORTEST_VALUE and "/" not in value[:1]}


def without_key_values(text: str) -> str:
    """Take every key of the environment out of a text that is shown."""
    for value in key_variables().values():
        text = text.replace(value, _INSTEAD)
    return text
