"""All probes, in the order in which they run and are shown."""

from __future__ import annotations

from halfbyte.validate.probe.kinds import Probe

PROBES: tuple[Probe, ...] = ()
