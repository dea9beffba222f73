"""Memory requirements of a checkpoint and of its draft: bytes by how engines shard them, from a plan or from headers.

An Eagle3 draft is one layer that proposes tokens for the target model to verify. vLLM shards it like the target, except
for `fc`, which joins three hidden states and is replicated like MLA's down-projections. The embedding is shared with
the target. The published MLA drafts for Kimi have the target's attention over two states (an embedding and a hidden
state), a dense MLP of the target's dense width, and an output head. As a check of this geometry: an FP8 version of the
draft leaves room for 6,752 more tokens (241 MB) on each of 8 GPUs, and half the computed size of the linears is 245 MB.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.families.family import Family
from halfbyte.families.kimi_k25.geometry import KIMI_K26, Geometry
from halfbyte.families.model import Model
from halfbyte.plan.manifest import Plan

# How vLLM, SGLang and ATOM shard a part. Tensor parallelism splits WIDTH by heads or by the inner width of an MLP, and
# VOCABULARY by rows, in multiples of 64. EXPERTS are split by width, or by whole experts with expert parallelism. TOWER
# is split by width, or replicated with --mm-encoder-tp-mode data. WHOLE is replicated.
WIDTH, VOCABULARY, EXPERTS, TOWER, WHOLE = "width", "vocabulary", "experts", "tower", "whole"

# MLA's down-projections compute a latent that all heads share, so they are replicated.
_LATENT = ("q_a_proj", "kv_a_proj_with_mqa")
_LATENT_NAME = "latent attention"
_BY_ROLE: Mapping[str, tuple[str, str]] = {
    "routed_experts": ("routed experts", EXPERTS),
    "attention": ("attention", WIDTH),
    "shared_experts": ("shared experts", WIDTH),
    "dense_mlp": ("dense MLP", WIDTH),
    "embed": ("embedding", VOCABULARY),
    "head": ("output head", VOCABULARY),
    "vision": ("vision tower", TOWER),
    "projector": ("projector", WHOLE),
    "router": ("routers", WHOLE),
    "norm": ("norms", WHOLE),
    "other_buffers": ("buffers", WHOLE),
}
ABSORBED = "absorbed kv_b"
_BF16_NBYTES = 2

_BF16 = 2
_STATES = 3  # hidden states that fc joins
_REPLICATED = ("fc", "q_a_proj", "kv_a_proj_with_mqa")
_SHARED = "embed_tokens"


@dataclass(frozen=True, slots=True)
class Part:
    """Weights that engines shard the same way."""

    name: str
    nbytes: int
    placed: str
    parameters: int = 0  # number of logical values, independent of the format


class ExpertLayers(NamedTuple):
    """The layers with the same number of routed experts, and their bytes."""

    experts: int
    layers: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Needs:
    """Weights by how engines shard them, and the KV cache values per token.

    `parts` are the weights in the files, and `absorbed kv_b`: for decoding vLLM absorbs MLA's kv_b into two BF16
    matrices and keeps kv_b for prefill. `kv_values` are cached per token in all `layers`, in `kv_heads` equal parts (1
    for MLA). `latent` is the number of values in MLA's latent, 512 + 64 for all heads; None without MLA.
    """

    parts: tuple[Part, ...]
    routed: tuple[ExpertLayers, ...]
    layers: int
    kv_values: int
    kv_heads: int
    latent: int | None
    context: int | None
    heads: int | None
    vocabulary: int | None
    active_experts: int = 0
    width: int | None = None  # of hidden states
    expert_width: int | None = None
    value_latent: int | None = None  # the latent without the rotary key
    expanded: int | None = None  # keys and values of all heads that MLA expands from one cached token
    vision: bool = False

    @property
    def weights_nbytes(self) -> int:
        """Return the bytes of all weights that engines load from the files."""
        return sum(part.nbytes for part in self.parts if part.name != ABSORBED)

    @property
    def experts(self) -> int:
        """Return the number of routed experts in the largest layer."""
        return max((row.experts for row in self.routed), default=0)

    def without_vision(self) -> Needs:
        """Return the requirements of a text-only server, which loads neither vision tower nor projector."""
        vision = [_BY_ROLE[role][0] for role in ("vision", "projector")]
        return replace(self, parts=tuple(part for part in self.parts if part.name not in vision), vision=False)

    def expanded_to_bf16(self) -> Needs:
        """Return the requirements with 4-bit and 8-bit weights expanded to BF16."""
        parts = tuple(replace(part, nbytes=max(part.nbytes, _BF16_NBYTES * part.parameters)) for part in self.parts)
        before, after = (sum(part.nbytes for part in rows if part.placed == EXPERTS) for rows in (self.parts, parts))
        routed = tuple(row._replace(nbytes=row.nbytes * after // before) for row in self.routed)
        return replace(self, parts=parts, routed=routed)

    def pruned(self, experts: int) -> Needs:
        """Return the requirements with at most `experts` experts per layer, and routers pruned to match."""
        kept = [(row, min(row.experts, experts)) for row in self.routed]
        routed = tuple(row._replace(experts=n, nbytes=row.nbytes // row.experts * n) for row, n in kept)
        before, after = (sum(row.experts * row.layers for row in rows) for rows in (self.routed, routed))
        nbytes = {"routed experts": sum(row.nbytes for row in routed)}
        nbytes |= {part.name: part.nbytes * after // before for part in self.parts if part.name == "routers"}
        parts = tuple(
            replace(part, nbytes=nbytes[part.name], parameters=part.parameters * after // before)
            if part.name in nbytes
            else part
            for part in self.parts
        )
        return replace(self, parts=parts, routed=routed)


class _Piece(NamedTuple):
    role: str
    layer: int | None
    leaf: str
    expert: int | None
    nbytes: int
    parameters: int


def needs(plan: Plan) -> Needs:
    """Return the requirements of a plan's output."""
    pieces = (
        _Piece(
            job.role,
            job.layer,
            job.linears[0].module.rpartition(".")[2] if job.linears else "",
            job.linears[0].expert if job.linears else None,
            job.write_nbytes,
            sum(math.prod(linear.shape) for linear in job.linears) or job.write_nbytes // _BF16_NBYTES,
        )
        for job in plan.jobs
    )
    return _collect(pieces, plan.model.family, plan.checkpoint.config, plan.layers or plan.model.layers)


def needs_of(checkpoint: Checkpoint, model: Model) -> Needs:
    """Return the requirements of a checkpoint."""
    return _collect(_stored(model), model.family, checkpoint.config, model.layers)


def _stored(model: Model) -> Iterator[_Piece]:
    for linear in model.linears.values():
        leaf = linear.module.rpartition(".")[2]
        yield _Piece(linear.role, linear.layer, leaf, linear.expert, linear.nbytes, math.prod(linear.shape))
    for place, tensor in model.plain.values():
        yield _Piece(place.role, place.layer, "", None, tensor.nbytes, math.prod(tensor.shape))


def _collect(pieces: Iterable[_Piece], family: Family, config: Mapping[str, Any], layers: int) -> Needs:
    text = family.text(config)
    layers = min(layers, family.number(config, "layers") or layers)
    nbytes: Counter[tuple[str, str]] = Counter()
    parameters: Counter[str] = Counter()
    experts: dict[int, set[int]] = {}
    by_layer: Counter[int] = Counter()
    for piece in pieces:
        if piece.layer is not None and piece.layer >= layers:
            continue  # multi-token prediction layers, which engines load only as a draft
        name, placed = _BY_ROLE[piece.role]
        if piece.leaf in _LATENT:
            name, placed = _LATENT_NAME, WHOLE
        nbytes[name, placed] += piece.nbytes
        parameters[name] += piece.parameters
        if placed == EXPERTS and piece.layer is not None and piece.expert is not None:
            experts.setdefault(piece.layer, set()).add(piece.expert)
            by_layer[piece.layer] += piece.nbytes
    by_count: dict[int, list[int]] = {}
    for layer, members in experts.items():
        by_count.setdefault(len(members), []).append(by_layer[layer])
    values, kv_heads = kv_values(text, layers)
    number = {key: value for key, value in text.items() if type(value) is int}
    latent = values // layers if "kv_lora_rank" in number and layers else None
    parts = [Part(name, size, placed, parameters[name]) for (name, placed), size in nbytes.items()]
    if latent is not None:
        parts.append(Part(ABSORBED, layers * _expanded(number) * number["kv_lora_rank"] * _BF16_NBYTES, WIDTH))
    return Needs(
        parts=tuple(sorted(parts, key=lambda part: -part.nbytes)),
        routed=tuple(ExpertLayers(number, len(rows), sum(rows)) for number, rows in sorted(by_count.items())),
        layers=layers,
        kv_values=values,
        kv_heads=kv_heads,
        latent=latent,
        context=number.get("max_position_embeddings"),
        heads=number.get("num_attention_heads"),
        vocabulary=family.number(config, "vocabulary"),
        active_experts=family.number(config, "active_experts") or 0,
        width=family.number(config, "width"),
        expert_width=family.number(config, "expert_width"),
        value_latent=number.get("kv_lora_rank"),
        expanded=_expanded(number) if latent is not None else None,
        vision=any(part.placed == TOWER for part in parts),
    )


def _expanded(number: Mapping[str, int]) -> int:
    """Return the number of keys and values that kv_b expands from a latent, for all heads."""
    return number.get("num_attention_heads", 0) * (number.get("qk_nope_head_dim", 0) + number.get("v_head_dim", 0))


def kv_values(text_config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Return the number of cached values per token, and into how many parts tensor parallelism can split them."""
    number = {key: value for key, value in text_config.items() if type(value) is int}
    if "kv_lora_rank" in number:  # MLA: one latent and one rotary key, for all heads
        return layers * (number["kv_lora_rank"] + number.get("qk_rope_head_dim", 0)), 1
    heads = number.get("num_attention_heads", 0)
    width = number.get("head_dim") or (number.get("hidden_size", 0) // heads if heads else 0)
    kv_heads = number.get("num_key_value_heads", heads)
    return layers * 2 * kv_heads * width, max(1, kv_heads)


@dataclass(frozen=True, slots=True)
class Draft:
    """Bytes of a draft without its embedding, the replicated bytes, and its layers with a KV cache."""

    nbytes: int
    whole_nbytes: int = 0
    layers: int = 1
    tokens: int = 3  # proposed per step


def eagle3_mla(geometry: Geometry = KIMI_K26) -> Draft:
    """Return an Eagle3 MLA draft for a model of this geometry, built like the published ones for Kimi."""
    g = geometry
    latent = (g.q_rank + g.kv_rank + g.rope_width) * 2 * g.width
    queries = g.heads * (g.nope_width + g.rope_width) * g.q_rank
    expanded = g.heads * (g.nope_width + g.value_width) * g.kv_rank
    split = queries + expanded + g.width * g.heads * g.value_width + 3 * g.width * g.dense_width
    whole = latent + _STATES * g.width * g.width
    return Draft(nbytes=(split + whole + g.vocabulary * g.width) * _BF16, whole_nbytes=whole * _BF16)


def draft_of(folder: Path, tokens: int = 3) -> Draft:
    """Return the size of the draft in a folder, from its headers."""
    checkpoint = open_checkpoint(folder)
    nbytes: Counter[bool] = Counter()
    for name, tensor in checkpoint.tensors.items():
        parts = name.split(".")
        if _SHARED not in parts:
            nbytes[any(part in _REPLICATED for part in parts)] += tensor.nbytes
    layers = checkpoint.config.get("num_hidden_layers")
    return Draft(nbytes.total(), nbytes[True], layers if type(layers) is int else 1, tokens)
