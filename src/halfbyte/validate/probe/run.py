"""The whole of `halfbyte probe`: who is there, what fits, one probe after the other, and what that says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.sandbox.tiers import Tier, find_tier
from halfbyte.terminal.console import Output
from halfbyte.terminal.suggest import did_you_mean
from halfbyte.validate.bench.metrics_page import read_page
from halfbyte.validate.endpoint import Endpoint, EndpointError, parse_url
from halfbyte.validate.evaluate.identity import Identity, identify
from halfbyte.validate.probe.budget import Clock, Speed, choose, parse_budget, warm_up
from halfbyte.validate.probe.catalogue import PROBES
from halfbyte.validate.probe.client import LATE, Client
from halfbyte.validate.probe.code import NEED_SANDBOX
from halfbyte.validate.probe.context import Lengths
from halfbyte.validate.probe.kinds import (
    OVER_BUDGET,
    UNREACHABLE,
    Finding,
    Probe,
    Setting,
    Verdict,
    broken,
    skipped,
)
from halfbyte.validate.probe.profiles import load_profile
from halfbyte.validate.probe.progress import Progress, duration
from halfbyte.validate.probe.report import Report, Result, write_report
from halfbyte.validate.probe.tools.vendor import read_cases
from halfbyte.validate.probe.trace import FILE, Trace

_LOOK_S = 15.0
_ALIVE_S = 60.0
_PROMPT_TOKENS = 32  # of a short question


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    url: str
    against: str | None
    only: tuple[str, ...]
    skip: tuple[str, ...]
    context: str
    budget: str | None
    profile: str
    folder: Path
    seed: int
    model: str | None
    timeout_s: float | None
    tool_calls: Path | None = None


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Probe]:
    """Return the probes that are asked for, by name or by group; a wrong name is answered with the right one."""
    known = {probe.name for probe in PROBES} | {probe.group for probe in PROBES}
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in known:
                raise UsageError(f"there is no probe '{name}'", where=option, fix=did_you_mean(name, sorted(known)))
    wanted = [one for one in PROBES if not only or {one.name, one.group} & set(only)]
    return [one for one in wanted if not {one.name, one.group} & set(skip)]


def probe_endpoint(asked: Asked, out: Output) -> Report:
    """Run the probes and write the results."""
    probes, budget_s, profile = chosen(asked.only, asked.skip), parse_budget(asked.budget), load_profile(asked.profile)
    if not probes:
        raise UsageError("--only and --skip leave no probe", where="halfbyte probe", fix="see halfbyte probe --list")
    cases = tuple(read_cases(asked.tool_calls)) if asked.tool_calls else None
    timeout_s = asked.timeout_s or profile.timeout_s
    endpoint = parse_url(asked.url, timeout_s)
    other = parse_url(asked.against, timeout_s) if asked.against else None
    ours = identify(endpoint, asked.model)
    theirs = identify(other, asked.model, any_name=True) if other else None
    started, clock = datetime.now(timezone.utc), Clock(budget_s)
    with Trace(asked.folder / FILE) as trace:
        whom = _asked_whom(endpoint, ours)
        trace.start({"ours": whom, "reference": other and theirs and _asked_whom(other, theirs)})
        if trace.kept:
            out.note(f"{trace.kept:,} requests are finished already, in {trace.path}")
        client = Client(endpoint, ours.model, trace, profile, asked.seed)
        reference = Client(other, theirs.model, trace, profile, asked.seed) if other and theirs else None
        lengths = Lengths(client, profile, ours.max_context, asked.context)
        setting = Setting(client, reference, lengths, profile, asked.seed, _sandbox(probes), cases)
        run = _Run(setting, clock, Progress(out))
        try:
            results = run.all(probes)
        except KeyboardInterrupt:
            fix = "run the same command again: what is finished is kept"
            raise InterruptedRunError("interrupted", where=str(asked.folder), fix=fix) from None
        if run.gone is None or whom["started"] is None:
            trace.finish()
        # else it hung, and tells when it was started: should it come to itself, its answers need not be asked again
    head: dict[str, Any] = {
        "halfbyte": halfbyte.__version__, "profile": profile.name, "seed": asked.seed, "context": lengths.limit,
        "budget_s": budget_s, "endpoint": ours.as_dict(), "reference": theirs.as_dict() if theirs else None,
        "sandbox": setting.sandbox.sentence if setting.sandbox else None,
        "started": started.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - clock.start, 1),
    }  # fmt: skip
    report = Report(head, results)
    write_report(asked.folder, report)
    return report


def _asked_whom(endpoint: Endpoint, identity: Identity) -> dict[str, Any]:
    """Return what tells one server from another under the same address; a new start is another server."""
    started = None
    try:
        page = endpoint.get("/metrics", _LOOK_S)
        started = read_page(page).started if isinstance(page, str) else None
    except EndpointError:
        pass
    told = {key: identity.told.get(key) for key in ("version", "root", "max_model_len")}
    return {"url": identity.url, "model": identity.model, "started": started, **told}


def _sandbox(probes: Sequence[Probe]) -> Tier | None:
    """Find where code of the model may run; the self-test takes seconds, so only where a probe needs it."""
    return find_tier() if any(probe.name in NEED_SANDBOX for probe in probes) else None


class _Run:
    """One run through the probes."""

    def __init__(self, setting: Setting, clock: Clock, progress: Progress) -> None:
        self._setting, self._clock, self._progress = setting, clock, progress
        self._speed = Speed()
        self.gone: str | None = None  # why the server is not asked any more
        setting.client.observe = self._speed.observe
        for client in (setting.client, setting.reference):
            if client is not None and clock.budget_s is not None:
                client.deadline = clock.start + clock.budget_s

    def all(self, probes: Sequence[Probe]) -> list[Result]:
        trace = self._setting.client.trace
        trace.begin("warm-up")
        warm_up(self._setting)
        able = {probe.name: probe.lacks(self._setting) or _too_small(probe, self._setting) for probe in probes}
        runnable = [probe for probe in probes if able[probe.name] is None]
        fits = choose(runnable, self._setting, self._speed, self._clock.left())
        results: list[Result] = []
        for number, probe in enumerate(probes):
            lack = able[probe.name] or self.gone or self._too_long(probe, fits)
            if lack:
                results.append(Result(probe, skipped(lack)))
            else:
                coming = [one for one in probes[number:] if one.name in fits]
                left = sum(self._speed.seconds(one.cost(self._setting)) for one in coming)
                self._progress.starts(probe, number + 1, len(probes), self._clock.corrected(left))
                results.append(self._one(probe))
            self._progress.ended(results[-1])
        return results

    def _too_long(self, probe: Probe, fits: set[str]) -> str | None:
        need, left = self._clock.corrected(self._speed.seconds(probe.cost(self._setting))), self._clock.left()
        if left is not None and (probe.name not in fits or need > left):
            return f"{OVER_BUDGET}: needs about {duration(need)}, {duration(max(0.0, left))} are left"
        return None

    def _one(self, probe: Probe) -> Result:
        client = self._setting.client
        client.trace.begin(probe.name)
        estimated, start, sent = self._speed.seconds(probe.cost(self._setting)), time.monotonic(), client.trace.sent
        try:
            finding = probe.run(self._setting)
        except EndpointError as error:
            finding = broken(str(error))
        except Exception as error:  # answers of a form that nobody thought of must not cost the other probes
            finding = broken(f"its answers cannot be judged: {type(error).__name__}: {error}")
        seconds = time.monotonic() - start
        if client.trace.sent > sent:  # answers from an earlier run say nothing about the speed
            self._clock.finished(estimated, seconds)
        self.gone = self._unreachable(probe, finding)
        return Result(probe, finding, seconds, tuple(dict.fromkeys(client.trace.used)))

    def _unreachable(self, probe: Probe, finding: Finding) -> str | None:
        client = self._setting.client
        try:
            client.endpoint.get("/v1/models", _LOOK_S)
        except EndpointError as error:
            if error.status is None:
                return f"{UNREACHABLE}, since {probe.name}: {error}"
        if finding.verdict is Verdict.BROKEN and LATE in finding.measured:  # it lists its models: does its engine live?
            within_s = min(_ALIVE_S, client.endpoint.timeout_s)
            answer = client.chat("Hello.", max_tokens=1, timeout_s=within_s, always=True)
            if str(answer.error).startswith(LATE):
                return f"{UNREACHABLE}, since {probe.name}: {answer.error}"
        return None


def _too_small(probe: Probe, setting: Setting) -> str | None:
    """Say that a server has no room for a probe's answers; the long probes fit theirs to the context."""
    cost = probe.cost(setting)
    each = cost.output_tokens // max(1, cost.requests)
    if probe.group != "long" and each + _PROMPT_TOKENS > setting.context:
        return f"answers of {each:,} tokens are too long for a context of {setting.context:,}"
    return None
