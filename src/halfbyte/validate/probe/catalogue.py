"""All probes, in the order in which they run and are shown."""

from __future__ import annotations

from halfbyte.validate.probe.card.after_long import AFTER_LONG
from halfbyte.validate.probe.card.contexts import CONTEXTS
from halfbyte.validate.probe.card.programs import PROGRAMS, RUN_PROGRAMS
from halfbyte.validate.probe.card.short import SHORT
from halfbyte.validate.probe.card.tool_call import TOOL_CALL
from halfbyte.validate.probe.card.vision import VISION
from halfbyte.validate.probe.copying import COPYING
from halfbyte.validate.probe.decode_drift import DECODE_DRIFT
from halfbyte.validate.probe.drift import DRIFT
from halfbyte.validate.probe.garbage import GARBAGES
from halfbyte.validate.probe.kinds import Probe
from halfbyte.validate.probe.prose import PROSE
from halfbyte.validate.probe.server.malformed import MALFORMED
from halfbyte.validate.probe.server.options import OPTIONS
from halfbyte.validate.probe.server.sameness import SAMENESS
from halfbyte.validate.probe.server.streams import STREAMS
from halfbyte.validate.probe.thinking import THINKING
from halfbyte.validate.probe.tools.probes import TOOLS

PROBES: tuple[Probe, ...] = (
    *SHORT, *PROGRAMS, TOOL_CALL, VISION, *RUN_PROGRAMS,
    *OPTIONS, *STREAMS, *SAMENESS, *MALFORMED,
    *TOOLS, COPYING, *GARBAGES, *THINKING, *PROSE,
    *AFTER_LONG, *CONTEXTS, DRIFT, DECODE_DRIFT,
)  # fmt: skip
