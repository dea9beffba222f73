"""Tensors to linears: which format each one is stored in, read off suffixes, dtypes and shapes alone.

The values of tensors are not looked at: that `weight_shape` says the same as the shapes do is for the reader to check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from halfbyte.errors import CheckpointError
from halfbyte.models.architecture import COMPANIONS
from halfbyte.numerics.formats import FORMATS, Format, Part
from halfbyte.source.headers import TensorInfo

# Other dtypes that writers use for the same tensor: compressed-tensors counts in I64, some FP8 writers scale in F32.
_ALSO: Mapping[tuple[str, str], str] = {("int4", "weight_shape"): "I64", ("fp8_channel", "weight_scale"): "F32"}
PLAIN = ("bf16", "f16", "f32")  # the formats that are no quantization
_SCALARS = ((), (1,))
_MATRIX = 2

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]  # suffix, dtype and shape of each tensor


@dataclass(frozen=True, slots=True)
class Stored:
    """How a linear [N, K] is stored; see `StoredLinear`."""

    format: str
    shape: tuple[int, int]
    group: int


@dataclass(frozen=True, slots=True)
class StoredLinear:
    """One linear of a checkpoint: `parts` has its tensors by suffix, `bias` and `input_scale` too if it has them.

    `format` is a name in `numerics.formats.FORMATS`, `shape` is (N outputs, K inputs) of the weights it stands for,
    `group` how many weights of a row share a scale, 0 for the whole row.
    """

    module: str
    role: str
    layer: int | None
    expert: int | None
    format: str
    shape: tuple[int, int]
    group: int
    parts: Mapping[str, TensorInfo]

    @property
    def stored_as(self) -> str:
        """Return its name in the checkpoint: another than `module` where pruning gives it a new number."""
        return next(iter(self.parts.values())).name.rpartition(".")[0]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all its tensors."""
        return sum(part.end - part.begin for part in self.parts.values())

    @property
    def elements(self) -> int:
        """Return the elements of all its tensors: a packed word is one, and a scale is one."""
        return sum(math.prod(part.shape) for part in self.parts.values())

    @property
    def weights(self) -> int:
        """Return how many weights it has, however they are stored."""
        return self.shape[0] * self.shape[1]


def signature(parts: Mapping[str, TensorInfo]) -> Signature:
    """Return all that decides a linear's format; equal for all experts of a model, so that each is read once."""
    return tuple([(suffix, tensor.dtype, tensor.shape) for suffix, tensor in parts.items()])


def identify(found: Signature, module: str) -> Stored:
    """Return the format whose tensors these are; whatever is missing, left over or misshapen is an error."""
    dtypes = {suffix: dtype for suffix, dtype, _ in found if suffix not in COMPANIONS}
    shapes = {suffix: shape for suffix, _, shape in found}
    for row in FORMATS.values():
        if dtypes.keys() == {part.suffix for part in row.tensors} and all(_fits(row, p, dtypes) for p in row.tensors):
            return _measure(row, shapes, module)
    raise _unknown(dtypes, module)


def _fits(row: Format, part: Part, dtypes: Mapping[str, str]) -> bool:
    dtype = dtypes.get(part.suffix)
    return dtype is not None and dtype in (part.dtype, _ALSO.get((row.name, part.suffix)))


def _measure(row: Format, shapes: Mapping[str, tuple[int, ...]], module: str) -> Stored:
    """Find N, K and the group from the shapes, and check each tensor against them."""
    codes = row.tensors[0]
    stored = shapes[codes.suffix]
    if len(stored) != _MATRIX or 0 in stored:
        what = f"{codes.suffix} has shape {list(stored)}, which is no matrix"
        raise CheckpointError(what, where=module, fix=_DAMAGED)
    n, k = stored[0], stored[1] * codes.columns
    group = _group(row, shapes, (n, k), module)
    for part in row.tensors:
        expected = (n, k // group) if _is_grouped(row, part) else part.shape(n, k)
        fine = shapes[part.suffix] in (_SCALARS if expected in _SCALARS else (expected,))
        if not fine:
            raise _misfit(part.suffix, shapes[part.suffix], expected, module)
    if shapes.get("bias", (n,)) != (n,):
        raise _misfit("bias", shapes["bias"], (n,), module)
    if row.element == "e2m1" and k % row.block:
        what = f"{row.name} has {k} columns, not whole blocks of {row.block}"
        raise CheckpointError(what, where=module, fix="no engine loads this; get the unquantized checkpoint")
    return Stored(row.name, (n, k), group)


def _is_grouped(row: Format, part: Part) -> bool:
    """Whether the tensor has one element a group, where a format allows several sizes of groups."""
    return bool(row.groups) and part.columns == row.block


def _group(row: Format, shapes: Mapping[str, tuple[int, ...]], shape: tuple[int, int], module: str) -> int:
    if not row.groups:
        return row.block
    n, k = shape
    scales = next(part.suffix for part in row.tensors if _is_grouped(row, part))
    for group in row.groups:
        if k % group == 0 and shapes[scales] == (n, k // group):
            return group
    what = (
        f"{scales} has shape {list(shapes[scales])}, which fits no group of {_either(row.groups)} columns of {[n, k]}"
    )
    raise CheckpointError(what, where=module, fix=_DAMAGED)


_DAMAGED = "the checkpoint is damaged, or made by a tool that halfbyte does not know: download it again"


def _misfit(suffix: str, shape: tuple[int, ...], expected: tuple[int, ...], module: str) -> CheckpointError:
    what = f"{suffix} has shape {list(shape)}, but its linear needs {list(expected)}"
    return CheckpointError(what, where=module, fix=_DAMAGED)


def _unknown(dtypes: Mapping[str, str], module: str) -> CheckpointError:
    """Say what is wrong, seen from the formats that come nearest."""
    rows = [row for row in FORMATS.values() if len(row.tensors) > 1]
    agreement = {row.name: sum(_fits(row, part, dtypes) for part in row.tensors) for row in rows}
    best = max(agreement.values(), default=0)
    near = [row for row in rows if best and agreement[row.name] == best]
    missing = {row.name: [p.suffix for p in row.tensors if p.suffix not in dtypes] for row in near}
    explained = [row for row in near if missing[row.name] and dtypes.keys() <= {part.suffix for part in row.tensors}]
    if explained:
        names = _either(sorted({missing[row.name][0] for row in explained}))
        there = " and ".join(f"{suffix} {dtype}" for suffix, dtype in sorted(dtypes.items()))
        formats = _either([row.name for row in explained])
        return CheckpointError(
            f"{names} is missing: there is {there}, as in {formats}", where=module, fix="download the whole checkpoint"
        )
    if not dtypes:
        return CheckpointError("the weight is missing", where=module, fix="download the whole checkpoint")
    there = ", ".join(f"{suffix} {dtype}" for suffix, dtype in sorted(dtypes.items()))
    fix = f"halfbyte reads {', '.join(FORMATS)}; `halfbyte formats --json` has their tensors"
    return CheckpointError(f"no format has the tensors {there}", where=module, fix=fix)


def _either(choices: Iterable[object]) -> str:
    words: Sequence[str] = [str(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
