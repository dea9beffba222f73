"""Read and write release.json: the key and state of every stage, the gates and the verdict.

Stages after the verdict are recorded in release/after.json, because provenance.json holds the hash of release.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from halfbyte.checkpoint.atomic_write import write_json
from halfbyte.checkpoint.output_folder import FOLDER, RELEASE_LOGS
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.evidence.record import InvalidRecordError
from halfbyte.evidence.release import AfterRelease, Release, StageRecord
from halfbyte.release.stages import AFTER_VERDICT, VERDICT

BEGUN = f"{RELEASE_LOGS}/begun.json"  # keys of unfinished results


def read_release(out: Path) -> Release | None:
    """Return the release.json of a folder; None if it is missing or damaged, so that its stages run again."""
    try:
        return Release.read(out / FOLDER / Release.file)
    except (FileNotFoundError, InvalidRecordError):
        return None


def read_records(out: Path) -> dict[str, StageRecord]:
    """Return the records of a folder's stages, including those after the verdict."""
    release = read_release(out)
    try:
        after = AfterRelease.read(out / FOLDER / AfterRelease.file).stages
    except (FileNotFoundError, InvalidRecordError):
        after = ()
    return {stage.name: stage for stage in (*(release.stages if release else ()), *after)}


class Records:
    """The records of a folder, from earlier runs and from this one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._earlier = read_records(out)
        self.now: dict[str, StageRecord] = {}

    def earlier(self, name: str) -> StageRecord | None:
        """Return the record of a stage from an earlier run."""
        return self._earlier.get(name)

    def forget(self, name: str) -> None:
        """Discard the earlier record of a stage, so that it runs again."""
        self._earlier.pop(name, None)

    def add(self, record: StageRecord) -> None:
        """Record the result of a stage."""
        self.now[record.name] = record

    def keep(self, record: StageRecord) -> None:
        """Record that a stage's earlier result is kept."""
        self.add(replace(record, state="kept"))

    def up_to_verdict(self, order: Sequence[str], but: str | None = None) -> tuple[StageRecord, ...]:
        """Return the stages of release.json, with earlier records for stages that have not run yet.

        `but` is the stage that is running now, whose earlier record is omitted.
        """
        return tuple(stage for stage in self._in_order(order, but) if stage.name not in AFTER_VERDICT)

    def write(self, release: Release) -> None:
        """Write release.json if its contents changed."""
        earlier = read_release(self._out)
        if earlier is None or _lasting(earlier) != _lasting(release):
            release.write(self._out / FOLDER / Release.file)

    def write_after(self, order: Sequence[str]) -> None:
        """Write the records of the stages after the verdict, if there are any."""
        stages = tuple(stage for stage in self._in_order(order) if stage.name in AFTER_VERDICT)
        if stages:
            AfterRelease(stages=stages).write(self._out / FOLDER / AfterRelease.file)

    def _in_order(self, order: Sequence[str], but: str | None = None) -> list[StageRecord]:
        records = [
            self.now.get(name) or (self._earlier.get(name) if name not in (but, VERDICT) else None) for name in order
        ]
        return [record for record in records if record is not None]

    def begun_with(self, name: str) -> str | None:
        """Return the key under which a stage's unfinished results were started."""
        key = json_object(self._out / FOLDER / BEGUN).get(name)
        return key if isinstance(key, str) else None

    def begin(self, name: str, key: str) -> None:
        """Record the key under which a stage starts."""
        keys = {**json_object(self._out / FOLDER / BEGUN), name: key}
        write_json(self._out / FOLDER / BEGUN, keys)


def _lasting(release: Release) -> Release:
    """Return release.json with the state "kept" normalized to "done"."""
    stages = (replace(stage, state="done") if stage.state == "kept" else stage for stage in release.stages)
    return replace(release, stages=tuple(stages))
