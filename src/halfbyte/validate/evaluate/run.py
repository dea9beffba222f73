"""The whole of `halfbyte eval`: what is needed, who is there, what they answer, what that says."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.errors import CheckFailedError, InterruptedRunError, MachineError, UsageError
from halfbyte.terminal.console import Output
from halfbyte.validate.endpoint import parse_url
from halfbyte.validate.evaluate.harness import Arm, Harness, Pass, as_reference, load_harness, run_pass
from halfbyte.validate.evaluate.identity import fingerprint
from halfbyte.validate.evaluate.judging import judge
from halfbyte.validate.evaluate.parity import Known, alike, known_now, known_then, parity
from halfbyte.validate.evaluate.preflight import Preflight, preflight
from halfbyte.validate.evaluate.results import (
    Evaluation,
    read_head,
    refuse_missing_items,
    refuse_other_questions,
    write_results,
)
from halfbyte.validate.evaluate.samples import Sample, Side, check_pairs, load_samples, write_samples
from halfbyte.validate.evaluate.store import Store
from halfbyte.validate.evaluate.suites import load_suite
from halfbyte.validate.evaluate.unchanged import what_changed

REQUESTS = "requests.jsonl"
INTERRUPTED_S = 5.0  # for each short question to a server after a Ctrl-C


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
    same_server: bool = False


@dataclass(slots=True)
class _Run:
    harness: Harness
    store: Store
    concurrency: int
    limit: int | None
    out: Output
    progress: Callable[[str, int, int], None]
    trusted: bool
    sent: int = 0

    def arm(self, side: Side, ready: Preflight, other: Arm | None = None) -> Arm:
        """Make a side ready to be asked: the same endpoint as in an earlier run, or a new one."""
        record = fingerprint(self.store.endpoints, ready.identity, ready.probes, trusted=self.trusted)
        if record not in self.store.endpoints:
            if any(record["stable"]["url"] == one["stable"]["url"] for one in self.store.endpoints):
                self.out.note(
                    f"! {ready.identity.url} is not known to be the server of the earlier run: all is asked again"
                )
            self.store.add(record)
        name = str(record["fingerprint"])
        again = other is not None and other.fingerprint == name
        return Arm(side, ready, name, again, self.concurrency, self.store, self.progress)

    def ask(self, arm: Arm) -> list[Sample]:
        """Ask everything of one side."""
        samples: list[Sample] = []
        suite = self.harness.suite
        for one in [Pass(task, seeds, self.limit) for task in suite.tasks for seeds in suite.passes]:
            sent: list[str] = []
            try:
                samples += run_pass(self.harness, arm, one, sent)
            except KeyboardInterrupt:
                with suppress(MachineError):  # nobody answers: then nobody else has
                    self._refuse_another_server(arm.soon(INTERRUPTED_S), one, sent)
                raise
            self._refuse_another_server(arm, one, sent)
            self.sent += len(sent)
        return samples

    def _refuse_another_server(self, arm: Arm, one: Pass, sent: list[str]) -> None:
        """A checkpoint that was swapped while it was asked: nobody knows which answer is whose."""
        changed = what_changed(arm.ready, self.harness.suite) if sent else None
        if changed:
            self.store.drop(sent)
            what = f"ANOMALOUS: the server changed during {one.title} ({changed}); these answers are dropped"
            fix = "serve one checkpoint, and run the same command again: what was finished before is kept"
            raise CheckFailedError(what, where=arm.ready.identity.url, fix=fix)


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
    about = {"name": suite.name, "hash": harness.hash, "data": harness.data, "task_files": harness.task_files}
    earlier = _earlier(asked, about)
    concurrency = asked.concurrency or suite.concurrency
    ready = preflight(endpoint, asked.model, suite)
    reference = preflight(other, asked.model, suite, any_name=True) if other else None  # its model may be named so
    how = {"concurrency": concurrency, "lm_eval": harness.version}
    here = known_now(ready, how)
    there = known_now(reference, how) if reference else earlier.known if earlier else None
    common = parity(here, there) if there else []
    for finding in [*ready.findings, *(reference.findings if reference else []), *common]:
        if finding.level != "good":
            out.note(f"! {finding.sentence}")
    for note in [*suite.notes, *([f"programs run {harness.sandbox}"] if harness.sandbox else [])]:
        out.note(f"! {note}")
    with Store(asked.folder / REQUESTS) as store:
        run = _Run(harness, store, concurrency, asked.limit, out, progress, asked.same_server)
        if store.damaged:
            out.note(f"! {store.damaged} lines of {store.path} cannot be read; what they held is asked again")
        try:
            ours = run.arm("candidate", ready)
            candidate = run.ask(ours)
            theirs = run.arm("reference", reference, ours) if reference else None
            compared = run.ask(theirs) if theirs else earlier.samples if earlier else None
        except KeyboardInterrupt:
            fix = "run the same command again: what is finished is kept"
            raise InterruptedRunError("interrupted", where=str(asked.folder), fix=fix) from None
    if compared is not None:
        check_pairs(candidate, compared)
    head = {
        "halfbyte": halfbyte.__version__,
        "lm_eval": harness.version,
        "suite": {**about, "notes": suite.notes},
        "arguments": arguments,
        "concurrency": run.concurrency,
        "sandbox": harness.sandbox,
        "seeds": {"shown_examples": [one.model_dump() for one in suite.passes], "requests": suite.request_seed},
        "candidate": {**ready.as_dict(), "fingerprint": ours.fingerprint},
        "reference": {**reference.as_dict(), "fingerprint": theirs.fingerprint} if reference and theirs else None,
        "baseline": earlier.about if earlier else None,
        "alike": alike(here, there) if there else None,
        "differences": [one.sentence for one in common if one.level != "good"],
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 1),
        "requests_sent": run.sent,
    }
    found = Evaluation(head, judge(suite, candidate, compared, asked.margin))
    write_samples(asked.folder, [*candidate, *(compared or [])])
    write_results(asked.folder, found)
    return found


@dataclass(frozen=True, slots=True)
class _Earlier:
    """An earlier run to compare with."""

    known: Known
    samples: list[Sample]
    about: dict[str, Any]  # for eval.json


def _earlier(asked: Asked, about: dict[str, Any]) -> _Earlier | None:
    """Read the run that --baseline names; one that asked something else is refused."""
    if asked.baseline is None:
        return None
    place = asked.baseline.parent if asked.baseline.is_file() else asked.baseline
    if place.resolve() == asked.folder.resolve():
        what = "the results would be written over those that they are compared with"
        raise UsageError(what, where=str(place), fix="give another folder with -o")
    head = read_head(place)
    refuse_other_questions(head, place, about, asked.limit)
    known, samples = known_then(head, place), as_reference(load_samples(place))
    refuse_missing_items(head, place, len(samples))
    told = {"folder": str(place), "started": head.get("started"), "candidate": head["candidate"]}
    return _Earlier(known, samples, told)
