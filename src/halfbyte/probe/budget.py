"""Schedule probes within `--budget`: choose the next probe after each one, by the speeds measured so far."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from halfbyte.errors import UsageError
from halfbyte.evidence.probes import OVER_BUDGET
from halfbyte.probe.answers import Answer
from halfbyte.probe.client import BudgetEndedError
from halfbyte.probe.context import entries, listed
from halfbyte.probe.probe import Cost, Probe, Setting

_UNITS = {"s": 1, "m": 60, "h": 3600}
_FIRST_PROMPT_RATE, _FIRST_OUTPUT_RATE = 1000.0, 20.0  # tokens per second, until measured
_OVERHEAD_S = 0.05  # of a request
_LONG_PROMPT = 200  # tokens: for a shorter prompt, the time to first token is not prefill time
_LONG_OUTPUT = 8
_BATCH_GAIN = 0.5  # speed of a request in a batch against one alone: a first guess, corrected by measured times
_WARM_ENTRIES = 100
_TOKENS_AN_ENTRY = 40  # four times as many as any tokenizer needs
_UNUSED_SHARE = 0.05  # of the budget: while more is left, the cheapest probe is tried even if it seems too long
_DECAY = 0.7  # weight of the previous probe: a server may become slower or faster
_SHORT_S = 100.0  # printed with a decimal, so that the estimate and the remaining time differ
_MOST_WRONG = 20.0  # maximum factor by which an estimate is corrected


def parse_budget(text: str | None) -> float | None:
    """Parse a duration such as `5m`, `90s` or `1.5h` into seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)\s*", text, re.ASCII)
    if match is None or not float(match[1]):
        raise UsageError(f"'{text}' is not a valid duration", where="--budget", fix="write it like 90s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2][0]]


@dataclass(slots=True)
class Speed:
    """Prefill and decode speed of a server, measured from all answers so far."""

    prompt_tokens: float = 0.0
    prompt_s: float = 0.0
    output_tokens: float = 0.0
    output_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, answer: Answer) -> None:
        """Add the times of a stream; a plain answer does not separate prefill from decode."""
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
        """Return the estimated time of a probe; a batch of n requests decodes n / 2 times as fast as one."""
        prompt_rate = self.prompt_tokens / self.prompt_s if self.prompt_s > 0 else _FIRST_PROMPT_RATE
        output_rate = self.output_tokens / self.output_s if self.output_s > 0 else _FIRST_OUTPUT_RATE
        prefill_s, decode_s = cost.prompt_tokens / prompt_rate, cost.output_tokens / max(output_rate, 1e-3)
        batch = max(1.0, _BATCH_GAIN * min(cost.requests, cost.at_once))
        return cost.requests * _OVERHEAD_S + prefill_s + decode_s / batch


def warm_up(setting: Setting) -> bool:
    """Send two streamed requests to measure a first speed; return False if the budget ended before any answer."""
    words, client = setting.lengths.words, setting.client
    number = min(_WARM_ENTRIES, setting.context // _TOKENS_AN_ENTRY)
    for attempt in (1, 2):
        listing = listed(entries(words, number, setting.seed + attempt))
        text = f"{words.instruction}\n\n{listing}\n\nWrite the first three entries again."
        try:
            if client.ask(client.chat_ask(text, max_tokens=32, stream=True, always=True)).error:
                break  # the probes will report the error
        except BudgetEndedError:
            return attempt > 1
    return True


@dataclass(slots=True)
class Clock:
    """Remaining time of a budget."""

    budget_s: float | None
    now: Callable[[], float] = time.monotonic
    start: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.start = self.now()

    @property
    def deadline(self) -> float:
        """Return the end of the budget on the clock `now`."""
        return math.inf if self.budget_s is None else self.start + self.budget_s

    def left(self) -> float:
        """Return the remaining seconds of the budget, at least 0."""
        return max(0.0, self.deadline - self.now())


@dataclass(slots=True)
class _Ratio:
    """Time of finished probes against their estimates; recent probes count more."""

    estimated: float = 0.0
    taken: float = 0.0
    probes: float = 0.0

    def add(self, estimated: float, taken: float) -> None:
        self.estimated = self.estimated * _DECAY + estimated
        self.taken = self.taken * _DECAY + taken
        self.probes = self.probes * _DECAY + 1

    def factor(self, prior: float, weight: float) -> float:
        """Return taken / estimated, pulled toward a prior that counts as much as `weight` estimated seconds."""
        total = self.estimated + weight
        return (self.taken + prior * weight) / total if total > 0 else prior


class Schedule:
    """Choose the next probe: one of every group, then the other probes, then rungs and repetitions.

    The least covered group is next, with its cheapest probe. An estimate is a probe's cost at the measured speed,
    corrected by how long the finished probes of its group took against their own estimates. A probe that does not fit
    waits until a better estimate fits. No probe is skipped while it fits, or while more than 5 % of the budget is left:
    then the cheapest probe is tried, and the deadline stops it if the estimate was right.
    Without a budget, probes run in the order of `PROBES`.
    """

    def __init__(self, probes: Iterable[Probe], setting: Setting, speed: Speed, clock: Clock) -> None:
        self.pending = list(probes)
        self._setting, self._speed, self._clock = setting, speed, clock
        self._started: Counter[str] = Counter()
        self._of_group = Counter(probe.group for probe in self.pending)
        self._costs: dict[str, Cost] = {}
        self._all = _Ratio()
        self._by_group: dict[str, _Ratio] = {}

    def next(self) -> Probe | None:
        """Take the next probe from `pending`; None if no pending probe fits the budget."""
        if not self.pending:
            return None
        probe = self.pending[0] if self._clock.budget_s is None else self._choose(self._clock.budget_s)
        if probe is not None:
            self.pending.remove(probe)
            self._started[probe.group] += 1
        return probe

    def _choose(self, budget_s: float) -> Probe | None:
        left = self._clock.left()
        needs = {probe.name: self.need(probe) for probe in self.pending}
        fitting = [probe for probe in self.pending if needs[probe.name] <= left]
        if fitting:
            return min(fitting, key=lambda probe: (*self._rank(probe), needs[probe.name]))
        if left > _UNUSED_SHARE * budget_s:
            return min(self.pending, key=lambda probe: needs[probe.name])
        return None

    def _rank(self, probe: Probe) -> tuple[int, float]:
        """Return the phase of a probe and the share of its group that has run."""
        started = self._started[probe.group]
        return 0 if not started else 2 if probe.repeats else 1, started / self._of_group[probe.group]

    def estimate(self, probe: Probe) -> float:
        """Return the seconds that a probe's requests take at the measured speed."""
        if probe.name not in self._costs:
            self._costs[probe.name] = probe.cost(self._setting)
        return self._speed.seconds(self._costs[probe.name])

    def need(self, probe: Probe) -> float:
        """Return the estimate of a probe, corrected by the finished probes."""
        overall = self._all.factor(1.0, 0.0)
        typical = self._all.estimated / self._all.probes if self._all.probes else 0.0  # one probe's worth of prior
        factor = self._by_group.get(probe.group, _Ratio()).factor(overall, typical)
        return self.estimate(probe) * min(_MOST_WRONG, max(1 / _MOST_WRONG, factor))

    def needed(self) -> float:
        """Return the seconds until the run ends: the needs of the pending probes, or the rest of the budget."""
        return min(self._clock.left(), sum(self.need(probe) for probe in self.pending))

    def finished(self, probe: Probe, estimated: float, taken: float | None) -> None:
        """Record the time of a finished probe; None if its answers came from an earlier run."""
        if taken is not None:
            self._all.add(estimated, taken)
            self._by_group.setdefault(probe.group, _Ratio()).add(estimated, taken)
        # Probes of a group may share answers: finished requests cost the others nothing.
        for other in self.pending:
            if other.group == probe.group:
                self._costs.pop(other.name, None)

    def reason(self, probe: Probe) -> str:
        """Return why a probe is skipped, with the current figures."""
        left = f"{_seconds(self._clock.left())} of {_seconds(self._clock.budget_s or 0.0)} are left"
        return f"{OVER_BUDGET}: needs about {_seconds(self.need(probe))}, {left}"

    def stopped(self, taken: float) -> str:
        """Return why a probe that ran has no result: the deadline stopped it."""
        budget = _seconds(self._clock.budget_s or 0.0)
        return f"{OVER_BUDGET}: stopped after {_seconds(taken)}, when the budget of {budget} ended"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _SHORT_S else f"{seconds:,.0f} s"
