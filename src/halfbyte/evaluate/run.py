"""Run an evaluation: load the suite, check the servers, send the requests, judge and write the results."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

import halfbyte
from halfbyte.endpoint.client import parse_url
from halfbyte.endpoint.identity import find_model, fingerprint
from halfbyte.errors import CheckFailedError, InterruptedRunError, MachineError, UsageError
from halfbyte.evaluate.harness import (
    Arm,
    Harness,
    Pass,
    as_reference,
    load_harness,
    run_pass,
)
from halfbyte.evaluate.judging import judge
from halfbyte.evaluate.parity import (
    Known,
    known_now,
    known_then,
    parity,
    same_checkpoint_warning,
    server_changes,
)
from halfbyte.evaluate.preflight import Preflight, preflight
from halfbyte.evaluate.results import (
    read_baseline,
    refuse_missing_items,
    refuse_other_questions,
    worst_label,
    write_results,
)
from halfbyte.evaluate.samples import (
    Sample,
    Side,
    Store,
    check_pairs,
    load_samples,
    write_samples,
)
from halfbyte.evaluate.suites import load_suite
from halfbyte.evidence.evaluation import Arguments, Baseline, Evaluation, Seeds, SuiteFacts
from halfbyte.options.server_tests import EvalOptions
from halfbyte.ui.console import Output

REQUESTS = "requests.jsonl"
INTERRUPTED_S = 5.0  # request timeout of the final check after Ctrl-C


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
        """Return a side: the same endpoint as in an earlier run, or a new one."""
        record = fingerprint(self.store.endpoints, ready.identity, ready.probes, trusted=self.trusted)
        if record not in self.store.endpoints:
            if any(record["stable"]["url"] == known["stable"]["url"] for known in self.store.endpoints):
                self.out.note(
                    f"! {ready.identity.url} cannot be identified as the server of the earlier run: starting over"
                )
            self.store.add(record)
        name = str(record["fingerprint"])
        again = other is not None and other.fingerprint == name
        return Arm(side, ready, name, again, self.concurrency, self.store, self.progress)

    def ask(self, arm: Arm) -> list[Sample]:
        """Run all passes on one side."""
        samples: list[Sample] = []
        suite = self.harness.suite
        for task_pass in [Pass(task, seeds, self.limit) for task in suite.tasks for seeds in suite.passes]:
            sent: list[str] = []
            try:
                samples += run_pass(self.harness, arm, task_pass, sent)
            except KeyboardInterrupt:
                with suppress(MachineError):  # a server that does not respond was not replaced
                    self._refuse_another_server(arm.soon(INTERRUPTED_S), task_pass, sent)
                raise
            self._refuse_another_server(arm, task_pass, sent)
            self.sent += len(sent)
        return samples

    def _refuse_another_server(self, arm: Arm, task_pass: Pass, sent: list[str]) -> None:
        """Discard the answers of a pass and raise if the server changed during it."""
        changed = server_changes(arm.ready, self.harness.suite) if sent else None
        if changed:
            self.store.drop(sent)
            what = f"ANOMALOUS: the server changed during {task_pass.title} ({changed}); its answers are discarded"
            fix = "keep serving the same checkpoint, and run the same command again; earlier tasks are kept"
            raise CheckFailedError(what, where=arm.ready.identity.url, fix=fix)


def evaluate(options: EvalOptions, out: Output, progress: Callable[[str, int, int], None]) -> Evaluation:
    """Run a suite, compare with a reference if there is one, and write the results."""
    if options.against and options.baseline:
        raise UsageError("--against and --baseline cannot be combined", where="halfbyte eval", fix="omit one of them")
    started, clock = datetime.now(timezone.utc), time.monotonic()
    suite = load_suite(options.suite)
    endpoint = parse_url(options.url, options.timeout_s)
    other = parse_url(options.against, options.timeout_s) if options.against else None
    find_model(endpoint, options.model)  # before the data sets, because the Hub's client retries for long when offline
    if other:
        find_model(other, options.model, any_name=True)
    harness = load_harness(suite, options.data_dir)
    about = SuiteFacts(
        name=suite.name,
        hash=harness.hash,
        data=harness.data,
        task_files=harness.task_files,
        notes=tuple(suite.notes),
    )
    earlier = _earlier(options, about)
    concurrency = options.concurrency or suite.concurrency
    ready = preflight(endpoint, options.model, suite)
    reference = preflight(other, options.model, suite, any_name=True) if other else None
    settings = {"concurrency": concurrency, "lm_eval": harness.version}
    here = known_now(ready, settings)
    there = known_now(reference, settings) if reference else earlier.known if earlier else None
    common = parity(here, there) if there else []
    for finding in [*ready.findings, *(reference.findings if reference else []), *common]:
        if finding.level != "good":
            out.note(f"! {finding.sentence}")
    for note in [*suite.notes, *([f"programs run {harness.sandbox}"] if harness.sandbox else [])]:
        out.note(f"! {note}")
    with Store(options.results / REQUESTS) as store:
        run = _Run(harness, store, concurrency, options.limit, out, progress, options.same_server)
        if store.damaged:
            out.note(f"! {store.damaged} lines of {store.path} are unreadable; their requests are sent again")
        try:
            ours = run.arm("candidate", ready)
            candidate = run.ask(ours)
            theirs = run.arm("reference", reference, ours) if reference else None
            compared = run.ask(theirs) if theirs else earlier.samples if earlier else None
        except KeyboardInterrupt:
            fix = "run the same command again to resume"
            raise InterruptedRunError("interrupted", where=str(options.results), fix=fix) from None
    if compared is not None:
        check_pairs(candidate, compared)
    tasks = tuple(judge(suite, candidate, compared, options.margin))
    evaluation = Evaluation(
        halfbyte=halfbyte.__version__,
        lm_eval=harness.version,
        suite=about,
        arguments=_arguments(options),
        concurrency=run.concurrency,
        sandbox=harness.sandbox,
        seeds=Seeds(fewshot=tuple(seeds.model_dump() for seeds in suite.passes), requests=suite.request_seed),
        candidate=ready.side(ours.fingerprint),
        reference=reference.side(theirs.fingerprint) if reference and theirs else None,
        baseline=earlier.about if earlier else None,
        same_checkpoint_warning=same_checkpoint_warning(here, there) if there else None,
        differences=tuple(finding.sentence for finding in common if finding.level != "good"),
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 1),
        requests_sent=run.sent,
        label=worst_label(tasks),
        tasks=tasks,
    )
    write_samples(options.results, [*candidate, *(compared or [])])
    write_results(options.results, evaluation)
    return evaluation


@dataclass(frozen=True, slots=True)
class _Earlier:
    """The run that --baseline names."""

    known: Known
    samples: list[Sample]
    about: Baseline


def _earlier(options: EvalOptions, about: SuiteFacts) -> _Earlier | None:
    """Read the run that --baseline names. Refuse one with other questions."""
    if options.baseline is None:
        return None
    folder = options.baseline.parent if options.baseline.is_file() else options.baseline
    if folder.resolve() == options.results.resolve():
        what = "the results would overwrite the baseline"
        raise UsageError(what, where=str(folder), fix="choose another folder with -o")
    results = read_baseline(folder)
    refuse_other_questions(results, folder, about, options.limit)
    known, samples = known_then(results), as_reference(load_samples(folder))
    refuse_missing_items(results, folder, len(samples))
    return _Earlier(known, samples, Baseline(str(folder), results.started, results.candidate))


def _arguments(options: EvalOptions) -> Arguments:
    """Return the command line for eval.json."""
    return Arguments(
        url=options.url,
        against=options.against,
        baseline=None if options.baseline is None else str(options.baseline),
        suite=options.suite,
        folder=str(options.results),
        data_dir=None if options.data_dir is None else str(options.data_dir),
        limit=options.limit,
        model=options.model,
        concurrency=options.concurrency,
        margin=options.margin,
        timeout_s=options.timeout_s,
        same_server=options.same_server,
    )
