"""FP4 behind a real vLLM on any hardware: `vllm serve OUT --quantization halfbyte_emulate`.

vLLM calls `register` in each of its processes (entry point group `vllm.general_plugins`). All that follows happens only
where that quantization is asked for:

    config.py     takes the place of the checkpoint's own method, and says which module is quantized
    native.py     asks vLLM's own class for the checkpoint's format about that, so that its ignore list is tested
    stored.py     what the folder stores, by name; refuses what does not fit together, before anything is loaded
    linear.py     a quantized linear: packed parameters with the checkpoint's names, then BF16
    experts.py    the routed experts of a layer, likewise, and their forward
    delivered.py  what vLLM's loaders brought; what is missing would be memory that nobody wrote
    scales.py     scales that make no sense, or differ where engines use one for both
    expand.py     packed tensors -> BF16, by halfbyte's own decoders
    inputs.py     activations as the hardware would quantize them; HALFBYTE_EMULATE_ACTIVATIONS=off leaves them
    agreement.py  the ignore list against the shards
    layout.py     rows and columns of the tensors of a format
    told.py       the line on /metrics that says so

llvmlite_scan.py cures a defect of vLLM's CPU build, also for those who ask for nothing.

vLLM leaves uninitialised what a checkpoint lacks, and takes the first of two scales that should be one. Here each such
thing ends the start with a sentence.
"""

from __future__ import annotations

import contextlib
import logging
from importlib import import_module

QUANTIZATION = "halfbyte_emulate"


def register() -> None:
    """Make the quantization known to vLLM; called in every process of every vLLM beside halfbyte.

    vLLM does not survive an error of a plugin. One that is too old or too new for this must start all the same.
    """
    try:
        _register()
    except Exception as error:
        logging.getLogger("vllm.halfbyte").warning("--quantization %s is not there: %s", QUANTIZATION, error)


def _register() -> None:
    from vllm.model_executor.layers.quantization import register_quantization_config  # noqa: PLC0415

    from halfbyte.serve.vllm_plugin.config import EmulatedConfig  # noqa: PLC0415
    from halfbyte.serve.vllm_plugin.llvmlite_scan import hide_llvmlite_from_scan  # noqa: PLC0415

    register_quantization_config(QUANTIZATION)(EmulatedConfig)
    with contextlib.suppress(ImportError):  # older ones have no such scan
        hide_llvmlite_from_scan(import_module("vllm.triton_utils.dispatcher"))
