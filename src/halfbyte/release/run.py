"""Run the stages of a release: keep what is done, run what is not, judge, and write all of it down after each step."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.errors import EXIT_CHECK_FAILED, EXIT_INTERRUPTED, InterruptedRunError
from halfbyte.folders import FOLDER, RELEASE_LOGS, alone_measuring
from halfbyte.publish.evidence import read_evidence
from halfbyte.release.child import StageLog, run_child
from halfbyte.release.keys import digest, key_of, made_files, plan_of, result_sha256
from halfbyte.release.record import Record, Records
from halfbyte.release.server import Ready, Server, wait_for_earlier
from halfbyte.release.stages import (
    AFTER_VERDICT,
    ASKS_SERVER,
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
from halfbyte.serve.stop_signals import Stopped, stop_signals
from halfbyte.source.checkpoint import CONFIG
from halfbyte.terminal.console import Output
from halfbyte.validate.gate import Judged, judge

# Stages that must be done whether or not a recipe says so, in the words of the gates' table.
_IMPLIED = {"quantize": "made", "source": "served", "scripts": "fits", SERVE: "answers"}
_ADDRESS = re.compile(r"^https?://\S+")
_EARLIER = "waiting for the engine of a killed run to end"
_ALL_KEPT = "all that would ask it is kept"


@dataclass(frozen=True, slots=True)
class Folders:
    """What a release is of, and where it goes."""

    source: Path
    out: Path

    def shown(self) -> dict[str, str]:
        """Return what stands for the places in a command."""
        return {OUT: str(self.out), SOURCE: str(self.source), URL: "URL"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a release ended."""

    judged: Judged
    records: Mapping[str, Record]
    value: Mapping[str, Any]
    stopped: bool  # because that was asked for


@dataclass(slots=True)
class Release:
    """One run of the stages in one folder."""

    folders: Folders
    stages: Sequence[Stage]
    gates: Mapping[str, Any]
    recipe: str  # its name
    fingerprint: str  # of what decides bytes
    force: bool = False
    again: Collection[str] = ()
    stop_after: str | None = None
    records: Records = field(init=False)
    _server: Server | None = field(init=False, default=None)
    _ready: Ready | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.records = self._read_records()

    def run(self, out: Output) -> Ended:
        """Run everything that is not kept. Whatever ends us, the same command goes on."""
        logs = self.folders.out / FOLDER / RELEASE_LOGS
        with alone_measuring(logs), View(out, [stage.name for stage in self.stages]) as view:
            self.records = self._read_records()  # now that nobody else writes them
            at = [self.stages[0].name]
            try:
                with stop_signals(lambda: self._server and self._server.kill()):
                    return self._run(view, at)
            except Stopped as stopped:
                raise _interrupted(at[0], stopped.exit_code) from None

    def outlook(self) -> list[tuple[Stage, str]]:
        """Return for each stage whether it would be kept or run, without doing anything."""
        runs: set[str] = set()
        found: list[tuple[Stage, str]] = []
        for stage in self.stages:
            rests_on = {*stage.needs, *stage.after} - {SERVE}
            waits = runs & rests_on or (stage.of_evidence and runs)
            kept = not waits and stage.name != VERDICT and self._is_kept(stage, self._key(stage))
            if not kept and stage.name != SERVE:
                runs.add(stage.name)
            found.append((stage, "kept" if kept else "run"))
        asked = any(name in runs for name in ASKS_SERVER)
        return [(stage, ("run" if asked else "kept") if stage.name == SERVE else state) for stage, state in found]

    def _read_records(self) -> Records:
        """Read what earlier runs left, without what shall be run again; a server is run again by those who ask it."""
        records = Records(self.folders.out)
        for name in (*self.again, *(ASKS_SERVER if SERVE in self.again else ())):
            records.forget(name)
        return records

    def _run(self, view: View, at: list[str]) -> Ended:
        judged = self._judge()
        for stage in self.stages:
            if stage.name in self.records.now:
                continue  # it ran inside the server
            at[0] = stage.name
            if stage.name == VERDICT:
                judged = self._verdict(view)
            elif stage.name == SERVE:
                self._serve(stage, view, at)
            elif stage.name == "publish" and judged.verdict != "ACCEPT" and not self.force:
                why = f"the verdict is {judged.verdict}; --force publishes all the same, and the card says so"
                self._end(self._record(stage, "", state="skipped", why=why), view)
            else:
                self._one(stage, view)
            if self.stop_after in self.records.now:
                break
        stopped = any(stage.name not in self.records.now for stage in self.stages)
        judged = self._judge()
        return Ended(judged, self.records.now, self._value(judged), stopped)

    def _one(self, stage: Stage, view: View) -> None:
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
        self._write(stage)  # from now on an earlier verdict does not hold
        self._end(self._ran(stage, key, view), view)

    def _ran(self, stage: Stage, key: str, view: View) -> Record:
        """Run a stage to its end."""
        self._clear(stage, key)
        places = self.folders.shown() | ({URL: self._ready.url} if self._ready else {})
        log = StageLog.opened(self._log(stage.name), shown(stage, places))
        watching = view.begin(stage.name, shown(stage, places))
        result = None if stage.result is None else self.folders.out / stage.result
        before, started, begin = _stamp(result), _now(), time.monotonic()
        more = self._ready.environment if self._ready else None
        if stage.name == "source":
            wait_for_earlier(self._log("engine-source"), watching(lambda: _EARLIER))
        code = run_child([*stage.program, *stage.command(places)], log, more, watching(log.last_line))
        if code == EXIT_INTERRUPTED:
            raise _interrupted(stage.name, code)
        written = _stamp(result) != before
        there = result is None or result.is_file()
        done = (code == 0 and there) or (code == EXIT_CHECK_FAILED and written)  # a measurement that says no is done
        why = "" if code == 0 and there else log.error() if code else f"it left no {stage.result}"
        ended = self._record(stage, key, state="done" if done else "failed", why=self._portable(why))
        if done or written:
            made = made_files(self.folders.out) if stage.name == "quantize" else None
            ended = replace(ended, sha256=result_sha256(result), made=made)
        return replace(ended, exit_code=code, started=started, seconds=round(time.monotonic() - begin, 1))

    def _serve(self, stage: Stage, view: View, at: list[str]) -> None:
        """Start the server, run the stages that ask it, and end it; without any of them it is not started."""
        inside = [self._possible(one) for one in self.stages if one.name in ASKS_SERVER and self.stop_after != SERVE]
        key = self._key(stage)
        blocked = self._blocked(stage)
        if blocked:
            self._end(self._record(stage, "", state="skipped", why=blocked), view)
        elif inside and all(self._is_kept(one, self._key(one)) for one in inside):
            earlier = self.records.earlier(SERVE)
            answered = earlier is not None and earlier.key == key and earlier.state in ("done", "kept")
            record = earlier if answered else None  # one that died in the end has failed, and stays no success
            self.records.keep(record or self._record(stage, key, state="kept", why=_ALL_KEPT))
            view.end(self.records.now[SERVE])
        else:
            self._write(stage)
            self._serve_and_ask(stage, key, inside, view, at)
            return
        for one in inside:
            self._one(one, view)

    def _serve_and_ask(self, stage: Stage, key: str, inside: Sequence[Stage], view: View, at: list[str]) -> None:
        places = self.folders.shown()
        command = shown(stage, places)
        started, begin = _now(), time.monotonic()
        watching = view.begin(stage.name, command)
        wait_for_earlier(self._log(stage.name), watching(lambda: _EARLIER))
        self._server = Server([*stage.program, *stage.command(places)], self._log(stage.name))
        try:
            self._ready = self._server.ready(watching(self._server.log.last_line))
            record = self._record(stage, key, state="done" if self._ready else "failed")
            record = replace(record, started=started, seconds=round(time.monotonic() - begin, 1), exit_code=0)
            if self._ready is None:
                record = self._server_failed(record)
            self._end(record, view)
            for one in inside:
                at[0] = one.name
                self._one(one, view)
                if one.name == self.stop_after:
                    break
            if self._ready is not None and self._server.exit_code() is not None:
                self._end(self._server_failed(replace(record, state="failed")), view)
        finally:
            self._server.stop()
            self._server = self._ready = None

    def _server_failed(self, record: Record) -> Record:
        assert self._server is not None
        return replace(record, exit_code=self._server.exit_code(), why=self._portable(self._server.log.error()))

    def _verdict(self, view: View) -> Judged:
        judged = self._judge()
        key = digest([self.gates, [one.sha256 for one in self.records.now.values()]])
        said, code = f"{judged.verdict}: {judged.why[0]}", int(judged.verdict != "ACCEPT")
        record = Record(name=VERDICT, command=[], key=key, exit_code=code, state="done", why=said)
        self._end(record, view)
        return judged

    def _judge(self) -> Judged:
        """Judge by what was measured in this run, or kept in it: what is only left from before proves nothing."""
        out, now = self.folders.out, self.records.now
        measured = {name for name, one in now.items() if one.sha256 is not None and one.state != "skipped"}
        evidence: dict[str, Mapping[str, Any]] = {}
        if (out / CONFIG).is_file():
            evidence = {kind: held for kind, held in read_evidence(out).found.items() if kind in measured}
        asked = {stage.name for stage in self.stages}
        gates = {name: wanted for name, wanted in _IMPLIED.items() if name in asked} | dict(self.gates)
        return judge(gates, evidence, {name: one.as_dict() for name, one in now.items()})

    def _value(self, judged: Judged, running: Stage | None = None) -> dict[str, Any]:
        asked = {stage.name for stage in self.stages}
        about = {
            "halfbyte": halfbyte.__version__,
            "plan": plan_of(self.folders.out),
            "recipe": self.recipe,
            "forced": self.force and "publish" in asked and judged.verdict != "ACCEPT",
        }
        order = [stage.name for stage in self.stages]
        return self.records.value(order, about | judged.as_dict(), but=running.name if running else None)

    def _write(self, running: Stage | None = None) -> None:
        """Write down where we are; the stages that are still to come stay as an earlier run left them."""
        order = [stage.name for stage in self.stages]
        if running is None or running.name not in AFTER_VERDICT:
            self.records.write(self._value(self._judge(), running))
        self.records.write_after(order)

    def _end(self, record: Record, view: View) -> None:
        self.records.add(record)
        view.end(record)
        if record.name in AFTER_VERDICT:
            self.records.write_after([stage.name for stage in self.stages])
        else:
            self._write()

    def _key(self, stage: Stage) -> str:
        return key_of(stage, self.stages, self.folders.out, self.folders.source, self.fingerprint)

    def _record(self, stage: Stage, key: str, **ended: Any) -> Record:
        """Return a record whose command names no folder of this machine, and no server: an address may hold a key."""
        words = [_ADDRESS.sub("URL", word) for word in stage.typed_command({OUT: "OUT", SOURCE: "SRC", URL: "URL"})]
        return Record(name=stage.name, command=words, key=key, result=stage.result, **ended)

    def _is_kept(self, stage: Stage, key: str) -> bool:
        earlier = self.records.earlier(stage.name)
        if earlier is None or earlier.key != key or earlier.state not in ("done", "kept"):
            return False
        if stage.name == "quantize" and earlier.made != made_files(self.folders.out):
            return False
        return stage.result is None or (
            earlier.sha256 is not None and result_sha256(self.folders.out / stage.result) == earlier.sha256
        )

    def _possible(self, stage: Stage) -> Stage:
        """Return a stage as it can be run: without the source's answers there are only scores."""
        return without_baseline(stage) if stage.name == "eval" and not self._is_done("source") else stage

    def _is_done(self, name: str) -> bool:
        record = self.records.now.get(name)
        return record is not None and record.state in ("done", "kept")

    def _blocked(self, stage: Stage) -> str:
        """Return why a stage cannot be run."""
        asked = {one.name for one in self.stages}
        for name in stage.needs:
            if name in asked and not self._is_done(name):
                record = self.records.now.get(name)
                return f"{name} {record.state if record else 'has not been run'}"
        return ""

    def _clear(self, stage: Stage, key: str) -> None:
        """Take away what a stage would go on with although it was asked for otherwise; foreign results are kept."""
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
        """Return words without the folders of this machine: release.json is published."""
        for path, name in ((self.folders.out, "OUT"), (self.folders.source, "SRC")):
            text = text.replace(str(path.absolute()), name).replace(str(path), name)
        return text


def _interrupted(name: str, code: int) -> InterruptedRunError:
    error = InterruptedRunError(f"interrupted in '{name}'; what is done is kept", fix="the same command goes on")
    error.exit_code = code
    return error


def _stamp(path: Path | None) -> tuple[int, int] | None:
    """Return what changes whenever a file is written."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_ino, status.st_mtime_ns)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
