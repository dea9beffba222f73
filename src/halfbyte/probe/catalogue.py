"""All probes, in the order in which they run and are shown."""

from __future__ import annotations

from halfbyte.probe.card.after_long import AFTER_LONG
from halfbyte.probe.card.contexts import CONTEXTS
from halfbyte.probe.card.programs import PROGRAMS, RUN_PROGRAMS
from halfbyte.probe.card.short import SHORT
from halfbyte.probe.card.tool_call import TOOL_CALL
from halfbyte.probe.card.vision import VISION
from halfbyte.probe.copying import COPYING
from halfbyte.probe.decode_drift import DECODE_DRIFT
from halfbyte.probe.drift import DRIFT
from halfbyte.probe.garbage import GARBAGES
from halfbyte.probe.kinds import Probe
from halfbyte.probe.prose import PROSE
from halfbyte.probe.server.malformed import MALFORMED
from halfbyte.probe.server.options import OPTIONS
from halfbyte.probe.server.sameness import SAMENESS
from halfbyte.probe.server.streams import STREAMS
from halfbyte.probe.thinking import THINKING
from halfbyte.probe.tools.probes import TOOLS

PROBES: tuple[Probe, ...] = (
    *SHORT, *PROGRAMS, TOOL_CALL, VISION, *RUN_PROGRAMS,
    *OPTIONS, *STREAMS, *SAMENESS, *MALFORMED,
    *TOOLS, COPYING, *GARBAGES, *THINKING, *PROSE,
    *AFTER_LONG, *CONTEXTS, DRIFT, DECODE_DRIFT,
)  # fmt: skip
