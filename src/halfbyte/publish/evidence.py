"""Every file of an output folder that a number of the card or the report may come from.

A number that is not in one of these files was not measured. A file that is missing, damaged, or older than the weights
gives no number; it is said why, and what to type to have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.audit.run import RESULT as AUDIT
from halfbyte.audit.seen import SEEN, files_seen
from halfbyte.errors import CheckpointError
from halfbyte.folders import FOLDER, LOOPS, PLAN
from halfbyte.passes import COVERAGE
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.source.checkpoint import CONFIG, INDEX
from halfbyte.source.foreign import read_json
from halfbyte.terminal.pasted import pasted

NOT_MEASURED = "not measured"  # why there is no file at all
MOST_NBYTES = 1 << 28  # of one file; the arrays of a comparison are the largest


@dataclass(frozen=True, slots=True)
class Place:
    """Where one kind of evidence lies below `halfbyte/`, and the command that writes it there."""

    file: str
    command: str  # with {out} for the folder
    of_weights: bool = True  # measured on the weights, so that it must not be older than they are


PLACES: Mapping[str, Place] = {
    "plan": Place(PLAN, "halfbyte quantize SRC {out} -r RECIPE", of_weights=False),
    "coverage": Place(COVERAGE, "halfbyte quantize SRC {out} -r RECIPE, one that calibrates", of_weights=False),
    "prune": Place(PRUNE_PLAN, "halfbyte quantize SRC {out} -r RECIPE, one that prunes", of_weights=False),
    "loops": Place(LOOPS, "halfbyte loops {out} --against SRC"),
    "audit": Place(AUDIT, "halfbyte audit {out} --against SRC"),
    "compare": Place("compare.json", "halfbyte compare SRC {out} --data DOMAIN=FILE -o {out}/halfbyte/compare.json"),
    "serve": Place(
        "serve/serve.json", "halfbyte serve {out} --gpus NxGPU --write {out}/halfbyte/serve", of_weights=False
    ),
    "probe": Place("probe/probe.json", "halfbyte probe URL -o {out}/halfbyte/probe"),
    "eval": Place("eval/eval.json", "halfbyte eval URL --against URL2 -o {out}/halfbyte/eval"),
    "bench": Place("bench/bench.json", "halfbyte bench URL -o {out}/halfbyte/bench"),
    "release": Place("release.json", "halfbyte release SRC {out} -r RECIPE", of_weights=False),
    "provenance": Place("provenance.json", "halfbyte release SRC {out} -r RECIPE", of_weights=False),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no such evidence, and what to type to have it."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an output folder: for each kind what its file holds, or why there is nothing."""

    out: Path
    found: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, Missing]

    def get(self, kind: str) -> Mapping[str, Any] | None:
        """Return what the file of this kind holds; None: not measured, see `missing`."""
        assert kind in PLACES, kind
        return self.found.get(kind)

    def path(self, kind: str) -> Path:
        """Return where a kind of evidence lies."""
        return self.out / FOLDER / PLACES[kind].file


def read_evidence(out: Path) -> Evidence:
    """Read all evidence of a folder. CheckpointError where there is no finished checkpoint in it."""
    if not (out / CONFIG).is_file():
        fix = "give the folder that `halfbyte quantize` made, after it has ended"
        raise CheckpointError("there is no finished checkpoint here", where=str(out), fix=fix)
    found: dict[str, Mapping[str, Any]] = {}
    missing: dict[str, Missing] = {}
    for kind, place in PLACES.items():
        path, command = out / FOLDER / place.file, place.command.format(out=pasted(out))
        try:
            held = _read(path)
            _refuse_other(found.get("plan", {}), held)
            _refuse_older(out, path, kind, held, place)
        except _NoEvidenceError as error:
            missing[kind] = Missing(str(error), command)
        else:
            found[kind] = held
    return Evidence(out, found, missing)


class _NoEvidenceError(Exception):
    """A file gives no evidence; the text says why."""


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_NBYTES:
            raise _NoEvidenceError(f"{path.name} is larger than {MOST_NBYTES >> 20} MiB")
        held: Any = read_json(path, MOST_NBYTES, finite=True)  # NaN and Infinity are no measurements
    except FileNotFoundError:
        raise _NoEvidenceError(NOT_MEASURED) from None
    except (OSError, ValueError):
        raise _NoEvidenceError(f"{path.name} cannot be read") from None
    if not isinstance(held, dict):
        raise _NoEvidenceError(f"{path.name} holds no object")
    return cast("dict[str, Any]", held)


def _refuse_other(plan: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """Refuse what says that it is of another plan: somebody copied it here."""
    told, ours = held.get("plan"), plan.get("fingerprint")
    if isinstance(told, str) and isinstance(ours, str) and told != ours:
        raise _NoEvidenceError(f"it is of another plan, {told}")


def _refuse_older(out: Path, path: Path, kind: str, held: Mapping[str, Any], place: Place) -> None:
    """Refuse what was measured on other weights than those that lie here now."""
    if kind == "audit" and held.get(SEEN) is not None:
        if held[SEEN] != files_seen(out):
            raise _NoEvidenceError("the files were changed or copied after the last audit")
    elif place.of_weights and path.stat().st_mtime_ns < _written(out):
        raise _NoEvidenceError("measured before these weights were written")


def _written(out: Path) -> int:
    """Return when the weights were last changed, in nanoseconds."""
    files = [*out.glob("*.safetensors"), out / CONFIG, out / INDEX]
    return max((path.stat().st_mtime_ns for path in files if path.is_file()), default=0)
