"""Describe the number formats of weights, activations, KV cache and routers, as stored in the headers."""

from __future__ import annotations

import re
from collections import Counter

from halfbyte.evidence.fields import number, texts, words
from halfbyte.families.linears import PLAIN
from halfbyte.formats.registry import FORMATS
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code_in_table, inline, phrase

ROUTER = "router"
_SHOWN = 12  # names of an exclude list
_LAYER = re.compile(r"(\blayers\.)\d+")
_WEIGHTS = {
    "nvfp4": "NVFP4: FP4 (E2M1) values with one FP8 (E4M3) scale per 16 values and one FP32 scale per tensor",
    "mxfp4": "MXFP4: FP4 (E2M1) values with one power-of-two (E8M0) scale per 32 values",
    "int4": "INT4 values with one BF16 scale per group",
    "fp8_block": "FP8 (E4M3) values with one FP32 scale per 128 x 128 block",
    "fp8_channel": "FP8 (E4M3) values with one scale per row",
}
_SCALE_RULES = {
    "max": "each block's scale is set from its largest value",
    "mse": "each block uses the FP8 scale with the smallest squared error",
    "compensated": "GPTQ error compensation with calibration data",
    "even": "each block's scale is set from its largest value, rounded to a power of two",
}


def stored_formats(card: CardFacts) -> list[str]:
    """Return the stored formats of quantized linears."""
    return sorted({linear.format for linear in card.model.linears.values()} - set(PLAIN))


def weight_name(card: CardFacts) -> str:
    """Return the name of the format with the most quantized bytes."""
    return card.served.quantization.partition("-")[0].upper()


def weights(card: CardFacts) -> Markdown:
    """Describe how quantized weights are stored."""
    formats = [
        f"{_WEIGHTS[name.removesuffix('_ct')]} "
        f"({FORMATS[name].bits_per_weight:g} bits per weight; {FORMATS[name].title})"
        for name in stored_formats(card)
    ]
    rule = words(card.recipe, "quantize", "scales")
    scales = f"; scale rule {inline(rule)}: {_SCALE_RULES[rule]}" if rule in _SCALE_RULES else ""
    return Markdown("; ".join(formats) + scales) if formats else Markdown("BF16, not quantized")


def activations(card: CardFacts) -> Markdown:
    """Describe the activation format of quantized linears."""
    format, rule = card.served.activations, words(card.recipe, "quantize", "activations")
    if format == "none":
        return Markdown("not quantized (BF16); weight-only quantization" if stored_formats(card)
                        else "not quantized (BF16)")  # fmt: skip
    if format == "nvfp4":
        scale = "one stored FP32 scale per tensor"
        if rule == "calibrated":
            scale += " (calibrated)"
        elif (value := number(card.recipe, "quantize", "input_scale", "fixed")) is not None:
            scale += f" (fixed at {value:g})"
        return Markdown(f"NVFP4: {scale}; one FP8 (E4M3) scale per 16 values, computed at inference")
    if format == "mxfp4":
        return Markdown("MXFP4: one E8M0 scale per 32 values, computed at inference; not calibrated")
    return Markdown("FP8 (E4M3), scaled at inference")


def kv_cache(card: CardFacts) -> Markdown:
    """Describe the KV-cache format that the checkpoint declares."""
    if card.served.kv_dtype is None:
        return Markdown("BF16 by default; engines can be configured to use FP8")
    scales = any(name.endswith((".k_scale", ".v_scale")) for name in card.checkpoint.tensors)
    how = "with scales in the checkpoint" if scales else "without scales in the checkpoint"
    name = "FP8 (E4M3)" if card.served.kv_dtype.startswith("fp8") else card.served.kv_dtype
    return phrase("{}, {}", name, how)


def excluded(card: CardFacts) -> Markdown:
    """Return the modules that config.json excludes from quantization."""
    modules = texts(card.block, "ignore") or texts(card.block, "exclude") or texts(card.block, "exclude_modules")
    if not modules:
        return Markdown("none listed" if card.block else "nothing is quantized")
    patterns = Counter(_LAYER.sub(r"\1N", name) for name in modules)  # NVIDIA lists two names per layer
    layers = {_LAYER.sub(r"\1N", name): name for name in modules}
    names = [
        Markdown(f"{code_in_table(name)} ({count} layers)") if count > 1 else code_in_table(layers[name])
        for name, count in patterns.items()
    ]
    more = f" and {len(names) - _SHOWN:,} more, in config.json" if len(names) > _SHOWN else ""
    return Markdown(", ".join(names[:_SHOWN]) + more)


def routers(card: CardFacts) -> Markdown:
    """Describe how the routers are stored, from the headers."""
    row = next((row for row in card.inspection.roles if row.role == ROUTER), None)
    if row is None:
        return Markdown("none")
    dtypes = " and ".join(name.upper() for name in row.stored_as)
    if set(row.stored_as) <= set(PLAIN):
        return Markdown(f"{dtypes}, not quantized: no engine supports quantized routers")
    return Markdown(f"{dtypes}. **No engine supports quantized routers: this checkpoint will not load**")
