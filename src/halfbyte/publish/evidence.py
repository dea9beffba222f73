"""Read the evidence files of an output folder, the only source of numbers for the card and the report.

A file that is missing, damaged or measured on other bytes is not evidence: each result lists the SHA-256 of the files
it was measured on (measured_files.py). `missing` holds the reason and the command that creates the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from halfbyte.audit.run import RESULT as AUDIT
from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.output_folder import FOLDER, LOOPS, PLAN
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.engine.dispatch import COVERAGE
from halfbyte.errors import CheckpointError
from halfbyte.evidence.measured_files import MEASURED, changed_file, content, decides_weights
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN
from halfbyte.ui.escape import pasted

Measured = Literal["nothing", "weights", "server", "outputs"]
NOT_MEASURED = "not measured"  # the reason if there is no file
MOST_NBYTES = 1 << 28  # per file; comparisons are the largest


@dataclass(frozen=True, slots=True)
class Place:
    """The file of one kind of evidence under `halfbyte/`, and the command that writes it."""

    file: str
    command: str  # with {out} for the folder
    measured: Measured = "nothing"  # the files whose hashes it lists, see _refuse_other_files


PLACES: Mapping[str, Place] = {
    "plan": Place(PLAN, "halfbyte quantize SRC {out} -r RECIPE"),
    "coverage": Place(COVERAGE, "halfbyte quantize SRC {out} -r RECIPE"),
    "prune": Place(PRUNE_PLAN, "halfbyte quantize SRC {out} -r RECIPE"),
    "loops": Place(LOOPS, "halfbyte loops {out} --against SRC", "weights"),
    "audit": Place(AUDIT, "halfbyte audit {out} --against SRC", "weights"),
    "compare": Place(
        "compare.json", "halfbyte compare SRC {out} --data DOMAIN=FILE -o {out}/halfbyte/compare.json", "weights"
    ),
    "serve": Place("serve/serve.json", "halfbyte serve {out} --gpus NxGPU --write {out}/halfbyte/serve"),
    "probe": Place("probe/probe.json", "halfbyte probe URL -o {out}/halfbyte/probe", "server"),
    "eval": Place("eval/eval.json", "halfbyte eval URL --against URL2 -o {out}/halfbyte/eval", "server"),
    "bench": Place("bench/bench.json", "halfbyte bench URL -o {out}/halfbyte/bench", "server"),
    "release": Place("release.json", "halfbyte release SRC {out} -r RECIPE", "server"),
    "provenance": Place("provenance.json", "halfbyte release SRC {out} -r RECIPE", "outputs"),
}  # fmt: skip
_WRITTEN_FOR = {"coverage": "calibrate", "prune": "prune"}  # the recipe block that produces the file


@dataclass(frozen=True, slots=True)
class Missing:
    """Why evidence is missing, and the command that creates it."""

    why: str
    command: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of an output folder: the contents of each kind's file, or why it is missing."""

    out: Path
    found: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, Missing]

    def get(self, kind: str) -> Mapping[str, Any] | None:
        """Return the contents of this kind's file, or None if it is missing."""
        assert kind in PLACES, kind
        return self.found.get(kind)

    def path(self, kind: str) -> Path:
        """Return the path of a kind of evidence."""
        return self.out / FOLDER / PLACES[kind].file


def read_evidence(out: Path) -> Evidence:
    """Read all evidence of a folder. Raise CheckpointError if it holds no finished checkpoint.

    Files without a cached hash are read once; call `cli.hash_progress.hash_output` first to show progress.
    """
    if not (out / CONFIG).is_file():
        fix = "pass the output folder of a finished `halfbyte quantize`"
        raise CheckpointError("no finished checkpoint in this folder", where=str(out), fix=fix)
    found: dict[str, Mapping[str, Any]] = {}
    missing: dict[str, Missing] = {}
    now = cache(lambda: content(out))  # hashes only if there is a measurement
    for kind, place in PLACES.items():
        path, command = out / FOLDER / place.file, place.command.format(out=pasted(out))
        try:
            result = _read(path)
            _refuse_other(found.get("plan", {}), result)
            _refuse_other_files(result, place, now)
        except _NoEvidenceError as error:
            missing[kind] = Missing(str(error), command)
        else:
            found[kind] = result
    return Evidence(out, found, missing)


def to_measure(evidence: Evidence) -> dict[str, Missing]:
    """Return the missing evidence, except files that the recipe does not produce."""
    plan: Mapping[str, Any] = evidence.get("plan") or {}
    recipe: Any = plan.get("recipe")
    blocks = cast("dict[str, Any]", recipe) if isinstance(recipe, dict) else {}
    unused = {kind for kind, key in _WRITTEN_FOR.items() if not blocks.get(key)}
    return {kind: gap for kind, gap in evidence.missing.items() if kind not in unused or gap.why != NOT_MEASURED}


def not_produced(evidence: Evidence, kind: str) -> bool:
    """Whether a kind of evidence is missing because the plan's recipe does not produce it."""
    return evidence.get("plan") is not None and kind in evidence.missing and kind not in to_measure(evidence)


class _NoEvidenceError(Exception):
    """A file is not evidence; the message is the reason."""


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > MOST_NBYTES:
            raise _NoEvidenceError(f"{path.name} is larger than {MOST_NBYTES >> 20} MiB")
        result: Any = read_json(path, MOST_NBYTES, finite=True)  # rejects NaN and Infinity
    except FileNotFoundError:
        raise _NoEvidenceError(NOT_MEASURED) from None
    except (OSError, ValueError):
        raise _NoEvidenceError(f"cannot read {path.name}") from None
    if not isinstance(result, dict):
        raise _NoEvidenceError(f"{path.name} is not a JSON object")
    return cast("dict[str, Any]", result)


def _refuse_other(plan: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Raise an error if a result names another plan."""
    recorded, ours = result.get("plan"), plan.get("fingerprint")
    if isinstance(recorded, str) and isinstance(ours, str) and recorded != ours:
        raise _NoEvidenceError(f"it belongs to another plan, {recorded}")


def _refuse_other_files(result: Mapping[str, Any], place: Place, now: Callable[[], Mapping[str, str]]) -> None:
    """Raise an error if a result was measured on files that have changed since.

    An audit or a comparison depends on weights and formats ("weights"). A server's answers also depend on tokenizer,
    chat template and sampling ("server"). A provenance lists all output files ("outputs").
    """
    if place.measured == "nothing":
        return
    if place.measured == "outputs":
        result = {MEASURED: _recorded_outputs(result)}
    if not result.get(MEASURED):
        raise _NoEvidenceError("it does not list the files it was measured on")
    try:
        files = now()
    except CheckpointError as error:
        raise _NoEvidenceError(f"cannot read the checkpoint: {error.what}") from None
    if changed := changed_file(result, files, weights_only=place.measured != "server"):
        raise _NoEvidenceError(f"measured on other files: {changed} has changed since")


def _recorded_outputs(result: Mapping[str, Any]) -> dict[str, Any]:
    outputs: Any = result.get("outputs")
    entries = cast("dict[str, Any]", outputs).items() if isinstance(outputs, dict) else ()
    return {name: entry.get("sha256") for name, entry in entries if isinstance(entry, dict) and decides_weights(name)}
