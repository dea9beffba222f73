"""Parse vLLM's /metrics: KV cache, prefix cache hits, accepted draft tokens, preemptions.

A missing metric is None, not 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_CACHE_CONFIG = "vllm:cache_config_info"
# Our name -> vLLM's names, past and present. Values of all engines behind one page are added.
_COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "generated_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
}
_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_STARTED = "process_start_time_seconds"
_EMULATED = "halfbyte_emulated"  # set by halfbyte's vLLM plugin
_RUNNING = "vllm:num_requests_running"


@dataclass(frozen=True, slots=True)
class Page:
    """A snapshot of /metrics: counters by our names, the cache settings, and the server's start time."""

    counters: Mapping[str, float]
    cache: Mapping[str, str]
    kv_use: float | None
    started: float | None
    emulated: bool = False
    running: float | None = None  # running requests

    @property
    def kv_tokens(self) -> int | None:
        """Capacity of the KV cache in tokens."""
        if self.cache.get("kv_cache_size_tokens", "").isdigit():
            return int(self.cache["kv_cache_size_tokens"])
        blocks, size = (self.cache.get(key, "") for key in ("num_gpu_blocks", "block_size"))
        return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None


def read_page(text: str) -> Page:
    """Parse the text of the page. Skip lines that are not samples."""
    counters: dict[str, float] = {}
    cache: dict[str, str] = {}
    use: list[float] = []
    running: list[float] = []
    started, emulated = None, False
    ours = {published: name for name, names in _COUNTERS.items() for published in names}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, value = match["name"], _number(match["value"])
        if value is None:
            continue
        if name == _CACHE_CONFIG:
            cache = dict(_LABEL.findall(match["labels"] or ""))
        elif name in ours:
            counters[ours[name]] = counters.get(ours[name], 0.0) + value
        elif name in _USE:
            use.append(value)
        elif name == _RUNNING:
            running.append(value)
        elif name == _STARTED:
            started = value
        emulated |= name == _EMULATED and value > 0
    return Page(counters, cache, max(use, default=None), started, emulated, sum(running) if running else None)


def _number(text: str) -> float | None:
    """Return a sample's value, or None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def between(before: Page | None, after: Page | None) -> dict[str, Any]:
    """Return the differences between two snapshots. Values are None if not reported or if the server restarted."""
    counted = dict.fromkeys(_COUNTERS)
    if before is not None and after is not None and before.started == after.started:
        counted |= {
            name: after.counters[name] - before.counters[name]
            for name in _COUNTERS
            if name in before.counters and name in after.counters
        }
    return {
        **counted,
        "prefix_hit_share": _share(counted["prefix_hits"], counted["prefix_queries"]),
        "draft_acceptance": _share(counted["accepted_tokens"], counted["draft_tokens"]),
        "server_started": after.started if after else None,
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
