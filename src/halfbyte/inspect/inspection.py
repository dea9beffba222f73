"""Inspect a checkpoint from its headers: roles, formats, sizes and consistency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import translate
from fractions import Fraction
from pathlib import Path
from re import compile as compile_pattern
from typing import TYPE_CHECKING, Any

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.remote.address import is_remote, refuse_hub_id
from halfbyte.errors import UsageError
from halfbyte.families.config_agreement import stored_as_declared
from halfbyte.families.examples import example
from halfbyte.families.linears import StoredLinear
from halfbyte.families.model import Model, describe
from halfbyte.formats.registry import FORMATS
from halfbyte.inspect.recipe_sizes import Gain, encoded, gains
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.checkpoint.remote.address import Cache
    from halfbyte.ui.console import Level

# Roles without active parameters: embeddings are lookups, images are rare, buffers are not parameters.
_NOT_ACTIVE = ("embed", "vision", "projector", "other_buffers")
_RECORDS = "halfbyte"  # `output_folder.FOLDER`, whose module loads NumPy
_FOUR_BITS = 4


@dataclass(frozen=True, slots=True)
class RoleRow:
    """Totals of all tensors of one role."""

    role: str
    parameters: int
    stored_as: tuple[str, ...]
    bits_per_weight: float | None  # None if the role has no parameters
    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of `halfbyte inspect`.

    `parameters` counts the model's parameters, independent of their bit width; `elements` counts the stored tensor
    elements, which the Hub shows as the parameter count of a 4-bit checkpoint.
    """

    source: str
    family: str
    parameters: int
    vision_parameters: int
    active_parameters: int
    elements: int
    nbytes: int
    header_nbytes: int
    tensors: int
    shards: int
    layers: int
    dense_layers: int
    experts: int
    active_experts: int
    shared_experts: int
    roles: tuple[RoleRow, ...]
    recipes: tuple[Gain, ...]
    verdicts: tuple[tuple[Level, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        value = asdict(self)
        value["verdicts"] = [{"level": level, "text": text} for level, text in self.verdicts]
        return value


def open_source(source: str | None, example_name: str | None, cache: Cache | None = None) -> Checkpoint:
    """Open a folder, an address such as hf://organization/name, or an example."""
    if (source is None) == (example_name is None):
        what = "no checkpoint specified" if source is None else "a checkpoint and an example cannot be combined"
        raise UsageError(what, where="SRC", fix="pass the folder of a checkpoint, or --example kimi-k2.6")
    if example_name is not None:
        return example(example_name)
    assert source is not None
    if is_remote(source):
        from halfbyte.checkpoint.remote.mirror import open_remote  # noqa: PLC0415 - most sources are folders

        assert cache is not None
        return open_remote(source, cache)
    refuse_hub_id(source)
    return open_checkpoint(Path(source))


def inspect(checkpoint: Checkpoint, *, uneven: bool = False) -> Inspection:
    """Inspect a checkpoint; CheckpointError if it is incomplete. `uneven` allows different expert counts per layer."""
    model = describe(checkpoint, uneven=uneven)
    roles = _roles(model)
    parameters = {row.role: row.parameters for row in roles}
    pruned = _pruned(checkpoint)
    header_nbytes = sum(checkpoint.shards.values()) - checkpoint.nbytes
    each = Fraction(header_nbytes, max(1, len(checkpoint.tensors)))
    return Inspection(
        source=checkpoint.name,
        family=model.family.title,
        parameters=sum(parameters.values()),
        vision_parameters=parameters.get("vision", 0)
        + (parameters.get("projector", 0) if "vision" in parameters else 0),
        active_parameters=_active(model, checkpoint),
        elements=sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()),
        nbytes=checkpoint.nbytes,
        header_nbytes=header_nbytes,
        tensors=len(checkpoint.tensors),
        shards=len(checkpoint.shards),
        layers=model.layers,
        dense_layers=model.layers - len(model.moe_layers),
        experts=model.experts,
        active_experts=model.active_experts,
        shared_experts=model.shared_experts,
        roles=roles,
        recipes=tuple(gains(model, pruned=bool(pruned), header_nbytes=each)),
        verdicts=(*_agreements(checkpoint, model), *pruned, *_advice(model)),
    )


def recommended(inspection: Inspection) -> str | None:
    """Return the smallest recipe that applies and keeps every expert, or None."""
    return next((gain.recipe for gain in inspection.recipes if gain.nbytes is not None and not gain.prunes), None)


def matching_tensors(checkpoint: Checkpoint, pattern: str) -> list[dict[str, Any]]:
    """Return the tensors whose names match a glob, with their roles, sorted by name."""
    matches = compile_pattern(translate(pattern)).match
    names = sorted(name for name in checkpoint.tensors if matches(name))
    if not names:
        first = next(iter(checkpoint.tensors))
        raise UsageError(f"no tensor matches '{pattern}'", where="--tensors", fix=f"example of a name: '{first}'")
    model = describe(checkpoint)
    rows: list[dict[str, Any]] = []
    for name in names:
        tensor, place = checkpoint.tensors[name], model.family.place(name)
        linear = model.linears.get(place.module)
        rows.append(
            {
                "name": name,
                "role": place.role,
                "format": linear.format if linear else None,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "nbytes": tensor.nbytes,
                "shard": tensor.shard,
            }
        )
    return rows


def _roles(model: Model) -> tuple[RoleRow, ...]:
    parameters: Counter[str] = Counter()
    nbytes: Counter[str] = Counter()
    tensors: Counter[str] = Counter()
    stored: dict[str, Counter[str]] = {}
    for linear, number in model.kinds():
        bias = linear.parts.get("bias")
        parameters[linear.role] += number * (linear.weights + (bias.shape[0] if bias else 0))
        nbytes[linear.role] += number * linear.nbytes
        tensors[linear.role] += number * len(linear.parts)
        stored.setdefault(linear.role, Counter())[_stored_as(linear)] += number * linear.nbytes
    for place, tensor in model.plain.values():
        parameters[place.role] += 0 if place.role == "other_buffers" else math.prod(tensor.shape)
        nbytes[place.role] += tensor.nbytes
        tensors[place.role] += 1
        stored.setdefault(place.role, Counter())[tensor.dtype.lower()] += tensor.nbytes
    rows = [
        RoleRow(
            role=role,
            parameters=parameters[role],
            stored_as=tuple(name for name, _ in stored[role].most_common()),
            bits_per_weight=8 * nbytes[role] / parameters[role] if parameters[role] else None,
            tensors=tensors[role],
            nbytes=nbytes[role],
        )
        for role in nbytes
    ]
    return tuple(sorted(rows, key=lambda row: -row.nbytes))


def _stored_as(linear: StoredLinear) -> str:
    return f"{linear.format} g{linear.group}" if FORMATS[linear.format].groups else linear.format


def _active(model: Model, checkpoint: Checkpoint) -> int:
    """Return the number of active parameters per token, without multi-token prediction layers."""
    ordinary = model.family.number(checkpoint.config, "layers") or model.layers
    total = 0
    experts: Counter[int] = Counter()  # weights by layer: expert counts may differ
    last: Counter[int] = Counter()
    for linear in model.linears.values():
        if linear.layer is not None and linear.layer >= ordinary:
            continue
        if linear.expert is not None and linear.layer is not None:
            experts[linear.layer] += linear.weights
            last[linear.layer] = max(last[linear.layer], linear.expert)
        else:
            total += linear.weights
    for place, tensor in model.plain.values():
        if place.role not in _NOT_ACTIVE and (place.layer is None or place.layer < ordinary):
            total += math.prod(tensor.shape)
    return total + sum(weights * model.active_experts // (last[layer] + 1) for layer, weights in experts.items())


def _agreements(checkpoint: Checkpoint, model: Model) -> list[tuple[Level, str]]:
    """Report the verified properties; an incomplete checkpoint has raised an error before."""
    shards, tensors = len(checkpoint.shards), len(checkpoint.tensors)
    where = f"{shards} of {shards} shards agree with the index" if shards > 1 else "one shard"
    verdicts: list[tuple[Level, str]] = [
        ("good", f"{where}; each of the {tensors:,} tensors has a role"),
        ("good", "config.json agrees with the tensors in layers, experts and widths"),
        stored_as_declared(checkpoint, model),
    ]
    total = checkpoint.index_nbytes
    if total is not None and total != checkpoint.nbytes:
        text = f"the index gives {total:,} bytes for all tensors, but they have {checkpoint.nbytes:,}"
        verdicts.append(("note", text))
    strays = checkpoint.stray_shards()
    if strays:
        more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
        verdicts.append(("note", f"'{strays[0]}'{more} in the folder, but not in the index: ignored"))
    return verdicts


def _pruned(checkpoint: Checkpoint) -> list[tuple[Level, str]]:
    """Report the folder's pruning record; warnings become notes, because nothing is checked here."""
    if not (checkpoint.root / _RECORDS).is_dir():
        return []
    from halfbyte.plan.prune_record import read_record  # noqa: PLC0415 - loads NumPy
    from halfbyte.prune.report import sentences  # noqa: PLC0415

    try:
        record = read_record(checkpoint.root)
    except UsageError as error:
        return [("note", f"{error.what}: {error.where}")]
    if record is None:
        return []
    texts = [record.sentence, *(advice.text for advice in sentences(record.plan) if advice.level == "bad")]
    loops = record.loops
    if loops is not None and loops.get("flagged"):
        texts.append(f"the pruned model loops in {loops.get('loops')} of {loops.get('texts')} texts")
    return [("note", text) for text in texts]


def _advice(model: Model) -> list[tuple[Level, str]]:
    """Report how much 4-bit formats would still save if the experts are already 4-bit."""
    experts = Counter((linear.format, linear.shape) for linear in model.linears.values() if linear.expert is not None)
    if not experts or any(FORMATS[format].element.bits != _FOUR_BITS for format, _ in experts):
        return []
    before = sum(number * encoded(format, shape).nbytes for (format, shape), number in experts.items())
    saved: Mapping[str, int] = {
        target: before - sum(number * encoded(target, shape).nbytes for (_, shape), number in experts.items())
        for target in ("nvfp4", "mxfp4")
    }
    change = f"{'saves' if saved['nvfp4'] > 0 else 'costs'} {size(abs(saved['nvfp4']))}"
    nvfp4 = "keeps the size" if abs(saved["nvfp4"]) < before / 1000 else change
    mxfp4 = f"saves {size(saved['mxfp4'])}" if saved["mxfp4"] > before / 1000 else "saves nothing"
    formats = {format.removesuffix("_ct") for format, _ in experts}
    if formats == {"nvfp4"}:
        text = f"the experts are already NVFP4; mxfp4 {mxfp4}"
    else:
        text = f"the experts are already 4-bit: nvfp4 {nvfp4} and enables FP4 tensor cores, mxfp4 {mxfp4}"
    return [("note", text)]
