"""All probes, in the order in which they run and are shown."""

from __future__ import annotations

from halfbyte.probe.card_probes import PROGRAMS, RUN_PROGRAMS, SHORT, TOOL_CALL
from halfbyte.probe.drift import DECODE_DRIFT, DRIFT
from halfbyte.probe.long_context import AFTER_LONG, CONTEXTS
from halfbyte.probe.probe import Probe
from halfbyte.probe.prose import COPYING, GARBAGES, PROSE
from halfbyte.probe.server import MALFORMED, OPTIONS, SAMENESS
from halfbyte.probe.streams import STREAMS
from halfbyte.probe.thinking import THINKING
from halfbyte.probe.tool_calls import TOOLS
from halfbyte.probe.vision import VISION

PROBES: tuple[Probe, ...] = (
    *SHORT, *PROGRAMS, TOOL_CALL, VISION, *RUN_PROGRAMS,
    *OPTIONS, *STREAMS, *SAMENESS, *MALFORMED,
    *TOOLS, COPYING, *GARBAGES, *THINKING, *PROSE,
    *AFTER_LONG, *CONTEXTS, DRIFT, DECODE_DRIFT,
)  # fmt: skip
