"""The whole of `halfbyte eval`: what is needed, who is there, what they answer, what that says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.console import Output
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.validate.endpoint import Endpoint, parse_url
from halfbyte.validate.evaluate.harness import Arm, Harness, Pass, as_reference, load_harness, run_pass
from halfbyte.validate.evaluate.identity import fingerprint
from halfbyte.validate.evaluate.judging import judge
from halfbyte.validate.evaluate.preflight import Finding, Preflight, parity, preflight
from halfbyte.validate.evaluate.results import Evaluation, read_head, write_results
from halfbyte.validate.evaluate.samples import Sample, Side, check_pairs, load_samples, write_samples
from halfbyte.validate.evaluate.store import Store
from halfbyte.validate.evaluate.suites import load_suite

REQUESTS = "requests.jsonl"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    url: str
    against: str | None
    baseline: Path | None
    suite: str
    folder: Path
    data_dir: Path | None
    limit: int | None
    model: str | None
    concurrency: int | None
    margin: float
    timeout_s: float


@dataclass(slots=True)
class _Run:
    harness: Harness
    store: Store
    concurrency: int
    limit: int | None
    out: Output
    progress: Callable[[str, int, int], None]
    sent: int = 0

    def arm(self, side: Side, ready: Preflight) -> Arm:
        """Make a side ready to be asked: the same endpoint as in an earlier run, or a new one."""
        record = fingerprint(self.store.endpoints, ready.identity, ready.probes)
        if record not in self.store.endpoints:
            if any(record["stable"]["url"] == one["stable"]["url"] for one in self.store.endpoints):
                self.out.note(
                    f"! {ready.identity.url} has another checkpoint or engine than before: all is asked again"
                )
            self.store.add(record)
        return Arm(side, ready, str(record["fingerprint"]), self.concurrency, self.store, self.progress)

    def ask(self, arm: Arm) -> list[Sample]:
        """Ask everything of one side."""
        samples: list[Sample] = []
        suite = self.harness.suite
        for one in [Pass(task, seeds, self.limit) for task in suite.tasks for seeds in suite.passes]:
            found, sent = run_pass(self.harness, arm, one)
            samples += found
            self.sent += sent
        return samples


def evaluate(asked: Asked, out: Output, progress: Callable[[str, int, int], None]) -> Evaluation:
    """Run a suite, compare if asked to, and write the results."""
    if asked.against and asked.baseline:
        raise UsageError("--against and --baseline are two references", where="halfbyte eval", fix="give one of them")
    started, clock = datetime.now(timezone.utc), time.monotonic()
    suite = load_suite(asked.suite)
    endpoint = parse_url(asked.url, asked.timeout_s)
    other = parse_url(asked.against, asked.timeout_s) if asked.against else None
    harness = load_harness(suite, asked.data_dir)
    arguments = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(asked).items()}
    baseline = _baseline(asked.baseline, harness, arguments)
    ready, reference, common = _preflight(endpoint, other, asked.model, harness)
    for finding in [*ready.findings, *(reference.findings if reference else []), *common]:
        if finding.level != "good":
            out.note(f"! {finding.sentence}")
    for note in [*suite.notes, *([f"programs run {harness.sandbox}"] if harness.sandbox else [])]:
        out.note(f"! {note}")
    with Store(asked.folder / REQUESTS) as store:
        run = _Run(harness, store, asked.concurrency or suite.concurrency, asked.limit, out, progress)
        if store.damaged:
            out.note(f"! {store.damaged} lines of {store.path} cannot be read; what they held is asked again")
        try:
            ours = run.arm("candidate", ready)
            candidate = run.ask(ours)
            theirs = run.arm("reference", reference) if reference else None
            compared = run.ask(theirs) if theirs else baseline
        except KeyboardInterrupt:
            fix = "run the same command again: what is finished is kept"
            raise InterruptedRunError("interrupted", where=str(asked.folder), fix=fix) from None
    if compared is not None:
        check_pairs(candidate, compared)
    head = {
        "halfbyte": halfbyte.__version__,
        "lm_eval": harness.version,
        "suite": {"name": suite.name, "hash": harness.hash, "task_files": harness.task_files, "notes": suite.notes},
        "arguments": arguments,
        "concurrency": run.concurrency,
        "sandbox": harness.sandbox,
        "seeds": {"shown_examples": [one.model_dump() for one in suite.passes], "requests": suite.request_seed},
        "candidate": {**ready.as_dict(), "fingerprint": ours.fingerprint},
        "reference": {**reference.as_dict(), "fingerprint": theirs.fingerprint} if reference and theirs else None,
        "differences": [one.sentence for one in common if one.level != "good"],
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 1),
        "requests_sent": run.sent,
    }
    found = Evaluation(head, judge(suite, candidate, compared, asked.margin))
    write_samples(asked.folder, [*candidate, *(compared or [])])
    write_results(asked.folder, found)
    return found


def _baseline(folder: Path | None, harness: Harness, arguments: dict[str, Any]) -> list[Sample] | None:
    if folder is None:
        return None
    place = folder.parent if folder.is_file() else folder
    read_head(place, harness.hash, arguments)
    return as_reference(load_samples(place))


def _preflight(
    endpoint: Endpoint, other: Endpoint | None, model: str | None, harness: Harness
) -> tuple[Preflight, Preflight | None, list[Finding]]:
    ready = preflight(endpoint, model, harness.suite)
    if other is None:
        return ready, None, []
    reference = preflight(other, model, harness.suite, any_name=True)  # it may call its only model something else
    return ready, reference, parity(ready, reference)
