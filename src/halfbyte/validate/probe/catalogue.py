"""All probes, in the order in which they run and are shown."""

from __future__ import annotations

from halfbyte.validate.probe.card.after_long import AFTER_LONG
from halfbyte.validate.probe.card.contexts import CONTEXTS
from halfbyte.validate.probe.card.programs import PROGRAMS, RUN_PROGRAMS
from halfbyte.validate.probe.card.short import SHORT
from halfbyte.validate.probe.card.tool_call import TOOL_CALL
from halfbyte.validate.probe.card.vision import VISION
from halfbyte.validate.probe.kinds import Probe

PROBES: tuple[Probe, ...] = (*SHORT, *PROGRAMS, TOOL_CALL, VISION, *RUN_PROGRAMS, *AFTER_LONG, *CONTEXTS)
