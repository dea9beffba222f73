"""At-a-glance section: architecture, formats, sizes, context, and a row per tensor role."""

from __future__ import annotations

from collections import Counter
from typing import Any

from halfbyte.evidence.fields import (
    mapping,
    number,
    texts,
    whole,
    words,
)
from halfbyte.evidence.provenance import Provenance
from halfbyte.families.linears import PLAIN
from halfbyte.publish.card.facts import CardFacts, generation_config
from halfbyte.publish.card.figures import counted, parameters, storage
from halfbyte.publish.card.markdown import NOT_STATED, Markdown, code, phrase, table
from halfbyte.publish.card.sections import formats
from halfbyte.publish.card.sections.head import license_words
from halfbyte.publish.card.sections.serving import launches

_LATENT = (("q_lora_rank", "query LoRA rank"), ("kv_lora_rank", "KV LoRA rank"), ("qk_nope_head_dim", "NoPE head size"),
           ("qk_rope_head_dim", "RoPE head size"), ("v_head_dim", "value head size"))  # fmt: skip
_PROJECTIONS, _ROUTED = 3, "routed experts"  # gate, up and down
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def facts(card: CardFacts) -> dict[str, Any]:
    """Return both tables."""
    provenance = card.get(Provenance)
    rows: list[tuple[str, Any]] = [
        ("Base model", card.base),
        ("Architecture", _architecture(card)),
        ("Layers", _layers(card)),
        ("Experts per MoE layer", _experts(card)),
        ("Attention", _attention(card)),
        ("Parameters", parameters(card.inspection.parameters)),
        ("Active parameters per token", parameters(card.inspection.active_parameters)),
        ("Context", _context(card)),
        ("Weights", formats.weights(card)),
        ("Activations", formats.activations(card)),
        ("KV cache", formats.kv_cache(card)),
        ("Quantized linear layers", _quantized(card)),
        ("Excluded from quantization", formats.excluded(card)),
        ("Routers", formats.routers(card)),
        ("Storage", f"{storage(sum(card.checkpoint.shards.values()))} in {_shards(card)}"),
        ("Engines (commands below)", _engines(card)),
        ("Operating system", provenance.environment.os if provenance else None),
        ("Input", "text and images" if card.inspection.vision_parameters else "text"),
        ("Output", "text"),
        ("Default sampling", _sampling(card)),
        ("License", license_words(card)),
    ]
    return {
        "rows": table(["", ""], [row for row in rows if row[1] not in (None, NOT_STATED) or row[0] == "License"]),
        "roles": table(["Component", "Parameters", "Stored as", "Bits per weight", "Tensors", "Bytes"], _roles(card)),
    }


def _architecture(card: CardFacts) -> Markdown:
    names = texts(card.checkpoint.config, "architectures")
    vision = card.inspection.vision_parameters
    tower = f", with a vision tower of {parameters(vision)} parameters" if vision else ""
    kind = "mixture of experts" if card.model.experts else "dense"
    return phrase("{} ({}), {}{}", code(names[0]) if names else None, card.inspection.family, kind, tower)


def _layers(card: CardFacts) -> str:
    inspection = card.inspection
    width = whole(card.text, "hidden_size")
    return (
        f"{inspection.layers} ({inspection.dense_layers} dense, {inspection.layers - inspection.dense_layers} MoE)"
        + (f", hidden size {width:,}" if width else "")
    )


def _experts(card: CardFacts) -> str:
    inspection, width = card.inspection, whole(card.text, "moe_intermediate_size")
    if not inspection.experts:
        return "none"
    before = f" of {card.served.source_experts}" if card.served.source_experts else ""
    most = "up to " if card.served.uneven else ""
    return (
        f"{most}{inspection.experts}{before} routed ({inspection.active_experts} active per token), "
        f"{inspection.shared_experts} shared" + (f"; intermediate size {width:,}" if width else "")
    )


def _attention(card: CardFacts) -> Markdown:
    heads = counted(card.served.heads) + " heads" if card.served.heads else "not stated"
    sizes = [f"{name} {whole(card.text, key):,}" for key, name in _LATENT if whole(card.text, key)]
    return Markdown(f"MLA, {heads}; {', '.join(sizes)}" if whole(card.text, "kv_lora_rank") else heads)


def _context(card: CardFacts) -> Markdown:
    """Return the model's maximum context, which is not the context that a server was started with."""
    most = card.served.context
    if not most:
        return Markdown("not stated")
    scaling = mapping(card.text, "rope_scaling") or mapping(card.text, "rope_parameters")
    kind = words(scaling, "type") or words(scaling, "rope_type")
    factor, first = number(scaling, "factor"), whole(scaling, "original_max_position_embeddings")
    rope = (
        f" (RoPE scaling {phrase('{}', kind)}, factor {factor:g} over {first:,})" if kind and factor and first else ""
    )
    return Markdown(f"{most:,} tokens{rope}")


def _quantized(card: CardFacts) -> Markdown:
    counts: Counter[tuple[str, str]] = Counter()
    for linear, number_of in card.model.kinds():
        if linear.format not in PLAIN:
            counts[linear.role.replace("_", " "), linear.format] += number_of
    whole_layers = len(card.model.moe_layers) * card.model.experts * _PROJECTIONS
    shape = f"; {len(card.model.moe_layers)} layers x {card.model.experts} experts x {_PROJECTIONS} projections"
    parts = [
        f"{count:,} in {role} ({format}{shape if role == _ROUTED and count == whole_layers else ''})"
        for (role, format), count in sorted(counts.items())
    ]
    total = f"{counts.total():,}: " if len(parts) > 1 else ""
    return phrase("{}", total + ", ".join(parts)) if counts else Markdown("none")


def _shards(card: CardFacts) -> str:
    count = card.inspection.shards
    return f"{count:,} safetensors shards" if count > 1 else "one safetensors file"


def _engines(card: CardFacts) -> str:
    return ", ".join(f"{row.engine} {row.version}" for row in launches(card)[0]) or "none"


def _sampling(card: CardFacts) -> str:
    config = generation_config(card)
    values = [f"{key} {value:g}" for key in _SAMPLING if (value := number(config, key)) is not None]
    return ", ".join(values) or "not stated"


def _roles(card: CardFacts) -> list[list[Any]]:
    return [
        [
            row.role.replace("_", " "),
            f"{row.parameters:,}",
            ", ".join(row.stored_as),
            "-" if row.bits_per_weight is None else f"{row.bits_per_weight:.2f}",
            f"{row.tensors:,}",
            f"{row.nbytes:,}",
        ]
        for row in card.inspection.roles
    ]
