"""Run the stages of a release, keep finished ones, judge the result, and record the state after each step."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.output_folder import FOLDER, RELEASE_LOGS, locked_results
from halfbyte.errors import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, InterruptedRunError
from halfbyte.evidence import release as evidence
from halfbyte.evidence.folder import NOT_MEASURED, read_evidence
from halfbyte.evidence.measured_files import measured_in
from halfbyte.evidence.record import Record
from halfbyte.evidence.release import StageRecord
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.release.child import StageLog, run_child
from halfbyte.release.gate import Judged, judge
from halfbyte.release.record import Records
from halfbyte.release.server import Ready, Server, wait_for_earlier
from halfbyte.release.stage_durations import expected_seconds, quantize_seconds_left
from halfbyte.release.stage_keys import digest, key_of, made_files, plan_of, result_sha256
from halfbyte.release.stages import (
    AFTER_VERDICT,
    OUT,
    SERVE,
    SOURCE,
    URL,
    VERDICT,
    Stage,
    shown,
    without_baseline,
)
from halfbyte.release.view import View
from halfbyte.serve.run import Stopped, stop_signals
from halfbyte.ui.console import Output
from halfbyte.ui.units import timestamp

# Stages that are gates in every release, with the requirement shown in the table of gates.
_IMPLIED = {"quantize": "completed", "source": "served", "scripts": "fits", SERVE: "answers"}
_ADDRESS = re.compile(r"^https?://\S+")
_EARLIER = "waiting for the engine of a killed run to exit"
_ALL_KEPT = "all stages that use it are kept"


@dataclass(frozen=True, slots=True)
class Folders:
    """The source and output folders of a release."""

    source: Path
    out: Path

    def shown(self) -> dict[str, str]:
        """Return the values of the placeholders in a command."""
        return {OUT: str(self.out), SOURCE: str(self.source), URL: "URL"}


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a release run."""

    judged: Judged
    records: Mapping[str, StageRecord]
    release: evidence.Release
    stopped: bool  # by --stop-after


@dataclass(slots=True)
class Release:
    """One run of the stages in one folder."""

    folders: Folders
    stages: Sequence[Stage]
    gates: Mapping[str, Any]
    recipe: str  # its name
    fingerprint: str  # of the recipe parts that affect output bytes
    force: bool = False
    again: Collection[str] = ()
    stop_after: str | None = None
    records: Records = field(init=False)
    _server: Server | None = field(init=False, default=None)
    _ready: Ready | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.records = self._read_records()

    def run(self, out: Output) -> Ended:
        """Run all stages that are not kept. After an interruption, the same command resumes."""
        logs = self.folders.out / FOLDER / RELEASE_LOGS
        with locked_results(logs), View(out, self._names()) as view:
            self.records = self._read_records()  # again, under the lock
            self._expect(view)
            at = [self.stages[0].name]
            try:
                with stop_signals(lambda: self._server and self._server.kill()):
                    return self._run(view, at)
            except Stopped as stopped:
                raise _interrupted(at[0], stopped.exit_code) from None

    def _expect(self, view: View) -> None:
        """Pass the expected duration of each stage to the view."""
        kept = {stage.name for stage, state in self.outlook() if state == "kept"}
        seconds = expected_seconds(self.folders.out, self.stages, self.recipe)
        view.expect(
            seconds | dict.fromkeys(kept, 0.0),
            lambda name: quantize_seconds_left(self.folders.out) if name == "quantize" else None,
        )

    def outlook(self) -> list[tuple[Stage, str]]:
        """Return whether each stage would be kept or run, without running anything."""
        runs: set[str] = set()
        states: list[tuple[Stage, str]] = []
        for stage in self.stages:
            rests_on = {*stage.needs, *stage.after} - {SERVE}
            waits = runs & rests_on or (stage.of_evidence and runs)
            kept = not waits and stage.name != VERDICT and self._is_kept(stage, self._key(stage))
            if not kept and stage.name != SERVE:
                runs.add(stage.name)
            states.append((stage, "kept" if kept else "run"))
        serves = any(name in runs for name in URL_COMMANDS)
        return [(stage, ("run" if serves else "kept") if stage.name == SERVE else state) for stage, state in states]

    def _read_records(self) -> Records:
        """Read the records of earlier runs, except of stages in --again; rerunning `serve` reruns its clients."""
        records = Records(self.folders.out)
        for name in (*self.again, *(URL_COMMANDS if SERVE in self.again else ())):
            records.forget(name)
        return records

    def _run(self, view: View, at: list[str]) -> Ended:
        judged = self._judge()
        for stage in self.stages:
            if stage.name in self.records.now:
                continue  # already run while the server was up
            at[0] = stage.name
            if stage.name == VERDICT:
                judged = self._verdict(view)
            elif stage.name == SERVE:
                self._serve(stage, view, at)
            elif stage.name == "publish" and judged.verdict != "ACCEPT" and not self.force:
                why = f"the verdict is {judged.verdict}; --force publishes anyway, and the card states the verdict"
                self._end(self._record(stage, "", state="skipped", why=why), view)
            else:
                self._run_stage(stage, view)
            if self.stop_after in self.records.now:
                break
        stopped = any(stage.name not in self.records.now for stage in self.stages)
        judged = self._judge()
        return Ended(judged, self.records.now, self._release(judged), stopped)

    def _names(self) -> list[str]:
        """Return the stages to run, up to --stop-after."""
        names = [stage.name for stage in self.stages]
        return names if self.stop_after is None else names[: names.index(self.stop_after) + 1]

    def _run_stage(self, stage: Stage, view: View) -> None:
        """Keep a stage, skip it, or run it."""
        blocked = self._blocked(stage)
        if blocked:
            self._end(self._record(stage, "", state="skipped", why=blocked), view)
            return
        stage = self._possible(stage)
        key = self._key(stage)
        if self._is_kept(stage, key):
            earlier = self.records.earlier(stage.name)
            assert earlier is not None
            self.records.keep(earlier)
            view.end(self.records.now[stage.name])
            return
        self._write(stage)  # invalidates an earlier verdict
        self._end(self._ran(stage, key, view), view)

    def _ran(self, stage: Stage, key: str, view: View) -> StageRecord:
        """Run a stage and return its record."""
        self._clear(stage, key)
        places = self.folders.shown() | ({URL: self._ready.url} if self._ready else {})
        log = StageLog.opened(self._log(stage.name), shown(stage, places))
        watching = view.begin(stage.name, shown(stage, places))
        result = None if stage.result is None else self.folders.out / stage.result
        before, started, start = _stamp(result), timestamp(), time.monotonic()
        more = self._ready.environment if self._ready else None
        if stage.name == "source":
            wait_for_earlier(self._log("engine-source"), watching(lambda: _EARLIER))
        code = run_child([*stage.program, *stage.command(places)], log, more, watching(log.last_line))
        if code == EXIT_INTERRUPTED:
            raise _interrupted(stage.name, code)
        written = _stamp(result) != before
        there = result is None or result.is_file()
        done = (code == 0 and there) or (code == EXIT_CHECK_FAILED and written)  # a failed check is still a result
        why = "" if code == 0 and there else log.error() if code else f"it did not write {stage.result}"
        ended = self._record(stage, key, state="done" if done else "failed", why=self._portable(why))
        if done or written:
            digest_of_files = made_files(self.folders.out) if stage.name == "quantize" else None
            ended = replace(ended, sha256=result_sha256(result), outputs_sha256=digest_of_files)
        return replace(ended, exit_code=code, started=started, seconds=round(time.monotonic() - start, 1))

    def _serve(self, stage: Stage, view: View, at: list[str]) -> None:
        """Start the server, run the stages that use it, and stop it. Skip the start if all of them are kept."""
        inside = [
            self._possible(client) for client in self.stages if client.name in URL_COMMANDS and self.stop_after != SERVE
        ]
        key = self._key(stage)
        blocked = self._blocked(stage)
        if blocked:
            self._end(self._record(stage, "", state="skipped", why=blocked), view)
        elif inside and all(self._is_kept(client, self._key(client)) for client in inside):
            earlier = self.records.earlier(SERVE)
            answered = earlier is not None and earlier.key == key and earlier.state in ("done", "kept")
            record = earlier if answered else None  # a server that died is not kept as a success
            self.records.keep(record or self._record(stage, key, state="kept", why=_ALL_KEPT))
            view.end(self.records.now[SERVE])
        else:
            self._write(stage)
            self._serve_and_ask(stage, key, inside, view, at)
            return
        for client in inside:
            self._run_stage(client, view)

    def _serve_and_ask(self, stage: Stage, key: str, inside: Sequence[Stage], view: View, at: list[str]) -> None:
        places = self.folders.shown()
        command = shown(stage, places)
        started, start = timestamp(), time.monotonic()
        watching = view.begin(stage.name, command)
        wait_for_earlier(self._log(stage.name), watching(lambda: _EARLIER))
        self._server = Server([*stage.program, *stage.command(places)], self._log(stage.name))
        try:
            self._ready = self._server.ready(watching(self._server.log.last_line))
            record = self._record(stage, key, state="done" if self._ready else "failed")
            record = replace(record, started=started, seconds=round(time.monotonic() - start, 1), exit_code=0)
            if self._ready is None:
                record = self._server_failed(record)
            self._end(record, view)
            for client in inside:
                at[0] = client.name
                self._run_stage(client, view)
                if client.name == self.stop_after:
                    break
            if self._ready is not None and self._server.exit_code() is not None:
                self._end(self._server_failed(replace(record, state="failed")), view)
        finally:
            self._server.stop()
            self._server = self._ready = None

    def _server_failed(self, record: StageRecord) -> StageRecord:
        assert self._server is not None
        return replace(record, exit_code=self._server.exit_code(), why=self._portable(self._server.log.error()))

    def _verdict(self, view: View) -> Judged:
        judged = self._judge()
        key = digest([self.gates, [record.sha256 for record in self.records.now.values()]])
        why, code = f"{judged.headline}: {judged.why[0]}", int(judged.verdict != "ACCEPT")
        record = StageRecord(name=VERDICT, command=(), key=key, exit_code=code, state="done", why=why)
        self._end(record, view)
        return judged

    def _judge(self) -> Judged:
        """Judge by evidence that was measured or kept in this run, ignoring older files."""
        out, now = self.folders.out, self.records.now
        measured = {name for name, record in now.items() if record.sha256 is not None and record.state != "skipped"}
        found: dict[str, Record] = {}
        unreadable: dict[str, str] = {}
        if (out / CONFIG).is_file():
            here = read_evidence(out)
            found = {kind: record for kind, record in here.records.items() if kind in measured}
            gaps = {kind: gap.why for kind, gap in here.missing.items() if kind in measured}
            unreadable = {kind: why for kind, why in gaps.items() if why != NOT_MEASURED}
        names = {stage.name for stage in self.stages}
        gates = {name: wanted for name, wanted in _IMPLIED.items() if name in names} | dict(self.gates)
        return judge(gates, found, now, unreadable)

    def _release(self, judged: Judged, running: Stage | None = None) -> evidence.Release:
        names = [stage.name for stage in self.stages]
        return evidence.Release(
            halfbyte=halfbyte.__version__,
            plan=plan_of(self.folders.out),
            recipe=self.recipe,
            forced=self.force and "publish" in names and judged.verdict != "ACCEPT",
            verdict=judged.verdict,
            headline=judged.headline,
            why=judged.why,
            next=judged.next,
            gates=judged.gates,
            stages=self.records.up_to_verdict(names, but=running.name if running else None),
            **(measured_in(self.folders.out) if (self.folders.out / CONFIG).is_file() else {}),
        )

    def _write(self, running: Stage | None = None) -> None:
        """Write the current state; stages that have not run yet keep their earlier records."""
        order = [stage.name for stage in self.stages]
        if running is None or running.name not in AFTER_VERDICT:
            self.records.write(self._release(self._judge(), running))
        self.records.write_after(order)

    def _end(self, record: StageRecord, view: View) -> None:
        self.records.add(record)
        view.end(record)
        if record.name in AFTER_VERDICT:
            self.records.write_after([stage.name for stage in self.stages])
        else:
            self._write()

    def _key(self, stage: Stage) -> str:
        return key_of(stage, self.stages, self.folders.out, self.folders.source, self.fingerprint)

    def _record(self, stage: Stage, key: str, **ended: Any) -> StageRecord:
        """Return a record whose command contains no local paths and no URLs, which may contain an API key."""
        words = [_ADDRESS.sub("URL", word) for word in stage.typed_command({OUT: "OUT", SOURCE: "SRC", URL: "URL"})]
        return StageRecord(name=stage.name, command=tuple(words), key=key, result=stage.result, **ended)

    def _is_kept(self, stage: Stage, key: str) -> bool:
        earlier = self.records.earlier(stage.name)
        if earlier is None or earlier.key != key or earlier.state not in ("done", "kept"):
            return False
        if stage.name == "quantize" and earlier.outputs_sha256 != made_files(self.folders.out):
            return False
        return stage.result is None or (
            earlier.sha256 is not None and result_sha256(self.folders.out / stage.result) == earlier.sha256
        )

    def _possible(self, stage: Stage) -> Stage:
        """Return a stage that can run now: `eval` without its baseline if the source was not evaluated."""
        return without_baseline(stage) if stage.name == "eval" and not self._is_done("source") else stage

    def _is_done(self, name: str) -> bool:
        record = self.records.now.get(name)
        return record is not None and record.state in ("done", "kept")

    def _blocked(self, stage: Stage) -> str:
        """Return why a stage cannot run, or an empty string."""
        names = {other.name for other in self.stages}
        for name in stage.needs:
            if name in names and not self._is_done(name):
                record = self.records.now.get(name)
                return f"{name} {record.state if record else 'has not run'}"
        return ""

    def _clear(self, stage: Stage, key: str) -> None:
        """Remove partial results that a stage would resume from under another key; move unknown results aside."""
        if stage.folder is None:
            return
        folder, begun = self.folders.out / stage.folder, self.records.begun_with(stage.name)
        if begun != key and folder.is_dir():
            if begun is not None:
                shutil.rmtree(folder)
            else:
                aside = (folder.with_name(f"{folder.name}.before-{number}") for number in count(1))
                folder.rename(next(path for path in aside if not path.exists()))
        self.records.begin(stage.name, key)

    def _log(self, name: str) -> Path:
        return self.folders.out / FOLDER / RELEASE_LOGS / f"{name}.log"

    def _portable(self, text: str) -> str:
        """Return a text with local folders replaced, since release.json is published."""
        for path, name in ((self.folders.out, "OUT"), (self.folders.source, "SRC")):
            text = text.replace(str(path.absolute()), name).replace(str(path), name)
        return text


def _interrupted(name: str, code: int) -> InterruptedRunError:
    error = InterruptedRunError(
        f"interrupted in '{name}'; finished stages are kept", fix="run the same command to resume"
    )
    error.exit_code = code
    return error


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """Return the inode and modification time of a file, which change when it is rewritten."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_ino, status.st_mtime_ns)
