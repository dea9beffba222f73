"""How numbers are stored and computed, in words: by the headers, not by what a recipe intended."""

from __future__ import annotations

import re
from collections import Counter

from halfbyte.models.linears import PLAIN
from halfbyte.numerics.formats import FORMATS
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, code, inline, phrase
from halfbyte.publish.card.reading import texts, words

ROUTER = "router"
_SHOWN = 12  # names of an exclude list
_LAYER = re.compile(r"(\blayers\.)\d+")
_WEIGHTS = {
    "nvfp4": "NVFP4: FP4 E2M1 codes, an FP8 E4M3 scale for 16 values and an FP32 scale for a tensor",
    "mxfp4": "MXFP4: FP4 E2M1 codes and a power of two (E8M0) as scale for 32 values",
    "int4": "INT4 codes and a BF16 scale for a group of values",
    "fp8_block": "FP8 E4M3 codes and an FP32 scale for a block of 128 x 128",
    "fp8_channel": "FP8 E4M3 codes and a scale for a row",
}
_CHOSEN = {
    "max": "each block's largest value decides its scale",
    "mse": "of all FP8 scales each block has the one with the smallest squared error",
    "compensated": "errors of each column are made up for in the next ones, by the calibration data",
    "even": "each block's largest value decides, rounded to the even power of two",
}


def stored_formats(known: Known) -> list[str]:
    """Return the formats of quantized linears, by the headers."""
    return sorted({linear.format for linear in known.model.linears.values()} - set(PLAIN))


def weight_name(known: Known) -> str:
    """Return the format of most of the quantized bytes in a word."""
    return known.served.quantization.partition("-")[0].upper()


def weights(known: Known) -> Markdown:
    """Say how quantized weights are stored."""
    found = [
        f"{_WEIGHTS[name.removesuffix('_ct')]} ({FORMATS[name].bits_per_weight:g} bits a weight; {FORMATS[name].title})"
        for name in stored_formats(known)
    ]
    rule = words(known.recipe, "quantize", "scales")
    how = f"; scales by the rule {inline(rule)}: {_CHOSEN[rule]}" if rule in _CHOSEN else ""
    return Markdown("; ".join(found) + how) if found else Markdown("BF16: nothing is quantized")


def activations(known: Known) -> Markdown:
    """Say how engines run the inputs of quantized linears."""
    format, rule = known.served.activations, words(known.recipe, "quantize", "activations")
    if format == "none":
        return Markdown("not quantized (BF16): the checkpoint asks for 4-bit weights only" if stored_formats(known)
                        else "not quantized (BF16)")  # fmt: skip
    if format == "nvfp4":
        scale = (
            "an FP32 scale for a tensor, calibrated on data" if rule == "calibrated" else "an FP32 scale for a tensor"
        )
        return Markdown(f"NVFP4: {scale}, stored; FP8 E4M3 scales for 16 values, computed at inference")
    if format == "mxfp4":
        return Markdown("MXFP4: E8M0 scales for 32 values, computed at inference; nothing is calibrated")
    return Markdown("FP8 E4M3, scaled at inference")


def kv_cache(known: Known) -> Markdown:
    """Say what the checkpoint asks of the KV cache."""
    if known.served.kv_dtype is None:
        return Markdown("BF16: the checkpoint asks for nothing else; an engine can be told to use FP8")
    scales = any(name.endswith((".k_scale", ".v_scale")) for name in known.checkpoint.tensors)
    how = "with scales in the checkpoint" if scales else "cast, without scales in the checkpoint"
    name = "FP8 E4M3" if known.served.kv_dtype.startswith("fp8") else known.served.kv_dtype
    return phrase("{}, {}", name, how)


def excluded(known: Known) -> Markdown:
    """Return the modules that config.json tells engines to leave alone."""
    found = texts(known.block, "ignore") or texts(known.block, "exclude") or texts(known.block, "exclude_modules")
    if not found:
        return Markdown("config.json excludes nothing by name" if known.block else "nothing is quantized")
    alike = Counter(_LAYER.sub(r"\1N", name) for name in found)  # lists of NVIDIA's have two names for each layer
    layers = {_LAYER.sub(r"\1N", name): name for name in found}
    names = [
        Markdown(f"{code(name)} for {count} layers N") if count > 1 else code(layers[name])
        for name, count in alike.items()
    ]
    more = f" and {len(names) - _SHOWN:,} more, in config.json" if len(names) > _SHOWN else ""
    return Markdown(", ".join(names[:_SHOWN]) + more)


def routers(known: Known) -> Markdown:
    """Say how the routers are stored: whatever a list or a recipe says, the headers decide."""
    row = next((row for row in known.inspection.roles if row.role == ROUTER), None)
    if row is None:
        return Markdown("there are none")
    held = " and ".join(name.upper() for name in row.stored_as)
    if set(row.stored_as) <= set(PLAIN):
        return Markdown(f"{held}, by the headers: routers are never quantized, because no engine loads a quantized one")
    return Markdown(f"{held}, by the headers. **No engine loads a quantized router: this checkpoint will not load**")
