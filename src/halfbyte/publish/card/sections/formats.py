"""Describe the number formats of weights, activations, KV cache and routers, as stored in the headers."""

from __future__ import annotations

import re
from collections import Counter

from halfbyte.evidence.fields import texts
from halfbyte.evidence.plan import QuantizeChoice
from halfbyte.families.linears import PLAIN
from halfbyte.formats.registry import FORMATS, activation_formats
from halfbyte.methods.registry import METHODS
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.markdown import Markdown, code_in_table, inline, phrase

ROUTER = "router"
_SHOWN = 12  # names of an exclude list
_LAYER = re.compile(r"(\blayers\.)\d+")


def stored_formats(card: CardFacts) -> list[str]:
    """Return the stored formats of quantized linears."""
    return sorted({linear.format for linear in card.model.linears.values()} - set(PLAIN))


def weight_name(card: CardFacts) -> str:
    """Return the name of the format with the most quantized bytes."""
    return card.served.quantization.partition("-")[0].upper()


def weights(card: CardFacts) -> Markdown:
    """Describe how quantized weights are stored."""
    formats = [
        f"{FORMATS[name].card} ({FORMATS[name].bits_per_weight:g} bits per weight; {FORMATS[name].title})"
        for name in stored_formats(card)
    ]
    rule = (card.quantize.scales if card.quantize else None) or ""
    title = METHODS[rule].title if rule in METHODS else ""
    scales = f"; scale rule {inline(rule)}: {title}" if title else ""
    return Markdown("; ".join(formats) + scales) if formats else Markdown("BF16, not quantized")


def activations(card: CardFacts) -> Markdown:
    """Describe the activation format of quantized linears."""
    format, quantize = card.served.activations, card.quantize or QuantizeChoice()
    if format == "none":
        return Markdown("not quantized (BF16); weight-only quantization" if stored_formats(card)
                        else "not quantized (BF16)")  # fmt: skip
    origin = ""
    if quantize.activations == "calibrated":
        origin = " (calibrated)"
    elif quantize.input_scale is not None and quantize.input_scale.fixed is not None:
        origin = f" (fixed at {quantize.input_scale.fixed:g})"
    return Markdown(activation_formats()[format].card.format(scale=origin))


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
