"""Check a pruned checkpoint: kept experts, router rows and biases equal the source's; report its recorded loop test.

A shard rewriter that is off by one row produces a model that loads and answers, but is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.audit.byte_checks import chunks, same_bytes
from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note
from halfbyte.audit.inputs import ROUTERS, Evidence
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.reader import Reader
from halfbyte.errors import UsageError
from halfbyte.evidence.loops import Loops
from halfbyte.evidence.record import InvalidRecordError
from halfbyte.families.completeness import PER_LAYER
from halfbyte.formats.reference.floats import bf16_to_f32
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN
from halfbyte.plan.prune_record import read_record
from halfbyte.plan.pruned import Kept, counts_by_layer, kept_in
from halfbyte.plan.rules import ROUTED, ROUTER, Job
from halfbyte.prune.plan_source import of_layers

CHECK = "prune"
_WHY = "with a row in another expert's place the model loads and answers, but is wrong, without any error"
_CONFIG_KEYS = ("experts", "active_experts", "groups")  # in addition to topk_group

_LOOPS = "loops"


@dataclass(slots=True)
class _Tally:
    """Counts of compared rows and tensors, and the mismatches."""

    rows: dict[str, int] = field(default_factory=dict[str, int])  # router rows by tensor name
    tensors: int = 0
    nbytes: int = 0
    largest: float = 0.0  # difference of two rows
    wrong_rows: int = 0
    wrong_tensors: int = 0
    wrong: list[str] = field(default_factory=list[str])


def prune(evidence: Evidence) -> list[Finding]:
    """Check that every kept router row, bias entry and expert tensor equals that of the planned source expert."""
    if evidence.recorded is not None and evidence.recorded.recipe.prune is None:
        return _pruned_earlier(evidence, evidence.recorded.layers)
    if (problem := evidence.problems.get(PRUNE_PLAN)) is not None:
        return [bad(CHECK, problem, why="the kept experts are unknown", fix=f"restore {FOLDER}/{PRUNE_PLAN}")]
    if (problem := evidence.problems.get(ROUTERS)) is not None:
        return [bad(CHECK, problem, why=_WHY, fix="create or download the checkpoint again")]
    kept = evidence.kept
    if kept is None:
        return []
    wrong = _disagreements(evidence, kept)
    if wrong:
        return [bad(CHECK, "the plan and the checkpoint disagree", why=_WHY, fix=RUN_AGAIN, examples=wrong)]
    head = f"{_layers(kept)} of {_config(evidence)}"
    if evidence.plan is None:
        return [note(CHECK, f"{head}; rows and experts not compared: pass --against SRC")]
    tally = _compare(evidence, kept)
    if tally.wrong:
        rows, experts = count(tally.wrong_rows, "router row"), count(tally.wrong_tensors, "expert tensor")
        text = f"{rows} and {experts} differ from the source"
        text += f", max difference {tally.largest}" if tally.wrong_rows else ""
        return [bad(CHECK, text, why=_WHY, fix=RUN_AGAIN, examples=tally.wrong)]
    rows = " and ".join(f"{number:,} rows of {name}" for name, number in tally.rows.items())
    experts = f"{count(tally.tensors, 'expert tensor')} ({tally.nbytes:,} bytes)"
    copied = f", {experts} identical" if tally.tensors else ", experts re-encoded (see repeat)"
    return [good(CHECK, f"{head}: {rows} match the source, max difference {tally.largest}{copied}")]


def _pruned_earlier(evidence: Evidence, layers: int | None) -> list[Finding]:
    """Check the pruning record of a checkpoint whose source was already pruned."""
    try:
        record = read_record(evidence.root)
    except UsageError as error:
        return [bad(CHECK, error.what, why="the kept experts are unknown", fix=f"{error.fix}: {error.where}")]
    if record is None:
        return []
    wrong = _disagreements(evidence, of_layers(record.plan, layers).kept())
    if wrong:
        text, fix = "the pruning record and the checkpoint disagree", f"restore {FOLDER}/{PRUNE_PLAN}"
        return [bad(CHECK, text, why=_WHY, fix=fix, examples=wrong)]
    return [good(CHECK, f"{record.sentence}, {_config(evidence)}; to check rows and experts, audit its source")]


def _disagreements(evidence: Evidence, kept: Kept) -> list[str]:
    """Return the contradictions between the plan, the tensors and config.json."""
    wrong: list[str] = []
    family, config = evidence.model.family, evidence.checkpoint.config
    counts = sorted({len(experts) for experts in kept.values()})
    declared, listed = family.number(config, "experts"), family.text(config).get(PER_LAYER)
    if declared != counts[-1]:
        keeps = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        wrong.append(f"config.json declares {declared} experts, the plan keeps {keeps}")
    layers = family.number(config, "layers") or 0
    if listed != counts_by_layer(kept, max(layers, *(layer + 1 for layer in kept))):
        wrong.append(f"{PER_LAYER} in config.json differs from the kept experts per layer in the plan")
    stored: dict[int, set[int]] = {}
    for linear in evidence.model.linears.values():
        if linear.layer is not None and linear.expert is not None:
            stored.setdefault(linear.layer, set()).add(linear.expert)
    for layer in sorted({*stored, *kept}):
        if stored.get(layer, set()) != set(range(len(kept.get(layer, ())))):
            wrong.append(
                f"layer {layer} has {len(stored.get(layer, ()))} experts, the plan keeps {len(kept.get(layer, ()))}"
            )
    for name, (place, info) in evidence.model.plain.items():
        experts = kept_in(kept, place.layer)
        if place.role == ROUTER and experts is not None and info.shape[:1] != (len(experts),):
            wrong.append(f"{name} has the shape {list(info.shape)}, the plan keeps {len(experts)} experts")
    return wrong


def _layers(kept: Kept) -> str:
    layers = sorted(kept)
    return f"{len(layers)} layers" if len(layers) > 1 else "1 layer"


def _config(evidence: Evidence) -> str:
    """Return the router settings of config.json as key=value pairs."""
    family, config = evidence.model.family, evidence.checkpoint.config
    settings = {family.keys[key]: family.number(config, key) for key in _CONFIG_KEYS if family.keys[key]}
    settings["topk_group"] = family.text(config).get("topk_group")
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


def _compare(evidence: Evidence, kept: Kept) -> _Tally:
    assert evidence.plan is not None
    tally = _Tally()
    with Reader(evidence.plan.checkpoint) as source, Reader(evidence.checkpoint) as output:
        for job in evidence.plan.jobs:
            experts = kept_in(kept, job.layer)
            if experts is None:
                continue
            if job.role == ROUTER:
                _compare_rows(evidence, job, source, output, experts, tally)
            elif job.role == ROUTED:
                for name, before, after in pairs(job, evidence.checkpoint.tensors):
                    tally.tensors, tally.nbytes = tally.tensors + 1, tally.nbytes + after.nbytes
                    if not same_bytes(source, before, output, after):
                        tally.wrong_tensors += 1
                        tally.wrong.append(f"{name} is not the source's {before.name}")
    return tally


def pairs(job: Job, written: Mapping[str, TensorInfo]) -> Iterator[tuple[str, TensorInfo, TensorInfo]]:
    """Yield each tensor that a job copies as a whole: its name and its TensorInfo in source and output.

    Missing tensors and wrong shapes are skipped, because the structure check reports them.
    """
    for name, stretches in job.copies():
        after = written.get(name)
        if len(stretches) == 1 and after is not None:
            before = stretches[0]
            if (after.dtype, after.shape) == (before.dtype, before.shape):
                yield name, before, after


def _compare_rows(
    evidence: Evidence, job: Job, source: Reader, output: Reader, experts: tuple[int, ...], tally: _Tally
) -> None:
    """Compare a router tensor row by row; name the expert that a wrong row belongs to, if any."""
    name, stretches = next(job.copies())
    assert evidence.plan is not None
    whole, after = evidence.plan.checkpoint.tensors[stretches[0].name], evidence.checkpoint.tensors.get(name)
    if after is None or after.shape[:1] != (len(experts),) or after.dtype != whole.dtype:
        return
    before, rows = _rows(source, whole), _rows(output, after)
    leaf = ".".join(name.rpartition(".layers.")[2].split(".")[-2:])
    tally.rows[leaf] = tally.rows.get(leaf, 0) + len(experts)
    if np.array_equal(rows, before[list(experts)]):
        return
    owners = {source_row.tobytes(): number for number, source_row in enumerate(before)}
    for row, expert in enumerate(experts):
        if rows[row].tobytes() == before[expert].tobytes():
            continue
        values = [_values(side, whole.dtype) for side in (rows[row], before[expert])]
        difference = float(np.abs(values[0] - values[1]).max())
        tally.largest = max(tally.largest, difference if np.isfinite(difference) else float("inf"))
        other = owners.get(rows[row].tobytes())
        actual = f"is that of expert {other}" if other is not None else f"differs by {difference:.3g}"
        tally.wrong_rows += 1
        tally.wrong.append(f"{name}: row {row} should be that of the source's expert {expert}, but {actual}")


def _rows(reader: Reader, info: TensorInfo) -> NDArray[Any]:
    """Read a tensor as rows; a vector has rows of one element."""
    parts = [reader.raw(chunk) for chunk in chunks(info)]
    return np.concatenate(parts).reshape(info.shape[0], -1)


def _values(row: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return bf16_to_f32(row.view(np.uint16)).astype(np.float64)
    return row.view({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype]).astype(np.float64)


def loops(evidence: Evidence) -> list[Finding]:
    """Read the recorded result; `halfbyte loops OUT --against SRC` runs the test."""
    if evidence.recorded is None:
        return []
    command, when = f"halfbyte loops {evidence.root} --against SRC", ""
    try:
        if evidence.recorded.recipe.prune is not None:
            result = Loops.read(evidence.root / FOLDER / Loops.file)
        else:
            record = read_record(evidence.root)
            if record is None:
                return []
            result, when = None if record.loops is None else Loops.of(record.loops), " (measured on its pruned source)"
    except FileNotFoundError:
        result = None
    except (InvalidRecordError, UsageError):
        return [note(_LOOPS, f"{FOLDER}/{Loops.file} cannot be read; {command}")]
    if result is None:
        return [note(_LOOPS, f"not measured; {command}")]
    text = f"{result.loops} of {result.texts} texts loop, {result.short} end after a few words{when}"
    if result.level == "bad":
        why = "the source loops less often: open-ended answers may never end"
        fix = "keep or restore more experts (halfbyte prune --restore), then repeat the test"
        return [bad(_LOOPS, text, why=why, fix=fix)]
    if result.level == "good":
        return [good(_LOOPS, text)]
    return [note(_LOOPS, f"{text}: too few texts for a verdict; {command}")]
