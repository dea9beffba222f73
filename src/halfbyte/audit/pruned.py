"""What pruning promises: each kept expert, each row of a router and each bias is the source's, as the plan names it.

Nobody else publishes this: a shard rewriter that is off by one row makes a model that loads, answers, and is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.audit.byte_checks import chunks, same_bytes
from halfbyte.audit.evidence import Evidence
from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note
from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER
from halfbyte.models.agreement import PER_LAYER
from halfbyte.numerics.reference.floats import bf16_to_f32
from halfbyte.plan.pruned import Kept, counts_by_layer, kept_in
from halfbyte.plan.rules import ROUTED, ROUTER, Job
from halfbyte.prune.decide import of_layers
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.prune.record import read_record
from halfbyte.source.headers import TensorInfo
from halfbyte.source.read import Reader

CHECK = "prune"
_WHY = "a row in another expert's place loads and answers: the model is wrong, and nothing says so"
_SAID = ("experts", "active_experts", "groups")  # of config.json, besides topk_group


@dataclass(slots=True)
class _Tally:
    """What was compared so far."""

    rows: dict[str, int] = field(default_factory=dict[str, int])  # of routers, by the name of their tensor
    tensors: int = 0
    nbytes: int = 0
    largest: float = 0.0  # difference of two rows
    wrong_rows: int = 0
    wrong_tensors: int = 0
    wrong: list[str] = field(default_factory=list[str])


def prune(evidence: Evidence) -> list[Finding]:
    """Every kept gate row, bias entry and expert tensor is that of the source's expert which the plan names."""
    if evidence.made is None:
        return []
    if evidence.made.recipe.prune is None:
        return _before(evidence, evidence.made.layers)
    if (problem := evidence.problems.get(PRUNE_PLAN)) is not None:
        return [bad(CHECK, problem, why="nobody can say which experts these are", fix=f"restore {FOLDER}/{PRUNE_PLAN}")]
    kept = evidence.made.kept
    assert kept is not None
    wrong = _disagreements(evidence, kept)
    if wrong:
        return [bad(CHECK, "the plan and the checkpoint disagree", why=_WHY, fix=RUN_AGAIN, examples=wrong)]
    head = f"{_layers(kept)} of {_config(evidence)}"
    if evidence.plan is None:
        return [note(CHECK, f"{head}; rows and experts not compared: give --against SRC")]
    tally = _compare(evidence, kept)
    if tally.wrong:
        rows, experts = count(tally.wrong_rows, "router row"), count(tally.wrong_tensors, "expert tensor")
        text = f"{rows} and {experts} not the source's"
        text += f", max difference {tally.largest}" if tally.wrong_rows else ""
        return [bad(CHECK, text, why=_WHY, fix=RUN_AGAIN, examples=tally.wrong)]
    rows = " and ".join(f"{number:,} rows of {name}" for name, number in tally.rows.items())
    experts = f"{count(tally.tensors, 'expert tensor')} ({tally.nbytes:,} bytes)"
    made = f", {experts} identical" if tally.tensors else ", experts made anew (see repeat)"
    return [good(CHECK, f"{head}: {rows} match the source, max difference {tally.largest}{made}")]


def _before(evidence: Evidence, layers: int | None) -> list[Finding]:
    """Say of a checkpoint that was made of a pruned one what its record says, and whether that can be true."""
    try:
        record = read_record(evidence.root)
    except UsageError as error:
        return [bad(CHECK, error.what, why="nobody can say which experts these are", fix=f"{error.fix}: {error.where}")]
    if record is None:
        return []
    wrong = _disagreements(evidence, of_layers(record.plan, layers).kept())
    if wrong:
        text, fix = "the record of the pruning and the checkpoint disagree", f"restore {FOLDER}/{PRUNE_PLAN}"
        return [bad(CHECK, text, why=_WHY, fix=fix, examples=wrong)]
    return [good(CHECK, f"{record.sentence}, {_config(evidence)}; rows and experts: audit the one that it was made of")]


def _disagreements(evidence: Evidence, kept: Kept) -> list[str]:
    """Return what the plan, the tensors and config.json say against each other."""
    wrong: list[str] = []
    architecture, config = evidence.model.architecture, evidence.checkpoint.config
    counts = sorted({len(experts) for experts in kept.values()})
    said, listed = architecture.number(config, "experts"), architecture.text(config).get(PER_LAYER)
    if said != counts[-1]:
        keeps = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        wrong.append(f"config.json says {said} experts, the plan keeps {keeps}")
    layers = architecture.number(config, "layers") or 0
    if listed != counts_by_layer(kept, max(layers, *(layer + 1 for layer in kept))):
        wrong.append(f"{PER_LAYER} of config.json is not what the plan keeps in each layer")
    found: dict[int, set[int]] = {}
    for linear in evidence.model.linears.values():
        if linear.layer is not None and linear.expert is not None:
            found.setdefault(linear.layer, set()).add(linear.expert)
    for layer in sorted({*found, *kept}):
        if found.get(layer, set()) != set(range(len(kept.get(layer, ())))):
            wrong.append(
                f"layer {layer} has {len(found.get(layer, ()))} experts, the plan keeps {len(kept.get(layer, ()))}"
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
    """Return the numbers of the router as config.json has them, under its own names."""
    architecture, config = evidence.model.architecture, evidence.checkpoint.config
    said = {architecture.keys[key]: architecture.number(config, key) for key in _SAID if architecture.keys[key]}
    said["topk_group"] = architecture.text(config).get("topk_group")
    return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)


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
    """Yield what a job passes on whole: its name, its place in the source and its place in the output.

    What is missing or misshapen is left out: the structure check says so.
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
    """Compare a router's tensor row by row; say whose a wrong row is, if it is another's."""
    name, stretches = next(job.copies())
    assert evidence.plan is not None
    whole, after = evidence.plan.checkpoint.tensors[stretches[0].name], evidence.checkpoint.tensors.get(name)
    if after is None or after.shape[:1] != (len(experts),) or after.dtype != whole.dtype:
        return
    before, found = _rows(source, whole), _rows(output, after)
    leaf = ".".join(name.rpartition(".layers.")[2].split(".")[-2:])
    tally.rows[leaf] = tally.rows.get(leaf, 0) + len(experts)
    if np.array_equal(found, before[list(experts)]):
        return
    owners = {one.tobytes(): number for number, one in enumerate(before)}
    for row, expert in enumerate(experts):
        if found[row].tobytes() == before[expert].tobytes():
            continue
        values = [_values(side, whole.dtype) for side in (found[row], before[expert])]
        difference = float(np.abs(values[0] - values[1]).max())
        tally.largest = max(tally.largest, difference if np.isfinite(difference) else float("inf"))
        other = owners.get(found[row].tobytes())
        whose = f"is that of expert {other}" if other is not None else f"differs by {difference:.3g}"
        tally.wrong_rows += 1
        tally.wrong.append(f"{name}: row {row} should be that of the source's expert {expert}, and {whose}")


def _rows(reader: Reader, info: TensorInfo) -> NDArray[Any]:
    """Read a tensor as its rows; one that is a vector has rows of one element."""
    parts = [reader.raw(chunk) for chunk in chunks(info)]
    return np.concatenate(parts).reshape(info.shape[0], -1)


def _values(row: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return bf16_to_f32(row.view(np.uint16)).astype(np.float64)
    return row.view({"F32": np.float32, "F16": np.float16, "F64": np.float64}[dtype]).astype(np.float64)
