"""Mark an emulating server on /metrics, so that remote benchmarks can detect it."""

from __future__ import annotations

import contextlib

EMULATED_METRIC = "halfbyte_emulated"


def add_metric() -> None:
    """Add the metric `halfbyte_emulated 1`, once per process."""
    with contextlib.suppress(ImportError, ValueError):  # no prometheus_client, or already added
        from prometheus_client import Gauge

        Gauge(EMULATED_METRIC, "This server emulates its number format.", multiprocess_mode="mostrecent").set(1)
