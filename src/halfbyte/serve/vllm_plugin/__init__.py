"""vLLM plugin that emulates FP4 on any hardware: `vllm serve OUT --quantization halfbyte_emulate`.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). These modules are used only
with that quantization:

    config.py          the quantization config: replaces the checkpoint's own and chooses each module's method
    native.py          asks vLLM's class for the checkpoint's format whether a module is quantized
    stored.py          the checkpoint's linears by vLLM name; refuses inconsistent tensors before loading.
                       HALFBYTE_EMULATE_ACTIVATIONS=off disables the quantization of activations
    packed_tensors.py  the stored tensors of a module: shapes, record of loaded ones, checks, decoding to BF16
    linear.py          a quantized linear: packed while loading, then BF16
    experts.py         the routed experts of a layer, likewise, and their forward pass

A workaround for a bug in vLLM's CPU build is always active.

vLLM leaves tensors that a checkpoint lacks uninitialized, and uses the first of two scales that should be equal. The
plugin aborts startup with an error instead.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

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

    register_quantization_config(QUANTIZATION)(EmulatedConfig)
    with contextlib.suppress(ImportError):  # older versions have no scan
        hide_llvmlite_from_scan(import_module("vllm.triton_utils.dispatcher"))


def hide_llvmlite_from_scan(dispatcher: Any) -> None:
    """Hide llvmlite from the scan for kernels of vLLM's CPU build, which crashes on it.

    `vllm.triton_utils.dispatcher._rebind_kernels` reads attributes of every object in every module, and fails on
    llvmlite's `lib` (`'_lib_fn_wrapper' object has no attribute 'get'`). vLLM's Kimi model imports numba, and with it
    llvmlite, if installed. numba is a dependency of halfbyte. Do nothing if vLLM has no scan or is already patched.
    """
    scan: Callable[..., Any] | None = getattr(dispatcher, "_rebind_kernels", None)
    if scan is None or hasattr(scan, "__wrapped__"):
        return

    @wraps(scan)
    def without_llvmlite(*args: Any) -> Any:
        hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "llvmlite"}
        for name in hidden:
            del sys.modules[name]
        try:
            return scan(*args)
        finally:
            sys.modules.update(hidden)

    dispatcher._rebind_kernels = without_llvmlite
