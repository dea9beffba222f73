"""The table at a glance: architecture, formats, sizes, context; and a row for each role of tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

from halfbyte.models.linears import PLAIN
from halfbyte.publish.card.figures import counted, parameters, storage
from halfbyte.publish.card.known import Known, generation_config
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.card.reading import mapping, number, texts, whole, words
from halfbyte.publish.card.sections import formats
from halfbyte.publish.card.sections.head import license_words
from halfbyte.publish.card.sections.serving import launches

_LATENT = (("q_lora_rank", "query rank"), ("kv_lora_rank", "latent"), ("qk_nope_head_dim", "key"),
           ("qk_rope_head_dim", "rotary key"), ("v_head_dim", "value"))  # fmt: skip
_PROJECTIONS, _ROUTED = 3, "routed experts"  # gate, up and down
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def facts(known: Known) -> dict[str, Any]:
    """Return both tables."""
    rows: list[tuple[str, Any]] = [
        ("Base model", known.base),
        ("Architecture", _architecture(known)),
        ("Layers", _layers(known)),
        ("Experts in a MoE layer", _experts(known)),
        ("Attention", _attention(known)),
        ("Parameters", parameters(known.inspection.parameters)),
        ("Active parameters a token", parameters(known.inspection.active_parameters)),
        ("Context", _context(known)),
        ("Weights", formats.weights(known)),
        ("Activations", formats.activations(known)),
        ("KV cache", formats.kv_cache(known)),
        ("Quantized linears", _quantized(known)),
        ("Not quantized, by config.json", formats.excluded(known)),
        ("Routers", formats.routers(known)),
        ("Storage", f"{storage(sum(known.checkpoint.shards.values()))} in {_shards(known)}"),
        ("Engines with a command below", _engines(known)),
        ("Operating system", words(known.get("provenance"), "environment", "os")),
        ("Input", f"text{' and, as the base model, images' if known.inspection.vision_parameters else ''}"),
        ("Output", "text"),
        ("Sampling that it asks for", _sampling(known)),
        ("License", license_words(known)),
    ]
    return {
        "rows": table(["", ""], rows),
        "roles": table(["Part", "Parameters", "Stored as", "Bits a weight", "Tensors", "Bytes"], _roles(known)),
    }


def _architecture(known: Known) -> Markdown:
    names = texts(known.checkpoint.config, "architectures")
    vision = known.inspection.vision_parameters
    seen = f", with a vision tower of {parameters(vision)} parameters" if vision else ""
    kind = "mixture of experts" if known.model.experts else "dense"
    return phrase("{} ({}), {}{}", code(names[0]) if names else None, known.inspection.family, kind, seen)


def _layers(known: Known) -> str:
    found = known.inspection
    width = whole(known.text, "hidden_size")
    return f"{found.layers}: {found.dense_layers} dense, {found.layers - found.dense_layers} with experts" + (
        f"; width {width:,}" if width else ""
    )


def _experts(known: Known) -> str:
    found, width = known.inspection, whole(known.text, "moe_intermediate_size")
    if not found.experts:
        return "none"
    before = f" of {known.served.source_experts}" if known.served.source_experts else ""
    most = "up to " if known.served.uneven else ""
    return (
        f"{most}{found.experts}{before} routed, {found.active_experts} of them for a token, and "
        f"{found.shared_experts} shared" + (f"; each {width:,} wide" if width else "")
    )


def _attention(known: Known) -> Markdown:
    heads = counted(known.served.heads) + " heads" if known.served.heads else "not stated"
    sizes = [f"{name} {whole(known.text, key):,}" for key, name in _LATENT if whole(known.text, key)]
    return Markdown(f"MLA, {heads}; {', '.join(sizes)}" if whole(known.text, "kv_lora_rank") else heads)


def _context(known: Known) -> Markdown:
    """Return the positions that the model has; what a server was told to serve is another number."""
    most = known.served.context
    if not most:
        return Markdown("not stated")
    scaling = mapping(known.text, "rope_scaling") or mapping(known.text, "rope_parameters")
    kind = words(scaling, "type") or words(scaling, "rope_type")
    factor, first = number(scaling, "factor"), whole(scaling, "original_max_position_embeddings")
    how = f" (RoPE: {phrase('{}', kind)}, factor {factor:g}, from {first:,})" if kind and factor and first else ""
    return Markdown(f"{most:,} tokens{how}")


def _quantized(known: Known) -> Markdown:
    found: Counter[str] = Counter()
    for linear, number_of in known.model.kinds():
        if linear.format not in PLAIN:
            found[f"{linear.role.replace('_', ' ')} in {linear.format}"] += number_of
    whole_layers = len(known.model.moe_layers) * known.model.experts * _PROJECTIONS
    parts = [
        f"{count:,} of {name}"
        + (f" ({len(known.model.moe_layers)} layers x {known.model.experts} experts x {_PROJECTIONS} projections)"
           if name.startswith(_ROUTED) and count == whole_layers else "")
        for name, count in sorted(found.items())
    ]  # fmt: skip
    total = f"{found.total():,}: " if len(parts) > 1 else ""
    return phrase("{}", total + ", ".join(parts)) if found else Markdown("none")


def _shards(known: Known) -> str:
    count = known.inspection.shards
    return f"{count:,} safetensors shards" if count > 1 else "one safetensors file"


def _engines(known: Known) -> str:
    return ", ".join(f"{row.get('engine')} {row.get('version')}" for row in launches(known)[0]) or "none"


def _sampling(known: Known) -> str:
    found = generation_config(known)
    told = [f"{key} {value:g}" for key in _SAMPLING if (value := number(found, key)) is not None]
    return ", ".join(told) or "not stated"


def _roles(known: Known) -> list[list[Any]]:
    return [
        [
            row.role.replace("_", " "),
            f"{row.parameters:,}",
            ", ".join(row.stored_as),
            "-" if row.bits_per_weight is None else f"{row.bits_per_weight:.2f}",
            f"{row.tensors:,}",
            f"{row.nbytes:,}",
        ]
        for row in known.inspection.roles
    ]
