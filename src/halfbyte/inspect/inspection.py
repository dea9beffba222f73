"""What a checkpoint is, from its headers alone: roles, formats, sizes, and whether its parts agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import translate
from pathlib import Path
from re import compile as compile_pattern
from typing import TYPE_CHECKING, Any

from halfbyte.errors import UsageError
from halfbyte.inspect.gains import Gain, encoded, gains
from halfbyte.models.declared import stored_as_declared
from halfbyte.models.linears import StoredLinear
from halfbyte.models.model import Model, describe
from halfbyte.source.checkpoint import Checkpoint, open_checkpoint
from halfbyte.source.example import example
from halfbyte.source.remote.address import is_remote
from halfbyte.terminal.units import size

if TYPE_CHECKING:
    from halfbyte.source.remote.cache import Cache
    from halfbyte.terminal.console import Level

# What a token does not pass through: embeddings are looked up, images are rare, buffers are no parameters.
_NOT_ACTIVE = ("embed", "vision", "projector", "other_buffers")
_RECORDS = "halfbyte"  # `folders.FOLDER`, whose module loads NumPy
_FOUR_BIT = ("int4", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct")


@dataclass(frozen=True, slots=True)
class RoleRow:
    """All tensors of one role together."""

    role: str
    parameters: int
    stored_as: tuple[str, ...]
    bits_per_weight: float | None  # none: nothing here is a parameter
    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The answer of `halfbyte inspect`.

    `parameters` are counted as people count them, however many bits each has; `elements` are those of the stored
    tensors, which is what the Hub shows for a 4-bit checkpoint.
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
    """Return the checkpoint that a user named: a folder, an address like hf://organisation/name, or an example."""
    if (source is None) == (example_name is None):
        what = "no checkpoint is named" if source is None else "a checkpoint and an example are both named"
        raise UsageError(what, where="SRC", fix="give the folder of a checkpoint, or --example kimi-k2.6")
    if example_name is not None:
        return example(example_name)
    assert source is not None
    if is_remote(source):
        from halfbyte.source.remote.mirror import open_remote  # noqa: PLC0415 - most sources are folders

        assert cache is not None
        return open_remote(source, cache)
    return open_checkpoint(Path(source))


def inspect(checkpoint: Checkpoint, *, uneven: bool = False) -> Inspection:
    """Describe a checkpoint; CheckpointError where it is not whole. With `uneven`, layers may differ in experts."""
    model = describe(checkpoint, uneven=uneven)
    roles = _roles(model)
    parameters = {row.role: row.parameters for row in roles}
    pruned = _pruned(checkpoint)
    return Inspection(
        source=checkpoint.name,
        family=model.architecture.title,
        parameters=sum(parameters.values()),
        vision_parameters=parameters.get("vision", 0)
        + (parameters.get("projector", 0) if "vision" in parameters else 0),
        active_parameters=_active(model, checkpoint),
        elements=sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values()),
        nbytes=checkpoint.nbytes,
        header_nbytes=sum(checkpoint.shards.values()) - checkpoint.nbytes,
        tensors=len(checkpoint.tensors),
        shards=len(checkpoint.shards),
        layers=model.layers,
        dense_layers=model.layers - len(model.moe_layers),
        experts=model.experts,
        active_experts=model.active_experts,
        shared_experts=model.shared_experts,
        roles=roles,
        recipes=tuple(gains(model, pruned=bool(pruned))),
        verdicts=(*_agreements(checkpoint, model), *pruned, *_advice(model)),
    )


def matching_tensors(checkpoint: Checkpoint, pattern: str) -> list[dict[str, Any]]:
    """Return the tensors whose names match a glob, with their roles, in the order of their names."""
    fits = compile_pattern(translate(pattern)).match
    names = sorted(name for name in checkpoint.tensors if fits(name))
    if not names:
        first = next(iter(checkpoint.tensors))
        raise UsageError(f"no tensor matches '{pattern}'", where="--tensors", fix=f"names look like '{first}'")
    model = describe(checkpoint)
    rows: list[dict[str, Any]] = []
    for name in names:
        tensor, place = checkpoint.tensors[name], model.architecture.place(name)
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
    return f"{linear.format} g{linear.group}" if linear.format == "int4" else linear.format


def _active(model: Model, checkpoint: Checkpoint) -> int:
    """Return the parameters that one token passes through; layers for multi-token prediction are beside its way."""
    ordinary = model.architecture.number(checkpoint.config, "layers") or model.layers
    total = 0
    experts: Counter[int] = Counter()  # weights by layer, which may differ in their number of experts
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
    """Say what was proven; whatever is not whole has been an error before."""
    shards, tensors = len(checkpoint.shards), len(checkpoint.tensors)
    where = f"{shards} of {shards} shards agree with the index" if shards > 1 else "one shard"
    found: list[tuple[Level, str]] = [
        ("good", f"{where}; each of the {tensors:,} tensors has a role"),
        ("good", "config.json agrees with the tensors in layers, experts and widths"),
        stored_as_declared(checkpoint, model),
    ]
    total = checkpoint.index_nbytes
    if total is not None and total != checkpoint.nbytes:
        text = f"the index says that the tensors take {total:,} bytes; they take {checkpoint.nbytes:,}"
        found.append(("note", text))
    strays = checkpoint.stray_shards()
    if strays:
        more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
        found.append(("note", f"'{strays[0]}'{more} is in the folder, but in no index: it is not read"))
    return found


def _pruned(checkpoint: Checkpoint) -> list[tuple[Level, str]]:
    """Say what the folder records of its pruning; what warned then is a note here, where nothing is checked."""
    if not (checkpoint.root / _RECORDS).is_dir():
        return []
    from halfbyte.prune.record import read_record  # noqa: PLC0415 - NumPy, which only these need
    from halfbyte.prune.report import sentences  # noqa: PLC0415

    try:
        record = read_record(checkpoint.root)
    except UsageError as error:
        return [("note", f"{error.what}: {error.where}")]
    if record is None:
        return []
    found = [record.sentence, *(advice.text for advice in sentences(record.plan) if advice.level == "bad")]
    loops = record.loops
    if loops is not None and loops.get("flagged"):
        found.append(f"the pruned model loops in {loops.get('loops')} of {loops.get('texts')} texts")
    return [("note", text) for text in found]


def _advice(model: Model) -> list[tuple[Level, str]]:
    """Say before anyone spends a night what 4 bits would still save."""
    experts = Counter((linear.format, linear.shape) for linear in model.linears.values() if linear.expert is not None)
    if not experts or not {format for format, _ in experts} <= set(_FOUR_BIT):
        return []
    before = sum(number * encoded(format, shape).nbytes for (format, shape), number in experts.items())
    saved: Mapping[str, int] = {
        target: before - sum(number * encoded(target, shape).nbytes for (_, shape), number in experts.items())
        for target in ("nvfp4", "mxfp4")
    }
    change = f"{'saves' if saved['nvfp4'] > 0 else 'costs'} {size(abs(saved['nvfp4']))}"
    nvfp4 = "keeps the size" if abs(saved["nvfp4"]) < before / 1000 else change
    mxfp4 = f"saves {size(saved['mxfp4'])}" if saved["mxfp4"] > before / 1000 else "saves nothing"
    text = f"experts are 4-bit already: nvfp4 {nvfp4} and buys FP4 tensor cores, mxfp4 {mxfp4}"
    return [("note", text)]
