"""The packed tensors of a quantized module in vLLM, shared by linears and experts.

They are vLLM parameters while loading. Parameters start as uninitialized memory, so every loaded tensor is recorded.
After loading, invalid scales are refused, and so are different scales where an engine uses one for several linears. The
weights are then decoded to BF16, bit for bit as a BF16 recipe writes them: with the NumPy reference on a CPU, which
needs no compiler, and with the kernels of `formats.gpu` on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from halfbyte.compare.activations import Fake, emulated_inputs, is_emulated, tensor_scale
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.format import E4M3, INT4, WHOLE_ROW, Format, Part
from halfbyte.formats.registry import FORMATS, input_scale_suffixes
from halfbyte.serve.vllm_plugin.stored import CALIBRATE

Tensors = Mapping[str, torch.Tensor]
Load = Callable[..., Any]
Key = tuple[str, str]  # part of the module (a projection of an expert, a shard of a fused linear) and suffix

SCALAR, SHAPE = "scalar", "shape"
_DTYPES = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}
PER_TENSOR = (
    *(part.suffix for format in FORMATS.values() for part in format.tensors if part.is_tensor_scale),
    *input_scale_suffixes(),
)
_WRITE_AGAIN = "write the checkpoint again with halfbyte quantize SRC OUT -r RECIPE"
_NIBBLES = 0x77
_INT4_ZEROS = -0x77777778  # 0x88888888: eight codes of 8, which stand for 0
_E8M0_NAN = 0xFF


# Shapes and dtypes of the parameters.


def suffixes_of(linear: StoredLinear, input_scale: str | None) -> list[str]:
    """Return the suffixes of the tensors stored for each linear of a module."""
    suffixes = [part.suffix for part in FORMATS[linear.format].tensors]
    return [*suffixes, input_scale] if input_scale else suffixes


def expert_projections(layer: Any) -> dict[str, str]:
    """Return the checkpoint's names of the linears of vLLM's routed experts, by vLLM's id: w1 gate, w3 up, w2 down."""
    return {"w1": layer.ckpt_gate_proj_name, "w3": layer.ckpt_up_proj_name, "w2": layer.ckpt_down_proj_name}


def kind_of(part: Part) -> str:
    """Return "scalar", "shape" (compressed-tensors' weight_shape), "channel", "block" or "rows"."""
    if part.fixed is not None:
        return SHAPE if part.suffix == "weight_shape" else SCALAR
    if part.columns == WHOLE_ROW:
        return "channel"
    return "block" if part.rows > 1 else "rows"


def dtype_of(linear: StoredLinear, part: Part) -> torch.dtype:
    """Return the dtype in the shards, which differs between producers."""
    return _DTYPES[linear.parts[part.suffix].dtype]


def rows_and_columns(linear: StoredLinear, part: Part, n: int, k: int) -> tuple[int, int]:
    """Return the shape of a tensor for a tensor-parallel shard [N, K] of a linear."""
    row = FORMATS[linear.format]
    if row.groups and part.columns == row.block:  # scales of a format with groups of several sizes
        return n, k // linear.group
    rows, columns = part.shape(n, k)
    return rows, columns


# Loading.


class LoadedTensors:
    """Records every tensor loaded into a module."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._seen: set[Key] = set()

    def expert_loader(self, suffix: str, load: Load, projections: Mapping[str, str]) -> Load:
        """Return a loader for routed experts that records each tensor; `projections` has their names by shard id."""

        def load_and_record(
            param: torch.nn.Parameter,
            loaded_weight: torch.Tensor,
            weight_name: str,
            shard_id: str,
            expert_id: int,
            return_success: bool = False,
        ) -> bool | None:
            self._check(param, loaded_weight, f"{expert_id}.{projections[shard_id]}.{suffix}")
            loaded = load(param, loaded_weight, weight_name, shard_id, expert_id, return_success=True)
            if loaded:
                self._seen.add((f"{expert_id}.{projections[shard_id]}", suffix))
            return bool(loaded) if return_success else None

        load_and_record.supports_moe_loading = True  # type: ignore[attr-defined] - vLLM requires it
        return load_and_record

    def linear_loader(self, suffix: str, load: Load) -> Load:
        """Return a loader for a linear that records each tensor."""

        def load_and_record(param: torch.nn.Parameter, loaded_weight: torch.Tensor, *shard: Any) -> Any:
            self._check(param, loaded_weight, suffix)
            result = load(param, loaded_weight, *shard)
            self._seen.add((shard_name(shard[0] if shard else None), suffix))
            return result

        return load_and_record

    def refuse_missing(self, parts: Iterable[str], suffixes: Iterable[str]) -> None:
        """Raise CheckpointError unless every tensor of every part has been loaded."""
        wanted = [(part, suffix) for part in parts for suffix in suffixes]
        missing = [key for key in wanted if key not in self._seen]
        if missing:
            part, suffix = missing[0]
            more = f" (nor {len(missing) - 1} others of {self._module})" if len(missing) > 1 else ""
            what = f"vLLM never loaded its {suffix}{more} and would compute with uninitialized memory"
            where = f"{self._module}.{part}" if part else self._module
            raise CheckpointError(what, where=where, fix="run halfbyte audit OUT to list the missing tensors")

    def _check(self, param: torch.nn.Parameter, loaded: torch.Tensor, name: str) -> None:
        """Refuse a different dtype: vLLM's loaders would silently cast codes to other numbers."""
        if param.dtype != loaded.dtype:
            what = f"{name} is {loaded.dtype}, but its header declares {param.dtype}"
            raise CheckpointError(what, where=self._module, fix="download the checkpoint again")


def shard_name(shard: Any) -> str:
    """Return the name of a shard of a fused linear; empty if it is not fused."""
    return "" if shard is None else str(shard)


# Checks after loading.


def refuse_invalid_scales(module: str, format: str, tensors: Tensors) -> None:
    """Refuse scales of a linear that are NaN, infinite or negative, or zero for a block of nonzero codes."""
    for suffix, tensor in tensors.items():
        if "scale" not in suffix:
            continue
        if tensor.dtype == torch.uint8:  # E8M0: powers of two
            bad = tensor == _E8M0_NAN
        else:
            values = tensor.float()
            bad = ~torch.isfinite(values) | (values < 0)
            if suffix in PER_TENSOR or FORMATS[format].element is E4M3:
                bad |= values == 0
        if bad.any():
            value = "NaN" if tensor.dtype == torch.uint8 else f"{float(tensor.float()[bad].reshape(-1)[0]):g}"
            fix = CALIBRATE if suffix.startswith("input") else _WRITE_AGAIN
            raise CheckpointError(f"its {suffix} is {value}, which is not a valid scale", where=module, fix=fix)
    _refuse_zero_blocks(module, format, tensors)


def _refuse_zero_blocks(module: str, format: str, tensors: Tensors) -> None:
    """Refuse a zero scale for a block of nonzero codes, which it would erase."""
    scale = tensors.get("weight_scale")
    if scale is None or scale.dtype == torch.uint8 or FORMATS[format].element is E4M3 or not (scale.float() == 0).any():
        return
    if FORMATS[format].element is INT4:
        used = tensors["weight_packed"] != _INT4_ZEROS
    else:
        used = (tensors["weight_packed" if "weight_packed" in tensors else "weight"] & _NIBBLES) != 0
    blocks = used.reshape(*scale.shape, -1).any(-1)
    if (blocks & (scale.float() == 0)).any():
        what = "a weight_scale is 0, but the codes of its block are not"
        raise CheckpointError(what, where=module, fix=_WRITE_AGAIN)


def refuse_different_scales(module: str, suffix: str, values: Tensors) -> None:
    """Refuse different scales of fused linears: engines use only the first or the largest."""
    first, *others = values
    for other in others:
        if not torch.equal(values[first], values[other]):
            a, b = (f"{float(values[name]):.9g}" for name in (first, other))
            what = f"{suffix} of {first} and {other} differ ({a} and {b}), and engines use one for both"
            fix = CALIBRATE if suffix.startswith("input") else _WRITE_AGAIN
            raise CheckpointError(what, where=module, fix=fix)


# Decoding, and the quantization of inputs.


def expand(format: str, tensors: Tensors) -> torch.Tensor:
    """Return the weights [N, K] in BF16, decoded from the tensors of a format by suffix."""
    row = FORMATS.get(format)
    on_gpu = next(iter(tensors.values())).is_cuda
    if row is None or row.is_plain or (on_gpu and row.gpu is None):
        raise UsageError(f"{format} cannot be emulated", fix="serve it without --quantization halfbyte_emulate")
    return _on_gpu(row, tensors) if on_gpu else _on_cpu(row, tensors)


def _on_cpu(format: Format, tensors: Tensors) -> torch.Tensor:
    with np.errstate(over="ignore"):  # values beyond BF16's range become infinity, as in the GPU kernels
        bits = format.reference().decode({suffix: _bits(tensor) for suffix, tensor in tensors.items()})
    return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch.bfloat16)


def _bits(tensor: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array, with BF16 and E4M3 as bit patterns."""
    plain = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}.get(tensor.dtype)
    return (tensor.contiguous() if plain is None else tensor.contiguous().view(plain)).numpy()


def _on_gpu(format: Format, tensors: Tensors) -> torch.Tensor:
    """Decode a stack of one linear."""
    assert format.gpu is not None
    return format.gpu.codec().decode({suffix: tensor.contiguous()[None] for suffix, tensor in tensors.items()})[0]


def fake_of(format: str, scale: torch.Tensor | None) -> Fake | None:
    """Return the function that fake-quantizes the inputs of linears in a format, for their stored input scales."""
    if not is_emulated(format) or (FORMATS[format].input_scale is not None and scale is None):
        return None
    # Engines fuse gate and up and quantize their input once, with the larger scale.
    return emulated_inputs(format, None if scale is None else tensor_scale(format, scale).amax())
