"""The routed experts of a layer in vLLM: packed while loading, then BF16, with their own forward pass.

vLLM computes the routing and the shared experts. The inputs of routed experts are quantized twice, before gate and up
and before down, which vLLM's BF16 kernels do not support.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEQuantConfig
from vllm.model_executor.utils import set_weight_attrs

from halfbyte.compare.activations import Fake
from halfbyte.errors import UsageError
from halfbyte.families.linears import StoredLinear
from halfbyte.formats.format import Part
from halfbyte.formats.registry import FORMATS
from halfbyte.forward.experts import GATE_UP, run_experts
from halfbyte.serve.vllm_plugin.packed_tensors import (
    PER_TENSOR,
    SCALAR,
    SHAPE,
    LoadedTensors,
    dtype_of,
    expand,
    expert_projections,
    fake_of,
    kind_of,
    refuse_different_scales,
    refuse_invalid_scales,
    rows_and_columns,
    suffixes_of,
)

_INDEX = {"w1": 0, "w3": 1, "w2": 0}  # of a projection within its fused parameter


class EmulatedExpertsMethod(FusedMoEMethodBase):
    """Loads experts in their stored format; `linear` represents all of them."""

    def __init__(
        self,
        moe: FusedMoEConfig,
        module: str,
        linear: StoredLinear,
        input_scale: str | None,
        quantize_inputs: bool,
    ) -> None:
        super().__init__(moe)
        self.module, self.linear, self.input_scale = module, linear, input_scale
        self.quantize_inputs = quantize_inputs
        self.suffixes = suffixes_of(linear, input_scale)
        self.loaded = LoadedTensors(module)
        self.fakes: list[tuple[Fake | None, Fake | None]] = []
        _refuse_unsupported(moe, module)

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register parameters for the stored tensors, under vLLM's names."""
        self.experts, self.width, self.inner = num_experts, hidden_size, intermediate_size_per_partition
        self.projections = expert_projections(layer)
        load = extra_weight_attrs.pop("weight_loader")
        scalars = [Part(self.input_scale, "F32", fixed=())] if self.input_scale else []
        for part in (*FORMATS[self.linear.format].tensors, *scalars):
            is_scalar = part.fixed is not None
            loader = self.loaded.expert_loader(part.suffix, _load_scalar if is_scalar else load, self.projections)
            for prefix in ("w13", "w2"):
                parameter = torch.nn.Parameter(self._empty(part, fused=prefix == "w13"), requires_grad=False)
                layer.register_parameter(f"{prefix}_{part.suffix}", parameter)
                kind = kind_of(part)
                attributes = {"weight_loader": loader, "quant_method": "group" if kind == "rows" else kind}
                set_weight_attrs(parameter, {**extra_weight_attrs, **attributes})

    def _empty(self, part: Part, *, fused: bool) -> torch.Tensor:
        dtype = dtype_of(self.linear, part) if part.suffix in self.linear.parts else torch.float32
        if kind_of(part) == SCALAR:
            return torch.empty(self.experts, 1 + fused, dtype=dtype)
        if kind_of(part) == SHAPE:
            return torch.empty(self.experts, 1 + fused, 2, dtype=dtype)
        n, k = (self.inner, self.width) if fused else (self.width, self.inner)
        rows, columns = rows_and_columns(self.linear, part, n, k)
        return torch.empty(self.experts, rows * (1 + fused), columns, dtype=dtype)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Check the loaded tensors and replace them by BF16 weights, one expert at a time."""
        names = [f"{expert}.{name}" for expert in range(self.experts) for name in self.projections.values()]
        self.loaded.refuse_missing(names, self.suffixes)
        device = getattr(layer, f"w2_{self.suffixes[0]}").device
        w13 = torch.empty(self.experts, 2 * self.inner, self.width, dtype=torch.bfloat16, device=device)
        w2 = torch.empty(self.experts, self.width, self.inner, dtype=torch.bfloat16, device=device)
        for expert in range(self.experts):
            gate, up, down = (self._stored(layer, expert, which) for which in ("w1", "w3", "w2"))
            self._check(expert, gate, up, down)
            w13[expert, : self.inner] = expand(self.linear.format, gate)
            w13[expert, self.inner :] = expand(self.linear.format, up)
            w2[expert] = expand(self.linear.format, down)
            if self.quantize_inputs:
                self.fakes.append((self._fake(gate, up), self._fake(down)))
        for suffix in self.suffixes:
            delattr(layer, f"w13_{suffix}")
            delattr(layer, f"w2_{suffix}")
        layer.register_parameter("w13_weight", torch.nn.Parameter(w13, requires_grad=False))
        layer.register_parameter("w2_weight", torch.nn.Parameter(w2, requires_grad=False))

    def _stored(self, layer: Any, expert: int, which: str) -> dict[str, torch.Tensor]:
        """Return the tensors of one projection, by suffix."""
        prefix = "w2" if which == "w2" else "w13"
        tensors: dict[str, torch.Tensor] = {}
        for suffix in self.suffixes:
            tensor = getattr(layer, f"{prefix}_{suffix}").data[expert]
            if suffix in PER_TENSOR:
                tensors[suffix] = tensor[_INDEX[which]].clone()
            elif suffix != "weight_shape":
                rows = tensor.shape[0] // (2 if prefix == "w13" else 1)
                tensors[suffix] = tensor[_INDEX[which] * rows : (_INDEX[which] + 1) * rows]
        return tensors

    def _check(self, expert: int, gate: Any, up: Any, down: Any) -> None:
        names = self.projections
        for name, tensors in ((names["w1"], gate), (names["w3"], up), (names["w2"], down)):
            refuse_invalid_scales(f"{self.module}.{expert}.{name}", self.linear.format, tensors)
        for suffix in set(PER_TENSOR) & gate.keys():
            scales = {names["w1"]: gate[suffix], names["w3"]: up[suffix]}
            refuse_different_scales(f"{self.module}.{expert}", suffix, scales)

    def _fake(self, *projections: dict[str, torch.Tensor]) -> Fake | None:
        scales = [tensors[self.input_scale] for tensors in projections] if self.input_scale else []
        return fake_of(self.linear.format, torch.stack(scales) if scales else None)

    def get_fused_moe_quant_config(self, layer: Any) -> FusedMoEQuantConfig | None:
        """Return None: vLLM's kernels are not used."""
        return None

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any,
        shared_experts_input: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the weighted sum of each token's expert outputs, in the order and dtype of `halfbyte compare`."""

        def weights(expert: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            fused = layer.w13_weight[expert].to(x.dtype)
            return fused[: self.inner], fused[self.inner :], layer.w2_weight[expert].to(x.dtype)

        def change(expert: int, which: str, tensor: torch.Tensor) -> torch.Tensor:
            fake = self.fakes[expert][0 if which == GATE_UP else 1]
            return tensor if fake is None else fake(tensor)

        chosen = topk_ids.long()
        return run_experts(x, chosen, topk_weights, weights, threads=0, change=change if self.fakes else None)


def _load_scalar(
    param: torch.nn.Parameter,
    loaded_weight: torch.Tensor,
    weight_name: str,
    shard_id: str,
    expert_id: int,
    return_success: bool = False,
) -> bool:
    """Load the scalar of each projection separately: vLLM's loader would overwrite gate's with up's."""
    target = param.data[expert_id, _INDEX[shard_id]]
    target.copy_(loaded_weight.reshape(target.shape))
    return True


def _refuse_unsupported(moe: FusedMoEConfig, module: str) -> None:
    """Refuse configurations that cannot be emulated before vLLM fails on them."""
    if moe.moe_parallel_config.use_ep:
        what = "expert parallelism cannot be emulated"
        raise UsageError(what, where=module, fix="leave out --enable-expert-parallel")
    if moe.activation != MoEActivation.SILU:
        what = f"experts with the activation {moe.activation.value} cannot be emulated, only silu"
        raise UsageError(what, where=module, fix="serve it without --quantization halfbyte_emulate")
    if torch.cuda.is_available() and not get_current_vllm_config().model_config.enforce_eager:
        what = "emulated experts cannot be captured in a CUDA graph"
        raise UsageError(what, where=module, fix="add --enforce-eager")
