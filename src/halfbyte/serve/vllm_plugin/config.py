"""The quantization config `halfbyte_emulate`, which replaces the checkpoint's own and chooses each module's method."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from halfbyte.serve.vllm_plugin import QUANTIZATION

if TYPE_CHECKING:
    from halfbyte.families.linears import StoredLinear
    from halfbyte.serve.vllm_plugin.stored import Stored

_METRIC = "halfbyte_emulated"


class EmulatedConfig(QuantizationConfig):
    """The checkpoint's declared quantization and its stored linears. Without a block nothing is quantized."""

    def __init__(self, block: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.native: QuantizationConfig | None = None
        self.stored: Stored | None = None
        if block is not None:
            from halfbyte.machine.library_settings import limit_onednn  # only where it is used
            from halfbyte.serve.vllm_plugin.native import native_config

            limit_onednn()
            self.native = native_config(block)
            # The names of KV scales depend on the format.
            self.get_cache_scale_mapper = self.native.get_cache_scale_mapper
            self.get_checkpoint_weight_mapper = self.native.get_checkpoint_weight_mapper

    def get_name(self) -> str:
        """Return the value of `--quantization`."""
        return QUANTIZATION

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Return the supported dtypes: emulation only affects values, so any float dtype works."""
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        """Return 0: plain PyTorch runs on every GPU."""
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return no file: vLLM itself reads hf_quant_config.json if config.json has no block."""
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> EmulatedConfig:
        """Return the config for a checkpoint's quantization_config."""
        return cls(config)

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Replace the checkpoint's method only if the user requests it."""
        return QUANTIZATION if user_quant == QUANTIZATION else None

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Check the folder: this is vLLM's first call with its path, in the process whose errors the user sees."""
        from halfbyte.serve.vllm_plugin.stored import Stored, activations_wanted

        activations_wanted()  # refuses an invalid value early
        _add_metric()
        self.stored = Stored(Path(model_name))

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Rename the modules of the ignore list and of the checkpoint to the names in vLLM's model."""
        if self.native is not None:
            self.native.apply_vllm_mapper(hf_to_vllm_mapper)
        if self.stored is not None:
            self.stored.rename(lambda name: next(iter(hf_to_vllm_mapper.apply_list([name])), None))

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        """Return our method for a module that is quantized in config.json and in the shards, else vLLM's."""
        from vllm.model_executor.layers.attention import Attention, MLAAttention
        from vllm.model_executor.layers.fused_moe import RoutedExperts
        from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        if self.native is not None:
            self.native.packed_modules_mapping = self.packed_modules_mapping
        if isinstance(layer, (Attention, MLAAttention)):
            return None if self.native is None else self.native.get_quant_method(layer, prefix)
        if isinstance(layer, RoutedExperts):
            return self._experts_method(layer, prefix)
        if not isinstance(layer, (LinearBase, ParallelLMHead)):
            return None
        linear = self._agreed(layer, prefix, self._parts(prefix))
        if linear is None:
            return UnquantizedLinearMethod()
        if isinstance(layer, ParallelLMHead):
            from halfbyte.errors import UsageError

            what = "a quantized output head cannot be emulated"
            raise UsageError(what, where=prefix, fix="quantize with roles.head=keep")
        from halfbyte.serve.vllm_plugin.linear import EmulatedLinearMethod

        return EmulatedLinearMethod(prefix, self._parts(prefix), linear, self._input_scale(linear), self._fake(linear))

    def _experts_method(self, layer: Any, prefix: str) -> Any:
        from halfbyte.serve.vllm_plugin.experts import EmulatedExpertsMethod
        from halfbyte.serve.vllm_plugin.packed_tensors import expert_projections

        experts = range(layer.moe_config.num_logical_experts)
        names = [f"{prefix}.{expert}.{name}" for expert in experts for name in expert_projections(layer).values()]
        linear = self._agreed(layer, prefix, names)
        if linear is None:
            return None  # vLLM's own method for unquantized experts
        return EmulatedExpertsMethod(layer.moe_config, prefix, linear, self._input_scale(linear), self._fake(linear))

    def _agreed(self, layer: torch.nn.Module, prefix: str, names: list[str]) -> StoredLinear | None:
        """Return one of the stored linears, or None if unquantized; refuse a contradiction with config.json."""
        from halfbyte.serve.vllm_plugin.native import is_quantized
        from halfbyte.serve.vllm_plugin.stored import refuse_disagreement

        assert self.stored is not None, "vLLM did not call maybe_update_config"
        linear = self.stored.representative(prefix, names)
        declared = self.native is not None and is_quantized(self.native, layer, prefix)
        refuse_disagreement(prefix, declared=declared, linear=linear)
        return linear

    def _parts(self, prefix: str) -> list[str]:
        """Return the checkpoint's names of the linears that vLLM fuses into one."""
        parent, _, leaf = prefix.rpartition(".")
        leaves = self.packed_modules_mapping.get(leaf, [leaf])
        return [f"{parent}.{name}" if parent else name for name in leaves]

    def _input_scale(self, linear: StoredLinear) -> str | None:
        assert self.stored is not None
        return self.stored.input_scale_of(linear)

    def _fake(self, linear: StoredLinear) -> bool:
        """Return whether the inputs of a linear are quantized."""
        from halfbyte.serve.vllm_plugin.stored import activations_wanted

        assert self.stored is not None
        return self.stored.inputs_quantized and activations_wanted()


def _add_metric() -> None:
    """Mark the server as emulated on /metrics, so that remote benchmarks can detect it; once per process."""
    with contextlib.suppress(ImportError, ValueError):  # no prometheus_client, or already added
        from prometheus_client import Gauge

        Gauge(_METRIC, "This server emulates its number format.", multiprocess_mode="mostrecent").set(1)
