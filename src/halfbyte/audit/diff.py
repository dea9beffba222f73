"""Compare two checkpoints tensor by tensor: same bytes, same value, different, or missing on one side.

Linears are compared by value: an INT4 expert and a BF16 expert are the same if one decodes to the other. Zero and minus
zero are the same value.

A pruned checkpoint records its kept experts and the identity of its source. If the source is the other checkpoint,
experts are compared by their source index, and routers by their kept rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from halfbyte.audit.byte_checks import chunks, same_bytes
from halfbyte.audit.explain_diff import Change, Explained, Origin, explain, origin
from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.identity import identity, short_name
from halfbyte.checkpoint.reader import NUMPY_DTYPES, Reader
from halfbyte.errors import UsageError
from halfbyte.families.family import COMPANIONS
from halfbyte.families.linears import StoredLinear, read_linear
from halfbyte.families.model import Model, describe
from halfbyte.formats.codec import decode
from halfbyte.formats.encoded import Array
from halfbyte.formats.reference.floats import bf16_to_f32
from halfbyte.plan.prune_plan import PrunePlan
from halfbyte.plan.prune_record import read_record
from halfbyte.plan.pruned import Kept, kept_in, pruned_linears, router_rows
from halfbyte.plan.rules import ROUTER

_FLOATS = frozenset(("BF16", "F16", "F32"))
_SHOWN = 5
Item = StoredLinear | TensorInfo


@dataclass(frozen=True, slots=True)
class Renumbered:
    """Which of A and B is pruned, and how."""

    pruned: str
    plan: PrunePlan

    @property
    def whole(self) -> str:
        """Return the name of the unpruned checkpoint."""
        return "A" if self.pruned == "B" else "B"

    def sentence(self) -> str:
        """Describe the dropped and kept experts."""
        counts, layers = set(self.plan.counts().values()), f"in each of {len(self.plan.layers)} layers"
        if len(counts) > 1:
            return f"{self.plan.counted()} experts kept and renumbered {layers}"
        kept = counts.pop()
        return f"{self.plan.experts - kept} of {self.plan.experts} experts dropped, {kept} renumbered {layers}"

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for --json."""
        counts = {str(layer): count for layer, count in self.plan.counts().items()}
        return {"pruned": self.pruned, "experts": self.plan.experts, "kept": counts}


def renumbering(a: Checkpoint, b: Checkpoint) -> Renumbered | None:
    """Return the mapping if one is a recorded pruned version of the other, else None."""
    for name, pruned, whole in (("B", b, a), ("A", a, b)):
        try:
            record = read_record(pruned.root)
        except UsageError:  # reported by `audit`
            continue
        if record is not None and record.weights == short_name(identity(whole)):
            return Renumbered(name, record.plan)
    return None


def cut_routers(model: Model, plan: PrunePlan) -> Mapping[str, tuple[TensorInfo, ...]]:
    """Return the source ranges of the kept rows of each router."""
    kept = plan.kept()
    routers: dict[str, tuple[TensorInfo, ...]] = {}
    for name, (place, info) in model.plain.items():
        experts = kept_in(kept, place.layer)
        if place.role == ROUTER and experts is not None:
            routers[name] = router_rows(info, experts)
    return routers


def read_rows(reader: Reader, stretches: tuple[TensorInfo, ...]) -> NDArray[np.uint8]:
    """Read and concatenate ranges of a tensor."""
    return np.concatenate([reader.raw(stretch).reshape(-1) for stretch in stretches])


def cut_shape(stretches: tuple[TensorInfo, ...]) -> tuple[int, ...]:
    """Return the shape of the concatenated ranges."""
    return (sum(stretch.shape[0] for stretch in stretches), *stretches[0].shape[1:])


@dataclass(frozen=True, slots=True)
class Difference:
    """A linear or tensor that differs, and its largest difference; None if the values cannot be compared."""

    name: str
    reason: str
    max_abs: float | None
    squares: tuple[float, float, float] | None = None  # sums over A's values, B's values and their difference

    def sentence(self) -> str:
        """Describe the difference."""
        return f"{self.name}: {self.reason}" + (f", at most {self.max_abs:.4g} apart" if self.max_abs else "")


@dataclass(frozen=True, slots=True)
class Diff:
    """The comparison of two checkpoints; counts are of whole linears and other tensors."""

    same_bytes: int
    same_value: int
    different: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    renumbered: Renumbered | None = None  # set if one is the other, pruned; dropped experts are not counted
    explained: Explained | None = None  # by the plan of the output, if one was made from the other

    @property
    def planned(self) -> bool:
        """Whether there is a plan that explains every difference."""
        return self.explained is not None and not self.explained.unexplained

    @property
    def kept_equal(self) -> bool:
        """Whether there are no differences apart from dropped experts."""
        return not (self.different or self.only_a or self.only_b)

    @property
    def equal(self) -> bool:
        """Whether both are the same model."""
        return self.kept_equal and self.renumbered is None

    def verdict(self) -> str:
        """Describe how two unequal checkpoints differ."""
        if self.explained is not None and self.explained.unexplained:
            number = len(self.explained.unexplained)
            noun = "difference" if number == 1 else "differences"
            return f"{number:,} {noun} not explained by the plan of {self.explained.output}"
        if self.renumbered is None or not self.kept_equal:
            return "the checkpoints are not the same model"
        return (
            f"{self.renumbered.pruned} is {self.renumbered.whole} without some experts; all kept tensors are the same"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for --json."""
        different = [
            {"name": d.name, "reason": d.reason, "max_abs_difference": _finite(d.max_abs)} for d in self.different
        ]
        return {
            "equal": self.equal,
            "renumbered": None
            if self.renumbered is None
            else {**self.renumbered.as_dict(), "kept_equal": self.kept_equal},
            "same_bytes": self.same_bytes,
            "same_value": self.same_value,
            "different": different,
            "only_in_a": list(self.only_a),
            "only_in_b": list(self.only_b),
            "planned": self.planned,
            "explained": None if self.explained is None else _finite_numbers(self.explained.as_dict()),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines to print: counts, and the first names of differing tensors."""
        shown = [] if self.renumbered is None else [("pruned", self._pruned(self.renumbered))]
        shown += [("same bytes", f"{self.same_bytes:,}"), ("same value", f"{self.same_value:,}")]
        shown.append(("different", f"{len(self.different):,}"))
        if self.explained is None:  # `explained` lists the unexplained ones
            shown += [("", difference.sentence()) for difference in self.different[:_SHOWN]]
        for label, names in (("only in A", self.only_a), ("only in B", self.only_b)):
            shown.append((label, f"{len(names):,}"))
            shown += [("", name) for name in names[:_SHOWN]]
        if self.explained is not None and not (self.equal and self.planned and not self.explained.config):
            shown += self.explained.lines(_SHOWN)
        return shown

    def _pruned(self, renumbered: Renumbered) -> str:
        """Describe the dropped experts and whether the kept tensors are the same."""
        kept = "the kept tensors differ"
        if self.kept_equal:
            kept = f"all kept {'values' if self.same_value else 'bytes'} equal"
        return f"{renumbered.pruned}: {renumbered.sentence()}; {kept}"


def _finite(number: float | None) -> float | None:
    """Return None for NaN and infinity, which JSON does not support."""
    return number if number is not None and math.isfinite(number) else None


def _finite_numbers(value: Any) -> Any:
    """Replace NaN and infinity by None in nested dictionaries."""
    if isinstance(value, dict):
        return {key: _finite_numbers(inner) for key, inner in cast("dict[str, Any]", value).items()}
    return _finite(value) if isinstance(value, float) else value


def diff(a: Path, b: Path) -> Diff:
    """Compare two checkpoint folders, and separate planned differences from others."""
    left, right = open_checkpoint(a), open_checkpoint(b)
    provenance = origin(a, b)
    renumbered = renumbering(left, right)
    if renumbered is None and provenance is not None and (choice := provenance.prune_plan()) is not None:
        renumbered = Renumbered(provenance.output, choice)
    models = {"A": describe(left, uneven=True), "B": describe(right, uneven=True)}
    cut: Mapping[str, tuple[TensorInfo, ...]] = {}
    items = {name: dict(_items(model)) for name, model in models.items()}
    if renumbered is not None:
        whole = models[renumbered.whole]
        items[renumbered.whole] = dict(_items(whole, renumbered.plan.kept()))
        cut = cut_routers(whole, renumbered.plan)
    items_a, items_b = items["A"], items["B"]
    same = value = 0
    different: list[Difference] = []
    with Reader(left) as reader_a, Reader(right) as reader_b:
        for name in (name for name in items_a if name in items_b):
            sides = (items_a[name], reader_a), (items_b[name], reader_b)
            if name in cut and renumbered is not None:
                result = _compare_rows(name, cut[name], *(sides if renumbered.whole == "A" else sides[::-1]))
            else:
                result = _compare(name, *sides)
            if isinstance(result, Difference):
                different.append(result)
            elif result:
                same += 1
            else:
                value += 1
    only_a = tuple(name for name in items_a if name not in items_b)
    only_b = tuple(name for name in items_b if name not in items_a)
    explained = None if provenance is None else _explain(provenance, different, only_a, only_b)
    return Diff(same, value, tuple(different), only_a, only_b, renumbered, explained)


def _explain(
    provenance: Origin, different: list[Difference], only_a: tuple[str, ...], only_b: tuple[str, ...]
) -> Explained:
    from_a = provenance.source == "A"
    changes = [
        Change(d.name, d.sentence(), d.squares[0 if from_a else 1], d.squares[2])
        if d.squares
        else Change(d.name, d.sentence(), None, None)
        for d in different
    ]
    return explain(provenance, changes, *((only_a, only_b) if from_a else (only_b, only_a)))


def _items(model: Model, kept: Kept | None = None) -> Iterator[tuple[str, Item]]:
    """Yield linears by module and other tensors by name, in file order.

    With `kept`, yield only the kept experts, under their names in the pruned checkpoint.
    """
    linears = model.linears.values() if kept is None else pruned_linears(model, kept)
    for linear in sorted(linears, key=_place):
        yield linear.module, linear
        named = ((f"{linear.module}.{suffix}", suffix, info) for suffix, info in linear.parts.items())
        yield from ((name, info) for name, suffix, info in named if suffix in COMPANIONS)
    yield from ((name, info) for name, (_, info) in model.plain.items())


def _place(linear: StoredLinear) -> tuple[str, int]:
    first = next(iter(linear.parts.values()))
    return first.shard, first.begin


Side = tuple[Item, Reader]


def _compare(name: str, a: Side, b: Side) -> Difference | bool:
    """Return True for equal bytes, False for equal values, or the difference."""
    (item_a, reader_a), (item_b, reader_b) = a, b
    parts_a, parts_b = _parts(item_a), _parts(item_b)
    if item_a.shape != item_b.shape:
        return Difference(name, f"shape {list(item_a.shape)} and {list(item_b.shape)}", None)
    same_parts = parts_a.keys() == parts_b.keys() and all(
        (info.dtype, info.shape) == (parts_b[suffix].dtype, parts_b[suffix].shape) for suffix, info in parts_a.items()
    )
    if same_parts and all(same_bytes(reader_a, info, reader_b, parts_b[suffix]) for suffix, info in parts_a.items()):
        return True
    largest = 0.0
    squares = np.zeros(3)
    for left, right in _values(name, a, b):
        if left is None or right is None:
            return Difference(name, "bytes", None)
        with np.errstate(invalid="ignore", over="ignore"):
            squares += [float(np.square(values, dtype=np.float64).sum()) for values in (left, right, left - right)]
            unequal = (left != right) & ~(np.isnan(left) & np.isnan(right))
            if unequal.any():
                largest = max(largest, float(np.nanmax(np.abs(left - right)[unequal], initial=0)) or float("inf"))
    sums = float(squares[0]), float(squares[1]), float(squares[2])
    return Difference(name, "value", largest, sums) if largest else False


def _compare_rows(name: str, stretches: tuple[TensorInfo, ...], whole: Side, pruned: Side) -> Difference | bool:
    """Compare the kept rows of a router with the pruned router."""
    info = pruned[0]
    assert isinstance(info, TensorInfo)
    if (info.dtype, info.shape) != (stretches[0].dtype, cut_shape(stretches)):
        return Difference(name, f"shape {list(cut_shape(stretches))} and {list(info.shape)}", None)
    before, after = read_rows(whole[1], stretches), pruned[1].raw(info).reshape(-1)
    if np.array_equal(before, after):
        return True
    left, right = (_floats(raw, info.dtype) for raw in (before, after))
    apart = None if left is None or right is None else float(np.abs(left - right).max())
    return Difference(name, "rows of the kept experts", apart)


def _parts(item: Item) -> Mapping[str, TensorInfo]:
    if isinstance(item, TensorInfo):
        return {"": item}
    return {suffix: info for suffix, info in item.parts.items() if suffix not in COMPANIONS}


def _values(name: str, a: Side, b: Side) -> Iterator[tuple[Array | None, Array | None]]:
    """Yield the exact values of both sides: plain tensors in chunks, other linears at once."""
    infos = [_plain(item) for item, _ in (a, b)]
    if None not in infos and infos[0].dtype == infos[1].dtype:  # pyright: ignore[reportOptionalMemberAccess]
        for left, right in zip(*(chunks(info) for info in infos if info), strict=True):
            yield _floats(a[1].raw(left), left.dtype), _floats(b[1].raw(right), right.dtype)
    else:
        yield _whole(name, *a), _whole(name, *b)


def _plain(item: Item) -> TensorInfo | None:
    """Return the tensor of an item stored as one float tensor, else None."""
    parts = _parts(item)
    info = next(iter(parts.values()))
    return info if len(parts) == 1 and info.dtype in _FLOATS else None


def _floats(raw: Array, dtype: str) -> Array | None:
    if dtype not in _FLOATS:
        return None
    values = raw.view(NUMPY_DTYPES[dtype]).reshape(-1)
    return bf16_to_f32(values) if dtype == "BF16" else values.astype(np.float64)


def _whole(name: str, item: Item, reader: Reader) -> Array | None:
    if isinstance(item, TensorInfo):
        return _floats(reader.raw(item), item.dtype)
    return bf16_to_f32(decode(read_linear(item, reader), name=name)).reshape(-1)
