"""Load a checkpoint's config and tensor names with vLLM's own classes, without kernels and without weights.

    python -m halfbyte.audit.vllm_load CASES.json RESULTS.json     writes the result of each case

The model is built on PyTorch's meta device, where tensors have names, shapes and types but no data, so Kimi-K2.6 can be
built on a laptop. vLLM's `load_weights` gets a meta tensor for each name in the checkpoint, and every write to a
parameter is recorded as a box of indices. Unused tensors and missing or duplicate writes follow from the boxes.

Two parts of vLLM are replaced, because without an FP4 GPU vLLM would stop before it creates parameters. The functions
that select a kernel return vLLM's own "emulation" backend, and the current device is the meta device. Config parsing,
ignore lists, parameter creation, names and loaders are unchanged vLLM code. They do not depend on the selected kernel,
and "emulation" does not pad matrices whose width is a multiple of 32. This runs in a separate process, because
importing vLLM changes logging, environment and torch settings.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Parameters with default values in vLLM, optional in checkpoints: KV cache scales, and the column order of INT4
# checkpoints with activation reordering.
HAS_DEFAULT = re.compile(r"\.(q|k|v|prob)_scale$|_g_idx(_sort_indices)?$")
# Matrix shapes in INT4 checkpoints: one for gate and up, in the model's dtype, and never read.
NEVER_READ = re.compile(r"[._]weight_shape$")
# vLLM 0.25 to 0.32 rename these twice, first to `attn` in the attention module, and therefore miss MLA's parameter in
# `mla_attn.mla_attn`: they log a warning and use 1. See tests/vllm/test_mla_kv_scales.py.
KV_SCALE = re.compile(r"\.[kv]_proj\.[kv]_scale$")
INPUT_SCALE = re.compile(r"_?input_(global_)?scale$")
_QUANTIZATION = "vllm.model_executor.layers.quantization"
_CT = f"{_QUANTIZATION}.compressed_tensors"
_ORACLE = "vllm.model_executor.layers.fused_moe.oracle"
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
_WIDE_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
Box = tuple[tuple[int, int], ...]  # (start, end) for each dimension of a parameter


class Writes(TorchDispatchMode):
    """Record every write to a parameter, with the checkpoint tensor being loaded."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.current = ""
        self.used: set[str] = set()
        self.doubtful: list[str] = []
        self.boxes: dict[str, list[Box]] = {name: [] for name in parameters}
        self._owners = {_storage(tensor): (name, tensor) for name, tensor in parameters.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten.fill_):
            self._record(args[0], args[1])
        return func(*args, **(kwargs or {}))

    def _record(self, into: torch.Tensor, value: object) -> None:
        owner = self._owners.get(_storage(into))
        if owner is None or not into.numel():
            return  # a temporary tensor, or empty vocabulary padding
        name, parameter = owner
        self.used.add(self.current)
        self.boxes[name].append(box_of(into, parameter))
        if isinstance(value, torch.Tensor) and not NEVER_READ.search(name):
            if not same_numbers(value.dtype, into.dtype):
                self.doubtful.append(f"{self.current}: {value.dtype} is converted to {into.dtype} in {name}")
            if value.numel() != into.numel():
                self.doubtful.append(
                    f"{self.current}: {value.numel()} values are broadcast to {into.numel()} in {name}"
                )


def _storage(tensor: Any) -> int:
    """Return an id of the storage; on the meta device all addresses are 0."""
    return tensor.untyped_storage()._cdata


def same_numbers(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether loaders convert these dtypes intentionally: between wide floats, or integers to wider integers."""
    floats = a in _WIDE_FLOATS and b in _WIDE_FLOATS
    integers = not a.is_floating_point and not b.is_floating_point and a.itemsize <= b.itemsize
    return a == b or floats or integers


def box_of(view: torch.Tensor, whole: torch.Tensor) -> Box:
    """Return the box of a parameter that a view covers."""
    offset, starts = int(view.storage_offset()) - int(whole.storage_offset()), list[int]()
    for stride in whole.stride():
        starts.append(offset // stride)
        offset %= stride
    lengths = {stride: length for stride, length in zip(view.stride(), view.shape, strict=True) if length > 1}
    sizes = [
        lengths.pop(stride, 1) if size > 1 else 1 for stride, size in zip(whole.stride(), whole.shape, strict=True)
    ]
    assert not lengths, f"a view of {tuple(view.shape)} is not a box of {tuple(whole.shape)}"
    return tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> tuple[list[str], list[str]]:
    """Return the index ranges of a parameter that no box covers, and those that several boxes cover."""
    ends = [sorted({0, size, *(end for box in boxes for end in box[d])}) for d, size in enumerate(shape)]
    at = [{end: index for index, end in enumerate(cuts)} for cuts in ends]
    times = np.zeros([len(cuts) - 1 for cuts in ends], np.int32)
    for box in boxes:
        times[tuple(slice(at[d][begin], at[d][end]) for d, (begin, end) in enumerate(box))] += 1
    return [_indexed(ends, cell) for cell in np.argwhere(times == 0)], [
        _indexed(ends, cell) for cell in np.argwhere(times > 1)
    ]


def _indexed(ends: Sequence[Sequence[int]], cell: Sequence[int]) -> str:
    parts = [(cuts[index], cuts[index + 1], cuts[-1]) for cuts, index in zip(ends, cell, strict=True)]
    shown = [
        ":" if begin == 0 and end == size else str(begin) if end == begin + 1 else f"{begin}:{end}"
        for begin, end, size in parts
    ]
    return f"[{', '.join(shown)}]"


class Engine:
    """vLLM in this process, initialized once: one rank, and kernels selected without a GPU."""

    def __init__(self) -> None:
        self.arguments: Any = import_module("vllm.engine.arg_utils").EngineArgs
        self.current: Any = import_module("vllm.config").set_current_vllm_config
        self.build: Any = import_module("vllm.model_executor.model_loader.utils").initialize_model
        self.ranks: Any = import_module("vllm.distributed")
        self.ready = False
        platform: Any = import_module("vllm.platforms").current_platform
        type(platform).current_device = classmethod(lambda _: torch.device("meta"))
        self._select_emulation()

    def _select_emulation(self) -> None:
        """Make every FP4 method use the emulation kernel."""
        for format, backend, users in (
            ("nvfp4", "NvFp4MoeBackend", (f"{_QUANTIZATION}.modelopt", f"{_CT_MOE}_w4a4_nvfp4")),
            ("mxfp4", "Mxfp4MoeBackend", (f"{_QUANTIZATION}.quark.quark_moe",)),
            ("wna16", "WNA16MoEBackend", (f"{_CT_MOE}_wna16",)),
        ):
            oracle: Any = import_module(f"{_ORACLE}.{'int_' if format == 'wna16' else ''}{format}")
            emulation = getattr(oracle, backend).EMULATION
            choice = (emulation, oracle.backend_to_kernel_cls(emulation)[0])
            for user in users:
                setattr(import_module(user), f"select_{format}_moe_backend", _always(choice))
        for format, users in _LINEAR_USERS.items():
            for user in users:
                setattr(import_module(user), f"init_{format}_linear_kernel", _always(_NoKernel()))

    def config_and_model(self, folder: Path, *, device: str = "meta", kv_cache_dtype: str = "auto") -> tuple[Any, Any]:
        """Parse the folder's config as `vllm serve` does, and build the model on a device."""
        arguments = self.arguments(
            model=str(folder),
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=512,
            kv_cache_dtype=kv_cache_dtype,
        )
        config = arguments.create_engine_config()
        with self.current(config):
            if not self.ready:
                init_method = f"file://{Path(tempfile.mkdtemp()) / 'ranks'}"
                self.ranks.init_distributed_environment(1, 0, init_method, 0, "gloo")
                self.ranks.initialize_model_parallel(1, 1)
                self.ready = True
            torch.set_default_dtype(torch.bfloat16)
            with torch.device(device):
                return config, self.build(config)


_CT_MOE = f"{_CT}.compressed_tensors_moe.compressed_tensors_moe"
_LINEAR_USERS = {
    "nvfp4": (f"{_QUANTIZATION}.modelopt", f"{_CT}.schemes.compressed_tensors_w4a4_nvfp4"),
    "mxfp4": (f"{_CT}.schemes.compressed_tensors_w4a4_mxfp4", f"{_QUANTIZATION}.quark.schemes.quark_ocp_mx"),
}


class _NoKernel:
    """Placeholder for a linear kernel."""

    def input_quant_key(self) -> None:
        """Behave like kernels that quantize their inputs themselves."""


def _always(value: Any) -> Any:
    def constant(*_args: Any, **_kwargs: Any) -> Any:
        return value

    return constant


def examine(engine: Engine, case: Mapping[str, Any]) -> dict[str, Any]:
    """Load one checkpoint: its config, and a meta tensor for each of its names."""
    result: dict[str, Any] = {"name": case["name"], "stage": "config", "error": None}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(case["config"]))
        if case.get("modelopt_file") is not None:
            (folder / "hf_quant_config.json").write_text(json.dumps(case["modelopt_file"]))
        try:
            config, model = engine.config_and_model(folder)
        except Exception as error:  # any vLLM error is the result
            return {**result, "error": f"{type(error).__name__}: {error}"[:2000]}
    result["method"] = None if config.quant_config is None else config.quant_config.get_name()
    result["methods"] = methods_of(model)
    return {**result, **_load(model, case["tensors"])}


def methods_of(model: Any) -> dict[str, list[str]]:
    """Return the modules by the class of their quantization method."""
    modules: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        scheme = getattr(module, "scheme", None)
        if method is not None:
            modules.setdefault(type(method if scheme is None else scheme).__name__, []).append(name)
    return modules


def _load(model: Any, tensors: Sequence[tuple[str, str, Sequence[int]]]) -> dict[str, Any]:
    parameters = dict(cast("Iterator[tuple[str, torch.Tensor]]", model.named_parameters()))
    writes = Writes(parameters)

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, dtype, shape in tensors:
            writes.current = name
            # Loaders read the values of scalars, so those are real tensors.
            scalar = math.prod(shape) == 1
            yield name, torch.ones(tuple(shape), dtype=_DTYPES[dtype], device="cpu" if scalar else "meta")

    error = None
    with writes:
        try:
            model.load_weights(weights())
        except Exception as raised:  # any vLLM error is the result
            error = f"{type(raised).__name__}: {raised}"[:2000]
    if error is not None:
        return {"stage": "load", "error": error, "tensor": writes.current}
    unread = unread_parameters(model)
    missing, twice, defaulted = list[str](), list[str](), list[str]()
    for name, parameter in parameters.items():
        holes, doubles = uncovered(parameter.shape, writes.boxes[name])
        if not writes.boxes[name] and (name in unread or HAS_DEFAULT.search(name)):
            defaulted.append(name)
            continue
        missing += [f"{name}{hole}" for hole in holes]
        twice += [f"{name}{double}" for double in doubles if not NEVER_READ.search(name)]
    unused = [name for name, _, _ in tensors if name not in writes.used]
    return {
        "stage": "done",
        "parameters": {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in parameters.items()},
        "tensors": len(tensors),
        "dropped": [name for name in unused if not KV_SCALE.search(name)],
        "unused_kv_scales": [name for name in unused if KV_SCALE.search(name)],
        "missing": missing,
        "twice": twice,
        "defaulted": defaulted,
        "doubtful": writes.doubtful,
    }


def unread_parameters(model: Any) -> set[str]:
    """Return the input scales that vLLM creates but never reads with weight-only methods."""
    return {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if getattr(getattr(module, "quant_method", None), "use_a16", False)
        for own, _ in module.named_parameters(recurse=False)
        if INPUT_SCALE.search(own)
    }


def main() -> None:
    """Examine the cases in the file argv[1] and write the results to argv[2]."""
    cases = cast("list[dict[str, Any]]", json.loads(Path(sys.argv[1]).read_text()))
    engine = Engine()
    Path(sys.argv[2]).write_text(json.dumps([examine(engine, case) for case in cases]))


if __name__ == "__main__":
    main()
