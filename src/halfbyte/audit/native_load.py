"""What vLLM's own classes make of a checkpoint: its config parser, its model, its `load_weights`. No kernel, no bytes.

    python -m halfbyte.audit.native_load CASES.json RESULTS.json     writes what came of each case

The model is built on PyTorch's meta device, where tensors have names, shapes and types but no bytes, so Kimi-K2.6 is
built whole on a laptop. Then vLLM's loader gets a meta tensor for each name in the checkpoint, and every write to a
parameter is recorded as a box of it. What is left over, missing, or written twice is then plain arithmetic.

Two things of vLLM are replaced, because a machine without an FP4 GPU has no FP4 kernel and vLLM would stop before it
creates a parameter: the functions that select a kernel answer "emulation", a backend of vLLM's own; and the current
device is said to be the meta device. Parsing, matching of ignore lists, creating parameters, names and loaders stay
vLLM's: they are asked before or after the kernel is selected, and "emulation" pads no matrix whose width is a multiple
of 32. This runs in a process of its own, because importing vLLM changes logging, environment and torch's settings.
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

# Parameters that vLLM creates with a value of its own, for checkpoints that bring none: scales of the KV cache, and the
# order of columns in INT4 checkpoints that reorder them.
HAS_DEFAULT = re.compile(r"\.(q|k|v|prob)_scale$|_g_idx(_sort_indices)?$")
# Where INT4 checkpoints say how wide a matrix was: one for gate and up, in the model's type, and never read.
NEVER_READ = re.compile(r"[._]weight_shape$")
# vLLM 0.32 renames these to `self_attn.attn`, which latent attention (MLA) has not, warns, and keeps its scale of 1.
KV_SCALE = re.compile(r"\.self_attn\.[kv]_proj\.[kv]_scale$")
INPUT_SCALE = re.compile(r"_?input_(global_)?scale$")
_QUANTIZATION = "vllm.model_executor.layers.quantization"
_CT = f"{_QUANTIZATION}.compressed_tensors"
_ORACLE = "vllm.model_executor.layers.fused_moe.oracle"
_LINEAR = "vllm.model_executor.kernels.linear"
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
Box = tuple[tuple[int, int], ...]  # for each dimension of a parameter, from where to where


class Writes(TorchDispatchMode):
    """Records every write to a parameter, with the checkpoint's tensor that was being loaded."""

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
            return  # a temporary tensor, or the padding of a vocabulary that needs none
        name, parameter = owner
        self.used.add(self.current)
        self.boxes[name].append(box_of(into, parameter))
        if isinstance(value, torch.Tensor) and not NEVER_READ.search(name):
            if not same_numbers(value.dtype, into.dtype):
                self.doubtful.append(f"{self.current}: {value.dtype} is converted to {into.dtype} of {name}")
            if value.numel() != into.numel():
                self.doubtful.append(f"{self.current}: {value.numel()} values are spread over {into.numel()} of {name}")


def _storage(tensor: Any) -> int:
    """Return what tells storages apart; on the meta device all of them begin at address 0."""
    return tensor.untyped_storage()._cdata


def same_numbers(a: torch.dtype, b: torch.dtype) -> bool:
    """Whether a conversion is what loaders do on purpose: wide floats to each other, whole numbers to wider ones."""
    wide = a in _WIDE_FLOATS and b in _WIDE_FLOATS
    whole = not a.is_floating_point and not b.is_floating_point and a.itemsize <= b.itemsize
    return a == b or wide or whole


def box_of(view: torch.Tensor, whole: torch.Tensor) -> Box:
    """Return which part of a parameter a view is."""
    at, begin = int(view.storage_offset()) - int(whole.storage_offset()), list[int]()
    for stride in whole.stride():
        begin.append(at // stride)
        at %= stride
    lengths = {stride: length for stride, length in zip(view.stride(), view.shape, strict=True) if length > 1}
    sizes = [
        lengths.pop(stride, 1) if size > 1 else 1 for stride, size in zip(whole.stride(), whole.shape, strict=True)
    ]
    assert not lengths, f"a view of {tuple(view.shape)} is no box of {tuple(whole.shape)}"
    return tuple((first, first + size) for first, size in zip(begin, sizes, strict=True))


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> tuple[list[str], list[str]]:
    """Return the parts of a parameter that no box covers, and those that several do, as one would index them."""
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
    """vLLM in this process, prepared once: one rank, and kernels chosen without looking for a GPU."""

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
        """Let every FP4 method have a kernel, without asking the device for one."""
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

    def config_and_model(self, folder: Path) -> tuple[Any, Any]:
        """Parse the folder's config as `vllm serve` does, and build the model on the meta device."""
        wanted = self.arguments(
            model=str(folder), skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16", max_model_len=512
        )
        config = wanted.create_engine_config()
        with self.current(config):
            if not self.ready:
                meeting = f"file://{Path(tempfile.mkdtemp()) / 'ranks'}"
                self.ranks.init_distributed_environment(1, 0, meeting, 0, "gloo")
                self.ranks.initialize_model_parallel(1, 1)
                self.ready = True
            torch.set_default_dtype(torch.bfloat16)
            with torch.device("meta"):
                return config, self.build(config)


_CT_MOE = f"{_CT}.compressed_tensors_moe.compressed_tensors_moe"
_LINEAR_USERS = {
    "nvfp4": (f"{_QUANTIZATION}.modelopt", f"{_CT}.schemes.compressed_tensors_w4a4_nvfp4"),
    "mxfp4": (f"{_CT}.schemes.compressed_tensors_w4a4_mxfp4", f"{_QUANTIZATION}.quark.schemes.quark_ocp_mx"),
}


class _NoKernel:
    """Stands where a kernel for linear layers would; nothing is computed here."""

    def input_quant_key(self) -> None:
        """Like vLLM's kernels that quantize their inputs themselves."""


def _always(answer: Any) -> Any:
    def answered(*_args: Any, **_kwargs: Any) -> Any:
        return answer

    return answered


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
        except Exception as error:  # whatever vLLM raises is the answer
            return {**result, "error": f"{type(error).__name__}: {error}"[:2000]}
    result["method"] = None if config.quant_config is None else config.quant_config.get_name()
    result["methods"] = methods_of(model)
    return {**result, **_load(model, case["tensors"])}


def methods_of(model: Any) -> dict[str, list[str]]:
    """Return the modules by the class that quantizes them."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        scheme = getattr(module, "scheme", None)
        if method is not None:
            found.setdefault(type(method if scheme is None else scheme).__name__, []).append(name)
    return found


def _load(model: Any, tensors: Sequence[tuple[str, str, Sequence[int]]]) -> dict[str, Any]:
    parameters = dict(cast("Iterator[tuple[str, torch.Tensor]]", model.named_parameters()))
    writes = Writes(parameters)

    def given() -> Iterator[tuple[str, torch.Tensor]]:
        for name, dtype, shape in tensors:
            writes.current = name
            # Loaders ask for the values of single numbers, so those are real.
            one = math.prod(shape) == 1
            yield name, torch.ones(tuple(shape), dtype=_DTYPES[dtype], device="cpu" if one else "meta")

    error = None
    with writes:
        try:
            model.load_weights(given())
        except Exception as raised:  # whatever vLLM raises is the answer
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
    """Return the input scales that vLLM creates and never reads, because its method quantizes weights only."""
    return {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if getattr(getattr(module, "quant_method", None), "use_a16", False)
        for own, _ in module.named_parameters(recurse=False)
        if INPUT_SCALE.search(own)
    }


def main() -> None:
    """Examine the cases of a file."""
    cases = cast("list[dict[str, Any]]", json.loads(Path(sys.argv[1]).read_text()))
    engine = Engine()
    Path(sys.argv[2]).write_text(json.dumps([examine(engine, case) for case in cases]))


if __name__ == "__main__":
    main()
