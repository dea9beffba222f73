"""release.json: what every stage was done with and how it ended, the gates and the verdict; whole or not at all.

What comes after the verdict is noted in release/after.json: provenance.json holds the hash of release.json, which must
not change any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from halfbyte.folders import FOLDER, RELEASE, RELEASE_LOGS
from halfbyte.json_file import json_object
from halfbyte.release.stages import AFTER_VERDICT, VERDICT
from halfbyte.write import write_whole

FORMAT = 1
AFTER = f"{RELEASE_LOGS}/after.json"
BEGUN = f"{RELEASE_LOGS}/begun.json"  # what unfinished results were begun with
State = Literal["done", "kept", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """How one stage ended."""

    name: str
    command: list[str]
    key: str
    result: str | None = None
    sha256: str | None = None
    made: str | None = None  # of `quantize`: which files it left
    exit_code: int | None = None
    started: str | None = None
    seconds: float | None = None
    state: State
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def read_records(out: Path) -> dict[str, Record]:
    """Return how the stages of a folder's releases ended, those after the verdict too."""
    return _read(out / FOLDER / RELEASE) | _read(out / FOLDER / AFTER)


class Records:
    """The records of a folder: those of an earlier run, and those of this one."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._earlier = read_records(out)
        self.now: dict[str, Record] = {}

    def earlier(self, name: str) -> Record | None:
        """Return how a stage ended in an earlier run."""
        return self._earlier.get(name)

    def forget(self, name: str) -> None:
        """Let a stage be run again."""
        self._earlier.pop(name, None)

    def add(self, record: Record) -> None:
        """Note how a stage ended."""
        self.now[record.name] = record

    def keep(self, record: Record) -> None:
        """Note that a stage was done before."""
        self.add(replace(record, state="kept"))

    def value(self, order: Sequence[str], judged: Mapping[str, Any], but: str | None = None) -> dict[str, Any]:
        """Return what release.json holds: stages in their order, those to come as an earlier run left them.

        `but` is a stage that runs just now: how it ended before does not matter any more.
        """
        stages = [one for one in self._in_order(order, but) if one["name"] not in AFTER_VERDICT]
        return {"format": FORMAT, **judged, "stages": stages}

    def write(self, value: Mapping[str, Any]) -> None:
        """Write release.json, unless it says the same already."""
        path = self._out / FOLDER / RELEASE
        if _lasting(json_object(path)) != _lasting(value):
            write_whole(path, (json.dumps(value, indent=1) + "\n").encode())

    def write_after(self, order: Sequence[str]) -> None:
        """Write how the stages after the verdict ended, if one of them did."""
        stages = [one for one in self._in_order(order) if one["name"] in AFTER_VERDICT]
        if stages:
            text = json.dumps({"format": FORMAT, "stages": stages}, indent=1) + "\n"
            write_whole(self._out / FOLDER / AFTER, text.encode())

    def _in_order(self, order: Sequence[str], but: str | None = None) -> list[dict[str, Any]]:
        found = [
            self.now.get(name) or (self._earlier.get(name) if name not in (but, VERDICT) else None) for name in order
        ]
        return [one.as_dict() for one in found if one is not None]

    def begun_with(self, name: str) -> str | None:
        """Return the key that a stage's unfinished results were begun with."""
        found = json_object(self._out / FOLDER / BEGUN).get(name)
        return found if isinstance(found, str) else None

    def begin(self, name: str, key: str) -> None:
        """Note the key that a stage's results are begun with."""
        begun = {**json_object(self._out / FOLDER / BEGUN), name: key}
        write_whole(self._out / FOLDER / BEGUN, (json.dumps(begun, indent=1) + "\n").encode())


def _lasting(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what does not change when a stage that was done is kept."""
    stages = cast("list[dict[str, Any]]", found.get("stages", []))
    same = [{**one, "state": "done" if one.get("state") == "kept" else one.get("state")} for one in stages]
    return {**found, "stages": same}


def _read(path: Path) -> dict[str, Record]:
    """Return the records of a file; a damaged one has none, and its stages are run again."""
    known = {field.name for field in fields(Record)}
    found: dict[str, Record] = {}
    stages: Any = json_object(path).get("stages")
    for one in cast("list[Any]", stages) if isinstance(stages, list) else []:
        if isinstance(one, dict) and known >= set(cast("dict[str, Any]", one)) >= {"name", "command", "key", "state"}:
            record = Record(**cast("dict[str, Any]", one))
            found[str(record.name)] = record
    return found
