"""Run `halfbyte probe`: identify the server, run the scheduled probes one after the other, write the report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import halfbyte
from halfbyte.endpoint.client import Endpoint, EndpointError, parse_url
from halfbyte.endpoint.identity import Identity, identify
from halfbyte.endpoint.metrics_page import read_page
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.evidence.probes import UNREACHABLE
from halfbyte.options.server_tests import ProbeOptions
from halfbyte.probe.budget import (
    Clock,
    Schedule,
    Speed,
    parse_budget,
    warm_up,
)
from halfbyte.probe.card_probes import PROGRAMS, RUN_PROGRAMS, SHORT, TOOL_CALL
from halfbyte.probe.checks import NEED_SANDBOX
from halfbyte.probe.client import FILE, LATE, BudgetEndedError, Client, Trace
from halfbyte.probe.context import Lengths
from halfbyte.probe.drift import DECODE_DRIFT, DRIFT
from halfbyte.probe.long_context import AFTER_LONG, CONTEXTS
from halfbyte.probe.output import Progress
from halfbyte.probe.probe import (
    Probe,
    Setting,
    Verdict,
    broken,
    skipped,
)
from halfbyte.probe.profiles import load_profile
from halfbyte.probe.prose import COPYING, GARBAGES, PROSE
from halfbyte.probe.report import Report, Result, write_report
from halfbyte.probe.server import MALFORMED, OPTIONS, SAMENESS
from halfbyte.probe.streams import STREAMS
from halfbyte.probe.thinking import THINKING
from halfbyte.probe.tool_calls import TOOLS
from halfbyte.probe.tool_cases import read_cases
from halfbyte.probe.vision import VISION
from halfbyte.sandbox.tiers import Tier, find_tier
from halfbyte.ui.console import Output
from halfbyte.ui.suggest import did_you_mean

_LOOK_S = 15.0
_ALIVE_S = 60.0
_PROMPT_TOKENS = 32  # of a short question

# All probes, in the order in which they run and are shown.
PROBES: tuple[Probe, ...] = (
    *SHORT, *PROGRAMS, TOOL_CALL, VISION, *RUN_PROGRAMS,
    *OPTIONS, *STREAMS, *SAMENESS, *MALFORMED,
    *TOOLS, COPYING, *GARBAGES, *THINKING, *PROSE,
    *AFTER_LONG, *CONTEXTS, DRIFT, DECODE_DRIFT,
)  # fmt: skip


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Probe]:
    """Return the probes selected by name or group; an unknown name is an error with a suggestion."""
    known = {probe.name for probe in PROBES} | {probe.group for probe in PROBES}
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in known:
                raise UsageError(f"unknown probe '{name}'", where=option, fix=did_you_mean(name, sorted(known)))
    included = [probe for probe in PROBES if not only or {probe.name, probe.group} & set(only)]
    return [probe for probe in included if not {probe.name, probe.group} & set(skip)]


def probe_endpoint(options: ProbeOptions, out: Output) -> Report:
    """Run the probes and write the results."""
    probes, budget_s = chosen(options.only, options.skip), parse_budget(options.budget)
    profile = load_profile(options.profile)
    if not probes:
        raise UsageError("--only and --skip leave no probes", where="halfbyte probe", fix="see halfbyte probe --list")
    cases = tuple(read_cases(options.tool_calls)) if options.tool_calls else None
    timeout_s = options.timeout_s or profile.timeout_s
    endpoint = parse_url(options.url, timeout_s)
    other = parse_url(options.against, timeout_s) if options.against else None
    ours = identify(endpoint, options.model)
    theirs = identify(other, options.model, any_name=True) if other else None
    started, clock = datetime.now(timezone.utc), Clock(budget_s)
    with Trace(options.folder / FILE) as trace:
        identity = _server_identity(endpoint, ours)
        trace.start({"ours": identity, "reference": other and theirs and _server_identity(other, theirs)})
        if trace.kept:
            out.note(f"reusing {trace.kept:,} answers from {trace.path}")
        client = Client(endpoint, ours.model, trace, profile, options.seed)
        reference = Client(other, theirs.model, trace, profile, options.seed) if other and theirs else None
        lengths = Lengths(client, profile, ours.max_context, options.context)
        setting = Setting(client, reference, lengths, profile, options.seed, _sandbox(probes), cases)
        run = _Run(setting, clock, Progress(out))
        try:
            results = run.all(probes)
        except KeyboardInterrupt:
            fix = "run the same command again to resume"
            raise InterruptedRunError("interrupted", where=str(options.folder), fix=fix) from None
        if run.gone is None or identity["started"] is None:
            trace.finish()
        # Otherwise the server hung. If it recovers without a restart, its answers can be reused.
    head: dict[str, Any] = {
        "halfbyte": halfbyte.__version__, "profile": profile.name, "seed": options.seed, "context": lengths.limit,
        "budget_s": budget_s, "endpoint": ours, "reference": theirs,
        "sandbox": setting.sandbox.sentence if setting.sandbox else None,
        "started": started.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - clock.start, 1),
    }  # fmt: skip
    report = Report(head, results)
    write_report(options.folder, report)
    return report


def _server_identity(endpoint: Endpoint, identity: Identity) -> dict[str, Any]:
    """Return the facts that distinguish servers at the same address; a restarted server is another one."""
    started = None
    try:
        page = endpoint.get("/metrics", _LOOK_S)
        started = read_page(page).started if isinstance(page, str) else None
    except EndpointError:
        pass
    facts = {key: identity.reported.get(key) for key in ("version", "root", "max_model_len")}
    return {"url": identity.url, "model": identity.model, "started": started, **facts}


def _sandbox(probes: Sequence[Probe]) -> Tier | None:
    """Find a sandbox for model-written code if a probe needs one; the self-test takes seconds."""
    return find_tier() if any(probe.name in NEED_SANDBOX for probe in probes) else None


class _Run:
    """One pass over the probes."""

    def __init__(self, setting: Setting, clock: Clock, progress: Progress) -> None:
        self._setting, self._clock, self._progress = setting, clock, progress
        self._speed = Speed()
        self.gone: str | None = None  # why no more requests are sent
        setting.client.observe = self._speed.observe
        for client in (setting.client, setting.reference):
            if client is not None:
                client.deadline = clock.deadline

    def all(self, probes: Sequence[Probe]) -> list[Result]:
        """Run the probes in the order of the schedule; return the results in the order of the probes."""
        self._setting.client.trace.start_probe("warm-up")
        if not warm_up(self._setting):
            self.gone = f"{UNREACHABLE}: it did not answer the warm-up within the budget"
        results: dict[str, Result] = {}

        def ended(result: Result) -> None:
            results[result.probe.name] = result
            self._progress.ended(result)

        able: list[Probe] = []
        for probe in probes:
            lack = probe.lacks(self._setting) or _too_small(probe, self._setting)
            if lack:
                ended(Result(probe, skipped(lack)))
            else:
                able.append(probe)
        schedule = Schedule(able, self._setting, self._speed, self._clock)
        while self.gone is None:
            left_s = schedule.needed()
            probe = schedule.next()
            if probe is None:
                break
            self._progress.starts(probe, len(results) + 1, len(probes), left_s)
            ended(self._run_probe(probe, schedule))
        for probe in schedule.pending:
            ended(Result(probe, skipped(self.gone or schedule.reason(probe))))
        return [results[probe.name] for probe in probes]

    def _run_probe(self, probe: Probe, schedule: Schedule) -> Result:
        client = self._setting.client
        client.trace.start_probe(probe.name)
        estimated, start, sent = schedule.estimate(probe), time.monotonic(), client.trace.sent
        try:
            finding = probe.run(self._setting)
        except BudgetEndedError:
            return self._stopped(probe, schedule, time.monotonic() - start)
        except EndpointError as error:
            finding = broken(str(error))
        except Exception as error:  # unexpected answers must not stop the other probes
            finding = broken(f"the answers cannot be judged: {type(error).__name__}: {error}")
        seconds = time.monotonic() - start
        schedule.finished(probe, estimated, seconds if client.trace.sent > sent else None)
        late = finding.verdict is Verdict.BROKEN and LATE in finding.measured
        self.gone = self._unreachable(probe, within_s=_ALIVE_S if late else None)
        return Result(probe, finding, seconds, tuple(dict.fromkeys(client.trace.used)))

    def _stopped(self, probe: Probe, schedule: Schedule, seconds: float) -> Result:
        """Return the result of a probe that the deadline stopped: skipped if the server still answers, else broken."""
        self.gone = self._unreachable(probe, within_s=_LOOK_S)
        finding = broken(self.gone) if self.gone else skipped(schedule.stopped(seconds))
        return Result(probe, finding, seconds)

    def _unreachable(self, probe: Probe, *, within_s: float | None) -> str | None:
        """Return why the server is unreachable, or None; with `within_s`, its engine must also answer a request."""
        client = self._setting.client
        try:
            client.endpoint.get("/v1/models", _LOOK_S)
        except EndpointError as error:
            if error.status is None:
                return f"{UNREACHABLE}, since {probe.name}: {error}"
        if within_s is None:
            return None
        client.deadline, deadline = math.inf, client.deadline  # the check may take longer than the budget
        try:
            within_s = min(within_s, client.endpoint.timeout_s)
            answer = client.chat("Hello.", max_tokens=1, timeout_s=within_s, always=True)
        finally:
            client.deadline = deadline
        return f"{UNREACHABLE}, since {probe.name}: {answer.error}" if str(answer.error).startswith(LATE) else None


def _too_small(probe: Probe, setting: Setting) -> str | None:
    """Return why the context is too short for the answers of a probe, or None. Long probes fit their own to it."""
    cost = probe.cost(setting)
    each = cost.output_tokens // max(1, cost.requests)
    if probe.group != "long" and each + _PROMPT_TOKENS > setting.context:
        return f"answers of {each:,} tokens are too long for a context of {setting.context:,}"
    return None
