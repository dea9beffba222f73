"""Read and write release.json: the key and state of every stage, the gates and the verdict.

Stages after the verdict are recorded in release/after.json, because provenance.json holds the hash of release.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.output_folder import FOLDER, RELEASE, RELEASE_LOGS
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.release.stages import AFTER_VERDICT, VERDICT

FORMAT = 1
AFTER = f"{RELEASE_LOGS}/after.json"
BEGUN = f"{RELEASE_LOGS}/begun.json"  # keys of unfinished results
State = Literal["done", "kept", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The result of one stage."""

    name: str
    command: list[str]
    key: str
    result: str | None = None
    sha256: str | None = None
    made: str | None = None  # of `quantize`: the digest of its output files
    exit_code: int | None = None
    started: str | None = None
    seconds: float | None = None
    state: State
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the entry for release.json."""
        return asdict(self)


def read_records(out: Path) -> dict[str, Record]:
    """Return the records of a folder's stages, including those after the verdict."""
    return _read(out / FOLDER / RELEASE) | _read(out / FOLDER / AFTER)


class Records:
    """The records of a folder, from earlier runs and from this one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._earlier = read_records(out)
        self.now: dict[str, Record] = {}

    def earlier(self, name: str) -> Record | None:
        """Return the record of a stage from an earlier run."""
        return self._earlier.get(name)

    def forget(self, name: str) -> None:
        """Discard the earlier record of a stage, so that it runs again."""
        self._earlier.pop(name, None)

    def add(self, record: Record) -> None:
        """Record the result of a stage."""
        self.now[record.name] = record

    def keep(self, record: Record) -> None:
        """Record that a stage's earlier result is kept."""
        self.add(replace(record, state="kept"))

    def value(self, order: Sequence[str], judged: Mapping[str, Any], but: str | None = None) -> dict[str, Any]:
        """Return the contents of release.json, with earlier records for stages that have not run yet.

        `but` is the stage that is running now, whose earlier record is omitted.
        """
        stages = [stage for stage in self._in_order(order, but) if stage["name"] not in AFTER_VERDICT]
        return {"format": FORMAT, **judged, "stages": stages}

    def write(self, value: Mapping[str, Any]) -> None:
        """Write release.json if its contents changed."""
        path = self._out / FOLDER / RELEASE
        if _lasting(json_object(path)) != _lasting(value):
            write_whole(path, (json.dumps(value, indent=1) + "\n").encode())

    def write_after(self, order: Sequence[str]) -> None:
        """Write the records of the stages after the verdict, if there are any."""
        stages = [stage for stage in self._in_order(order) if stage["name"] in AFTER_VERDICT]
        if stages:
            text = json.dumps({"format": FORMAT, "stages": stages}, indent=1) + "\n"
            write_whole(self._out / FOLDER / AFTER, text.encode())

    def _in_order(self, order: Sequence[str], but: str | None = None) -> list[dict[str, Any]]:
        records = [
            self.now.get(name) or (self._earlier.get(name) if name not in (but, VERDICT) else None) for name in order
        ]
        return [record.as_dict() for record in records if record is not None]

    def begun_with(self, name: str) -> str | None:
        """Return the key under which a stage's unfinished results were started."""
        key = json_object(self._out / FOLDER / BEGUN).get(name)
        return key if isinstance(key, str) else None

    def begin(self, name: str, key: str) -> None:
        """Record the key under which a stage starts."""
        keys = {**json_object(self._out / FOLDER / BEGUN), name: key}
        write_whole(self._out / FOLDER / BEGUN, (json.dumps(keys, indent=1) + "\n").encode())


def _lasting(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return release.json with the state "kept" normalized to "done"."""
    stages = cast("list[dict[str, Any]]", value.get("stages", []))
    same = [{**stage, "state": "done" if stage.get("state") == "kept" else stage.get("state")} for stage in stages]
    return {**value, "stages": same}


def _read(path: Path) -> dict[str, Record]:
    """Return the records of a file; empty if it is damaged, so that its stages run again."""
    known = {field.name for field in fields(Record)}
    records: dict[str, Record] = {}
    stages: Any = json_object(path).get("stages")
    for entry in cast("list[Any]", stages) if isinstance(stages, list) else []:
        if isinstance(entry, dict) and known >= set(cast("dict[str, Any]", entry)) >= {
            "name",
            "command",
            "key",
            "state",
        }:
            record = Record(**cast("dict[str, Any]", entry))
            records[str(record.name)] = record
    return records
