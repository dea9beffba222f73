"""A server that emulates says so on its /metrics page: whoever measures its speed, from wherever, finds it there."""

from __future__ import annotations

import contextlib

EMULATED_METRIC = "halfbyte_emulated"


def tell_on_metrics_page() -> None:
    """Add the line `halfbyte_emulated 1`; once in a process."""
    with contextlib.suppress(ImportError, ValueError):  # no such library, or the line is there already
        from prometheus_client import Gauge  # noqa: PLC0415

        Gauge(EMULATED_METRIC, "This server emulates its number format.", multiprocess_mode="mostrecent").set(1)
