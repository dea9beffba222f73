"""vLLM plugin that emulates FP4 on any hardware: `vllm serve OUT --quantization halfbyte_emulate`.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). These modules are used only
with that quantization:

    config.py          the quantization config: replaces the checkpoint's own and chooses each module's method
    native.py          asks vLLM's class for the checkpoint's format whether a module is quantized
    stored.py          the checkpoint's linears by vLLM name; refuses inconsistent tensors before loading
    linear.py          a quantized linear: packed while loading, then BF16
    experts.py         the routed experts of a layer, likewise, and their forward pass
    loaded_tensors.py  records the tensors that vLLM loaded; missing ones would be uninitialized memory
    scales.py          refuses invalid scales, and different scales where engines use one
    expand.py          decodes packed tensors to BF16
    inputs.py          quantizes activations like the hardware; HALFBYTE_EMULATE_ACTIVATIONS=off disables it
    agreement.py       checks the ignore list against the shards
    layout.py          shapes of a format's tensors
    metrics_label.py   marks the server as emulated on /metrics

llvmlite_scan.py works around a bug in vLLM's CPU build and is always active.

vLLM leaves tensors that a checkpoint lacks uninitialized, and uses the first of two scales that should be equal. The
plugin aborts startup with an error instead.
"""

from __future__ import annotations

import contextlib
import logging
from importlib import import_module

QUANTIZATION = "halfbyte_emulate"


def register() -> None:
    """Register the quantization with vLLM; called in every vLLM process of this environment.

    An error in a plugin would stop vLLM, so an unsupported version of vLLM only gets a warning.
    """
    try:
        _register()
    except Exception as error:
        logging.getLogger("vllm.halfbyte").warning("--quantization %s is not available: %s", QUANTIZATION, error)


def _register() -> None:
    from vllm.model_executor.layers.quantization import register_quantization_config

    from halfbyte.serve.vllm_plugin.config import EmulatedConfig
    from halfbyte.serve.vllm_plugin.llvmlite_scan import hide_llvmlite_from_scan

    register_quantization_config(QUANTIZATION)(EmulatedConfig)
    with contextlib.suppress(ImportError):  # older versions have no scan
        hide_llvmlite_from_scan(import_module("vllm.triton_utils.dispatcher"))
