"""Linears of a checkpoint: identify the format of each from suffixes, dtypes and shapes of its tensors, and read it.

Tensor values are not needed to identify a format: the reader checks that `weight_shape` agrees with the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.errors import CheckpointError
from halfbyte.families.family import COMPANIONS
from halfbyte.formats.format import Format, Part
from halfbyte.formats.registry import FORMATS

if TYPE_CHECKING:
    from halfbyte.checkpoint.reader import Reader
    from halfbyte.formats.encoded import Encoded

PLAIN = tuple(name for name, format in FORMATS.items() if format.is_plain)  # unquantized formats
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
    """One linear of a checkpoint. `parts` has its tensors by suffix, including `bias` and `input_scale` if present.

    `projection` is gate, up or down in an MLP, else None. `format` is a key of `formats.registry.FORMATS`, `shape` is
    (N outputs, K inputs) of the decoded weights, `group` is the number of weights of a row that share a scale, 0 for
    the whole row.
    """

    module: str
    role: str
    layer: int | None
    expert: int | None
    projection: str | None
    format: str
    shape: tuple[int, int]
    group: int
    parts: Mapping[str, TensorInfo]

    @property
    def stored_as(self) -> str:
        """Return its name in the checkpoint, which differs from `module` if pruning renumbered its expert."""
        return next(iter(self.parts.values())).name.rpartition(".")[0]

    @property
    def in_layer(self) -> str:
        """Return its name within its layer."""
        return self.module.partition(f".{self.layer}.")[2]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all its tensors."""
        return sum(part.end - part.begin for part in self.parts.values())

    @property
    def elements(self) -> int:
        """Return the number of elements in all its tensors; a packed word and a scale count as one each."""
        return sum(math.prod(part.shape) for part in self.parts.values())

    @property
    def weights(self) -> int:
        """Return the number of weights, independent of the format."""
        return self.shape[0] * self.shape[1]


def signature(parts: Mapping[str, TensorInfo]) -> Signature:
    """Return everything that determines a linear's format; equal for all experts, so that it can be cached."""
    return tuple([(suffix, tensor.dtype, tensor.shape) for suffix, tensor in parts.items()])


def identify(parts: Signature, module: str) -> Stored:
    """Return the format of a linear; raise if tensors are missing, extra or have the wrong shape."""
    dtypes = {suffix: dtype for suffix, dtype, _ in parts if suffix not in COMPANIONS}
    shapes = {suffix: shape for suffix, _, shape in parts}
    for row in FORMATS.values():
        if dtypes.keys() == {part.suffix for part in row.tensors} and all(_fits(part, dtypes) for part in row.tensors):
            return _measure(row, shapes, module)
    raise _unknown(dtypes, module)


def _fits(part: Part, dtypes: Mapping[str, str]) -> bool:
    dtype = dtypes.get(part.suffix)
    return dtype is not None and dtype in (part.dtype, part.also)


def _measure(row: Format, shapes: Mapping[str, tuple[int, ...]], module: str) -> Stored:
    """Derive N, K and the group size from the shapes, and check each tensor against them."""
    codes = row.tensors[0]
    stored = shapes[codes.suffix]
    if len(stored) != _MATRIX or 0 in stored:
        what = f"{codes.suffix} has shape {list(stored)}, which is not a matrix"
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
    if row.block and k % row.block and not row.partial_blocks:
        what = f"{row.name} has {k} columns, not a multiple of {row.block}"
        raise CheckpointError(what, where=module, fix="no engine loads this: use the unquantized checkpoint")
    return Stored(row.name, (n, k), group)


def _is_grouped(row: Format, part: Part) -> bool:
    """Whether the tensor has one element per group, in formats that support several group sizes."""
    return bool(row.groups) and part.columns == row.block


def _group(row: Format, shapes: Mapping[str, tuple[int, ...]], shape: tuple[int, int], module: str) -> int:
    if not row.groups:
        return row.block
    n, k = shape
    scales = next(part.suffix for part in row.tensors if _is_grouped(row, part))
    for group in row.groups:
        if k % group == 0 and shapes[scales] == (n, k // group):
            return group
    sizes = _either(row.groups)
    what = f"{scales} has shape {list(shapes[scales])}, which matches no group size ({sizes}) for {[n, k]}"
    raise CheckpointError(what, where=module, fix=_DAMAGED)


_DAMAGED = "the checkpoint is damaged or was written by an unsupported tool: download it again"


def _misfit(suffix: str, shape: tuple[int, ...], expected: tuple[int, ...], module: str) -> CheckpointError:
    what = f"{suffix} has shape {list(shape)}, but its linear needs {list(expected)}"
    return CheckpointError(what, where=module, fix=_DAMAGED)


def _unknown(dtypes: Mapping[str, str], module: str) -> CheckpointError:
    """Return the error for tensors that match no format, explained by the closest formats."""
    rows = [row for row in FORMATS.values() if len(row.tensors) > 1]
    agreement = {row.name: sum(_fits(part, dtypes) for part in row.tensors) for row in rows}
    best = max(agreement.values(), default=0)
    near = [row for row in rows if best and agreement[row.name] == best]
    missing = {row.name: [p.suffix for p in row.tensors if p.suffix not in dtypes] for row in near}
    explained = [row for row in near if missing[row.name] and dtypes.keys() <= {part.suffix for part in row.tensors}]
    if explained:
        names = _either(sorted({missing[row.name][0] for row in explained}))
        present = " and ".join(f"{suffix} {dtype}" for suffix, dtype in sorted(dtypes.items()))
        formats = _either([row.name for row in explained])
        return CheckpointError(
            f"{names} is missing: found {present}, as in {formats}", where=module, fix="download the whole checkpoint"
        )
    if not dtypes:
        return CheckpointError("the weight is missing", where=module, fix="download the whole checkpoint")
    present = ", ".join(f"{suffix} {dtype}" for suffix, dtype in sorted(dtypes.items()))
    fix = f"supported formats: {', '.join(FORMATS)}; `halfbyte formats --json` lists their tensors"
    return CheckpointError(f"no format has the tensors {present}", where=module, fix=fix)


def _either(choices: Iterable[object]) -> str:
    words: Sequence[str] = [str(choice) for choice in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def read_linear(linear: StoredLinear, reader: Reader) -> Encoded:
    """Read a linear in its stored format."""
    from halfbyte.formats.encoded import Encoded  # noqa: PLC0415 - needs NumPy, which the rest does without

    suffixes = [part.suffix for part in FORMATS[linear.format].tensors]
    tensors = {suffix: reader.tensor(linear.parts[suffix]) for suffix in suffixes}
    return Encoded(linear.format, linear.shape, tensors)
