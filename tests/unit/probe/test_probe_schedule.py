"""The schedule of probes within a budget: simulated servers of many speeds, and the fake endpoint."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from probe_setting import setting_of
from scripted_server import Said

from halfbyte.probe.budget import Clock, Schedule, Speed
from halfbyte.probe.probe import Cost, Probe, Verdict
from halfbyte.probe.prose import PROSE
from halfbyte.probe.tool_calls import TOOLS

GROUPS = ("card", "server", "tools", "prose", "long")
UNUSED = 0.05


@dataclass
class Simulated:
    """A server on a fake clock: `slowness(now)` multiplies the duration of its probes."""

    probes: list[Probe]
    budget_s: float
    prompt_rate: float = 1000.0
    output_rate: float = 50.0
    slowness: object = staticmethod(lambda _: 1.0)
    wrong: dict[str, float] = field(default_factory=dict)  # true time / estimate, of single probes
    now: float = 0.0
    order: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)  # although they did not seem to fit

    def run(self) -> Simulated:
        clock = Clock(self.budget_s, now=lambda: self.now)
        speed = Speed(self.prompt_rate, 1.0, self.output_rate, 1.0)
        schedule = Schedule(self.probes, None, speed, clock)
        while True:
            before, left = list(schedule.pending), clock.left()
            needs = {one.name: schedule.need(one) for one in before}
            begun = {name.partition("-")[0] for name in self.order}
            probe = schedule.next()
            if probe is None:
                break
            self.check_choice(probe, before, needs, left, begun)
            estimated = schedule.estimate(probe)
            taken = estimated * self.wrong.get(probe.name, 1.0) * self.slowness(self.now)
            self.order.append(probe.name)
            if taken > left:  # as the client's deadline does
                self.now += left
                self.stopped.append(probe.name)
            else:
                self.now += taken
                schedule.finished(probe, estimated, taken)
        for one in schedule.pending:
            self.skipped[one.name] = schedule.reason(one)
            assert schedule.need(one) > clock.left()  # what fits is not skipped
        assert self.now <= self.budget_s + 1e-6
        return self

    def check_choice(self, probe, before, needs, left, begun) -> None:
        """Check the order: one of every group, then the others, then repetitions; the cheapest of the least covered
        group.
        """
        fitting = [one for one in before if needs[one.name] <= left]
        if not fitting:
            assert left > UNUSED * self.budget_s
            assert needs[probe.name] == min(needs.values())
            self.tried.append(probe.name)
            return

        def key(one):
            done = sum(name.startswith(f"{one.group}-") for name in self.order)
            share = done / sum(other.group == one.group for other in self.probes)
            return (0 if one.group not in begun else 2 if one.repeats else 1, share, needs[one.name])

        assert probe in fitting
        assert key(probe) == min(map(key, fitting))

    @property
    def used(self) -> float:
        return self.now / self.budget_s


def a_probe(name: str, seconds: float, *, repeats: bool = False) -> Probe:
    """Return a probe with this many seconds of generation at 50 tokens per second."""
    cost = Cost(0, 0, max(1, round(seconds * 50)))
    return Probe(name, name.partition("-")[0], name, "", True, lambda _: None, lambda _: cost, repeats=repeats)


def a_catalogue(seed: int) -> list[Probe]:
    """Return 52 probes of 0.2 to 40 s in five groups; the long ones are mostly rungs."""
    rng = random.Random(seed)
    result = [a_probe(f"{GROUPS[n % 4]}-{n}", 0.2 * 200 ** rng.random()) for n in range(39)]
    return result + [a_probe(f"long-{n}", 1 + 0.5 * n, repeats=n > 0) for n in range(13)]


def changing(seed: int):
    """Return a slowness that jumps between 0.3 and 4 every 20 seconds."""
    return lambda now: random.Random(seed * 1000 + int(now // 20)).choice([0.3, 0.6, 1.0, 2.0, 4.0])


SERVERS = {
    "as estimated": lambda seed, probes: {},
    "fast": lambda seed, probes: {"slowness": lambda _: 0.05},
    "slow": lambda seed, probes: {"slowness": lambda _: 8.0},
    "five times faster than estimated": lambda seed, probes: {"slowness": lambda _: 0.2},
    "five times slower than estimated": lambda seed, probes: {"slowness": lambda _: 5.0},
    "speeds that change": lambda seed, probes: {"slowness": changing(seed)},
    "each estimate wrong by up to 5, both ways": lambda seed, probes: {
        "wrong": {one.name: 5 ** random.Random(f"{seed}{one.name}").uniform(-1, 1) for one in probes}
    },
    "slows down in the middle": lambda seed, probes: {"slowness": lambda now: 0.2 if now < 60 else 5.0},
    "stalls once": lambda seed, probes: {"slowness": lambda now: 60.0 if 10 < now < 12 else 0.5},
}


@pytest.mark.parametrize("budget_s", [10, 60, 120, 600])
@pytest.mark.parametrize("server", SERVERS)
def test_the_budget_is_used_and_nothing_that_fits_is_skipped(server, budget_s):
    for seed in range(25):
        probes = a_catalogue(seed)
        result = Simulated(probes, budget_s, **SERVERS[server](seed, probes)).run()
        assert sorted([*result.order, *result.skipped]) == sorted(one.name for one in probes)
        if result.skipped or result.stopped:
            assert result.used >= 1 - UNUSED, (seed, result.used)
        for reason in result.skipped.values():
            need, left, budget = map(float, re.findall(r"([\d.]+) s\b", reason.replace(",", "")))
            assert need >= left, reason
            assert left == pytest.approx(budget_s - result.now, abs=0.06)
            assert budget == budget_s
        assert len(result.stopped) <= 1  # the deadline can stop only the last one


@pytest.mark.parametrize("server", ["as estimated", "fast", "five times faster than estimated", "stalls once"])
def test_every_group_starts_early_and_a_fast_server_gets_all_probes(server):
    for seed in range(25):
        probes = a_catalogue(seed)
        result = Simulated(probes, 900, **SERVERS[server](seed, probes)).run()
        assert {name.partition("-")[0] for name in result.order[: len(GROUPS)]} == set(GROUPS)
        assert not result.skipped
        last = max(result.order.index(one.name) for one in probes if not one.repeats)
        assert last < min(result.order.index(one.name) for one in probes if one.repeats)


def test_a_probe_over_budget_does_not_stop_others():
    probes = [a_probe("card-huge", 10_000), *(a_probe(f"{group}-{n}", 2) for n in range(5) for group in GROUPS)]
    result = Simulated(probes, 60).run()
    assert len(result.order) == 26
    assert result.order[-1] == "card-huge"  # tried for the ten seconds that are left, and stopped
    assert (result.stopped, result.skipped, result.used) == (["card-huge"], {}, 1.0)


def test_half_of_the_time_covers_about_half_of_every_group():
    """Cheapest first over all groups would spend the time on one kind of question."""
    sizes = {"card": (13, 2.0), "server": (12, 1.0), "tools": (6, 2.0), "prose": (7, 4.0)}  # number and seconds
    probes = [a_probe(f"{group}-{n}", seconds) for group, (count, seconds) in sizes.items() for n in range(count)]
    result = Simulated(probes, 40).run()
    ran = Counter(name.partition("-")[0] for name in result.order if name not in result.stopped)
    assert all(0.4 <= ran[group] / count <= 0.7 for group, (count, _) in sizes.items()), ran


def test_requests_in_a_batch_are_estimated_as_faster_than_one_by_one():
    speed = Speed(1000, 1.0, 50, 1.0)
    alone, batch = speed.seconds(Cost(8, 0, 4000)), speed.seconds(Cost(8, 0, 4000, at_once=8))
    assert alone == pytest.approx(80, abs=1)
    assert batch == pytest.approx(20, abs=1)
    assert speed.seconds(Cost(1, 0, 500, at_once=8)) == pytest.approx(10, abs=0.1)  # nothing to share with


def test_a_pessimistic_first_estimate_is_corrected():
    """The demo's case: the warm-up reads 5 times too slow, and all probes fit."""
    probes = [a_probe(f"{GROUPS[n % 5]}-{n}", 10) for n in range(50)]
    result = Simulated(probes, 101, slowness=lambda _: 0.2).run()
    assert len(result.order) == 50
    assert (result.skipped, result.tried) == ({}, [])


@pytest.mark.parametrize("factors", [{"card": 0.2, "server": 5.0}, {"card": 5.0, "server": 0.2}])
def test_each_group_has_its_own_correction(factors):
    probes = [a_probe(f"{group}-{n}", 5) for n in range(12) for group in factors]
    now = 0.0
    schedule = Schedule(probes, None, Speed(1000, 1.0, 50, 1.0), Clock(900, now=lambda: now))
    for _ in range(10):
        probe = schedule.next()
        schedule.finished(probe, schedule.estimate(probe), 5 * factors[probe.group])
    for group, factor in factors.items():
        other = a_probe(f"{group}-other", 8)
        assert schedule.need(other) == pytest.approx(8 * factor, rel=0.5 if factor > 1 else 4)
    assert schedule.need(a_probe("tools-first", 8)) > 8 * min(factors.values())


def test_estimates_adapt_to_a_server_that_slows_down():
    probes = [a_probe(f"card-{n}", 5) for n in range(20)]
    schedule = Schedule(probes, None, Speed(1000, 1.0, 50, 1.0), Clock(900, now=lambda: 0.0))
    for taken in (*[1.0] * 10, *[10.0] * 4):
        probe = schedule.next()
        schedule.finished(probe, schedule.estimate(probe), taken)
    assert schedule.need(schedule.pending[0]) > 6  # the mean of all is 3.6


def test_the_order_without_a_budget_is_that_of_the_catalogue():
    probes = a_catalogue(0)
    schedule = Schedule(probes, None, Speed(), Clock(None))
    assert [schedule.next() for _ in probes] == probes
    assert schedule.next() is None


WARM_UP = "Write the first three entries again"


def test_a_slow_warm_up_skips_nothing_where_the_probes_are_fast(fake, probe):
    fake.hangs[WARM_UP] = 3.0  # four hundred tokens a second, as the warm-up sees it: the rungs seem to take minutes
    began = time.monotonic()
    result = probe(
        "math", "json", "context-12", "context-50", "context-98", "same-again", budget="40s", context="65536"
    )
    assert time.monotonic() - began < 40
    assert {name: one.measured for name, one in result.items() if one.verdict is not Verdict.PASSED} == {}


def test_a_probe_stopped_by_the_deadline_is_skipped_not_broken(fake, probe):
    fake.hangs["17 * 23"] = 30.0
    began = time.monotonic()
    result = probe("math", "json", budget="5s", timeout_s=60.0)
    assert 4.7 < time.monotonic() - began < 12
    assert result["json"].verdict is Verdict.PASSED
    assert result["math"].verdict is Verdict.SKIPPED
    assert re.fullmatch(
        r"does not fit the budget: stopped after [45]\.\d s, when the budget of 5\.0 s ended", result["math"].measured
    )


def test_a_server_that_hangs_until_the_deadline_is_broken(fake, probe, monkeypatch):
    from halfbyte.probe import run

    monkeypatch.setattr(run, "_LOOK_S", 0.5)
    fake.hangs["17 * 23"] = fake.hangs["Hello."] = 30.0
    result = probe("math", "json", "unicode-echo", budget="4s", timeout_s=60.0)
    assert result["math"].verdict is Verdict.BROKEN
    assert "does not answer any more, since math" in result["math"].measured


def test_nothing_is_sent_after_the_deadline(fake, probe):
    """Sequential requests: the budget stops them together, not each after another second."""
    fake.token_delay = 0.2
    began = time.monotonic()
    result = probe("same-again", budget="3s")
    assert time.monotonic() - began < 8
    assert result["same-again"].verdict is Verdict.SKIPPED


def test_shared_answers_cost_nothing(tmp_path):
    probes = {one.name: one for one in (*TOOLS, *PROSE)}
    names = ("tool-schema", "tool-trigger", "tool-ids", "tool-parallel", "tool-streaming", "tool-markup")
    with setting_of(tmp_path, lambda _: Said("Hello."), {}) as (setting, _):
        costs = {name: probes[name].cost(setting).requests for name in names}
        assert costs["tool-schema"] > costs["tool-trigger"] > costs["tool-parallel"] > 0
        probes["tool-parallel"].run(setting)
        asked = costs["tool-parallel"]
        assert probes["tool-schema"].cost(setting).requests == costs["tool-schema"] - asked
        probes["tool-schema"].run(setting)
        assert {name: probes[name].cost(setting).requests for name in names} == dict.fromkeys(names, 0)
        assert probes["prose-ends"].cost(setting).requests > 0
        probes["prose-loops"].run(setting)
        assert probes["prose-ends"].cost(setting).requests == 0
