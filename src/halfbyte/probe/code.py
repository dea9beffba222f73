"""Extract model-written code from answers, and check for a sandbox to run it."""

from __future__ import annotations

import re

from halfbyte.machine.extras import install_extra
from halfbyte.probe.kinds import Setting

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
NEED_SANDBOX = frozenset({"coding-canary", "unicode-chart"})  # probes


def code_of(text: str) -> str:
    """Return the fenced code of an answer, or all of it without fences."""
    blocks = _FENCED.findall(text)
    return "\n\n".join(blocks) if blocks else text


def lacks_sandbox(setting: Setting) -> str | None:
    """Return why code cannot be run here, or None."""
    tier = setting.sandbox
    if tier is None or tier.engine is None:
        reason = f" ({tier.reason})" if tier else ""
        return f"no sandbox for model-written code: install bubblewrap, or {install_extra('sandbox')}{reason}"
    return None
