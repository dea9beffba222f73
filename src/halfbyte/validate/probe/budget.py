"""`--budget 5m`: what fits, by what probes ask for and how fast the server has answered so far."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from halfbyte.errors import UsageError
from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.context import entries, listed
from halfbyte.validate.probe.kinds import Cost, Probe, Setting

_UNITS = {"s": 1, "m": 60, "h": 3600}
_FIRST_PROMPT_RATE, _FIRST_OUTPUT_RATE = 1000.0, 20.0  # tokens a second, until something is measured
_OVERHEAD_S = 0.05  # of a request
_LONG_PROMPT = 200  # tokens: what comes before the first token of a shorter one is not the reading
_LONG_OUTPUT = 8
_WARM_ENTRIES = 100
_TOKENS_AN_ENTRY = 40  # more than any tokenizer needs, four times over


def parse_budget(text: str | None) -> float | None:
    """Return the seconds that `5m`, `90s`, `1.5h` mean."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)\s*", text, re.ASCII)
    if match is None or not float(match[1]):
        raise UsageError(f"'{text}' is no length of time", where="--budget", fix="write it like 90s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2][0]]


@dataclass(slots=True)
class Speed:
    """How fast a server has read and written so far; every answer adds to it."""

    prompt_tokens: float = 0.0
    prompt_s: float = 0.0
    output_tokens: float = 0.0
    output_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, answer: Answer) -> None:
        """Take note of a stream's times; of a plain answer they cannot be told apart."""
        if answer.error or answer.first_token_s is None or not answer.usage:
            return
        with self._lock:
            if (answer.prompt_tokens or 0) >= _LONG_PROMPT:
                self.prompt_tokens += answer.prompt_tokens or 0
                self.prompt_s += answer.first_token_s
            if answer.completion_tokens >= _LONG_OUTPUT:
                self.output_tokens += answer.completion_tokens - 1
                self.output_s += answer.seconds - answer.first_token_s

    def seconds(self, cost: Cost) -> float:
        """Return how long a probe takes if its requests go one after the other."""
        prompt_rate = self.prompt_tokens / self.prompt_s if self.prompt_s > 0 else _FIRST_PROMPT_RATE
        output_rate = self.output_tokens / self.output_s if self.output_s > 0 else _FIRST_OUTPUT_RATE
        reading, writing = cost.prompt_tokens / prompt_rate, cost.output_tokens / max(output_rate, 1e-3)
        return cost.requests * _OVERHEAD_S + reading + writing


def warm_up(setting: Setting) -> None:
    """Ask a stream twice, so that there is a speed to start with; not from the trace, it is the time that counts."""
    words, client = setting.lengths.words, setting.client
    number = min(_WARM_ENTRIES, setting.context // _TOKENS_AN_ENTRY)
    for seed in (setting.seed + 1, setting.seed + 2):
        text = f"{words.instruction}\n\n{listed(entries(words, number, seed))}\n\nWrite the first three entries again."
        if client.ask(client.chat_ask(text, max_tokens=32, stream=True, always=True)).error:
            return  # the probes will tell; a server that hangs need not be waited for twice


def choose(probes: Sequence[Probe], setting: Setting, speed: Speed, seconds: float | None) -> set[str]:
    """Return the names of the probes that fit, the cheapest first: most questions for the time."""
    if seconds is None:
        return {probe.name for probe in probes}
    left, chosen = seconds, set[str]()
    for need, name in sorted((speed.seconds(probe.cost(setting)), probe.name) for probe in probes):
        if need > left:
            break
        left -= need
        chosen.add(name)
    return chosen


@dataclass(slots=True)
class Clock:
    """What is left of the time, and how far the estimates were off."""

    budget_s: float | None
    start: float = field(default_factory=time.monotonic)
    estimated: float = 0.0
    taken: float = 0.0

    def finished(self, estimated: float, taken: float) -> None:
        """Compare a finished probe with its estimate."""
        self.estimated += estimated
        self.taken += taken

    def corrected(self, estimated: float) -> float:
        """Return an estimate as the finished probes teach it, within a factor of 10 of itself."""
        factor = self.taken / self.estimated if self.estimated > 0 else 1.0
        return estimated * min(10.0, max(0.1, factor))

    def left(self) -> float | None:
        """Return the seconds that are left of the budget."""
        return None if self.budget_s is None else self.budget_s - (time.monotonic() - self.start)
