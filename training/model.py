"""The model that is trained: DeepSeek-V3's text model as in Kimi-K2.6, lean, on one flat stream of tokens.

Documents lie one after another without padding; attention never looks across their borders (`Documents`). Weights are
FP32 and used in BF16. Experts run in groups: tokens are sorted by expert, two grouped products, and back. A test holds
its logits to those of transformers' own Kimi class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from halfbyte.families.kimi_k25.geometry import Geometry
from training.int4 import straight_through
from training.shape import CONTEXT, MINI, NORM_EPS, ROPE, ROUTED_SCALE

INIT_STD = 0.02


class Documents(NamedTuple):
    """Where documents begin in a stream of T tokens: starts [documents + 1] (the last one is T), the longest length."""

    starts: Tensor
    longest: int
    positions: Tensor  # [T], from 0 in each document

    @staticmethod
    def of(starts: Tensor, device: torch.device | str = "cpu") -> Documents:
        """Return the documents that begin at `starts` (int32 on the CPU; the last entry is the stream's length)."""
        lengths = starts.diff()
        positions = torch.arange(int(starts[-1]), dtype=torch.int32)
        positions -= torch.repeat_interleave(starts[:-1], lengths)
        longest = int(lengths.max())
        return Documents(starts.to(device, non_blocking=True), longest, positions.to(device, non_blocking=True))


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize in FP32."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)
        return wide.to(x.dtype) * self.weight.to(x.dtype)


class Linear(nn.Module):
    """A linear without bias: FP32 weights, used in the type of what comes in."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(std=INIT_STD))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return functional.linear(x, self.weight.to(x.dtype))


class Mlp(nn.Module):
    """The gated MLP of the dense layer and of the shared expert."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, inner)
        self.up_proj = Linear(width, inner)
        self.down_proj = Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Gate."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of neighbours [..., 0::2], [..., 1::2]; the result has the first of all pairs, then the second."""
    first, second = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class Attention(nn.Module):
    """Multi-head latent attention: keys and values come from one latent of 512 that is small to keep."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.g = g
        self.scale = ROPE.softmax_scale(g.nope_width + g.rope_width)
        self.q_a_proj = Linear(g.width, g.q_rank)
        self.q_a_layernorm = Norm(g.q_rank)
        self.q_b_proj = Linear(g.q_rank, g.heads * (g.nope_width + g.rope_width))
        self.kv_a_proj_with_mqa = Linear(g.width, g.kv_rank + g.rope_width)
        self.kv_a_layernorm = Norm(g.kv_rank)
        self.kv_b_proj = Linear(g.kv_rank, g.heads * (g.nope_width + g.value_width))
        self.o_proj = Linear(g.heads * g.value_width, g.width)

    def latent(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a cache would keep of each token: the latent [T, 512] and the rotated key [T, 64]."""
        latent, key = self.kv_a_proj_with_mqa(x).split([self.g.kv_rank, self.g.rope_width], -1)
        return self.kv_a_layernorm(latent), rotate(key, cos, sin)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries [T, heads, 128] and their rotated part [T, heads, 64]."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.unflatten(-1, (self.g.heads, self.g.nope_width + self.g.rope_width))
        plain, turned = q.split([self.g.nope_width, self.g.rope_width], -1)
        return plain, rotate(turned, cos.unsqueeze(-2), sin.unsqueeze(-2))

    def expanded(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [T, heads, 192], the values padded: kernels want one width."""
        g = self.g
        q = torch.cat(self.queries(x, cos, sin), -1)
        latent, shared_key = self.latent(x, cos, sin)
        key, value = self.kv_b_proj(latent).unflatten(-1, (g.heads, -1)).split([g.nope_width, g.value_width], -1)
        key = torch.cat([key, shared_key.unsqueeze(-2).expand(-1, g.heads, -1)], -1)
        return q, key, functional.pad(value, (0, g.rope_width))

    def finish(self, mixed: Tensor) -> Tensor:
        """Return the output for what the heads have seen [T, heads, 192 or 128]."""
        return self.o_proj(mixed[..., : self.g.value_width].flatten(-2))


def attend(q: Tensor, k: Tensor, v: Tensor, documents: Documents, scale: float) -> Tensor:
    """Attend within documents, to oneself and to what came before; [T, heads, width] each."""
    if q.is_cuda:
        starts, longest = documents.starts, documents.longest
        return torch.ops.aten._flash_attention_forward(
            q, k, v, starts, starts, longest, longest, 0.0, True, False, scale=scale
        )[0]
    mixed: list[Tensor] = []
    for begin, end in itertools.pairwise(documents.starts.tolist()):
        one = [part[begin:end].transpose(0, 1) for part in (q, k, v)]
        mixed.append(functional.scaled_dot_product_attention(*one, is_causal=True, scale=scale))
    return torch.cat(mixed, 1).transpose(0, 1)


class _Rows(torch.autograd.Function):
    """rows[index], where `inverse` says how to go back: both directions only gather, nothing is added atomically.

    Each of the T rows occurs `copies` times in the result.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor, copies: int) -> Tensor:
        """Gather."""
        ctx.save_for_backward(inverse)
        ctx.copies = copies
        return rows[index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Gather back, and add the copies up."""
        (inverse,) = ctx.saved_tensors
        back = grad[inverse]
        if ctx.copies > 1:
            back = back.unflatten(0, (-1, ctx.copies)).sum(1)
        return back, None, None, None


class Routes(NamedTuple):
    """Which experts each token goes to [T, active], with which weight, and how many tokens each expert gets."""

    experts: Tensor
    weights: Tensor
    load: Tensor


class Router(nn.Module):
    """Sigmoid scores; the correction bias helps to choose, and does not weigh."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.active = g.active_experts
        self.weight = nn.Parameter(torch.empty(g.experts, g.width).normal_(std=INIT_STD))
        self.e_score_correction_bias: Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(g.experts))

    def forward(self, x: Tensor) -> Routes:
        """Choose experts in FP32."""
        scores = functional.linear(x.float(), self.weight.to(x.dtype).float()).sigmoid()
        chosen = (scores.detach() + self.e_score_correction_bias).topk(self.active, dim=-1, sorted=False).indices
        weights = scores.gather(-1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * ROUTED_SCALE
        numbers = torch.arange(len(self.weight), device=x.device)
        load = (chosen.flatten()[:, None] == numbers).sum(0)
        return Routes(chosen, weights, load)


class Experts(nn.Module):
    """The routed experts, stacked: gate and up [E, F, D], down [E, D, F]."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.active = g.active_experts
        self.gate_proj = nn.Parameter(torch.empty(g.experts, g.expert_width, g.width).normal_(std=INIT_STD))
        self.up_proj = nn.Parameter(torch.empty(g.experts, g.expert_width, g.width).normal_(std=INIT_STD))
        self.down_proj = nn.Parameter(torch.empty(g.experts, g.width, g.expert_width).normal_(std=INIT_STD))

    def used(self, dtype: torch.dtype, *, int4: bool) -> tuple[Tensor, Tensor]:
        """Return the weights of this step: gate and up in one [E, 2F, D], and down, as stored in INT4 if asked."""
        both = torch.cat([self.gate_proj, self.up_proj], 1)
        if int4:
            return straight_through(both).to(dtype), straight_through(self.down_proj).to(dtype)
        return both.to(dtype), self.down_proj.to(dtype)

    def forward(self, x: Tensor, routes: Routes, both: Tensor, down: Tensor) -> Tensor:
        """Send tokens to their experts and add up what comes back."""
        flat = routes.experts.flatten()
        order = flat.to(torch.uint8).argsort(stable=True)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=x.device)
        ends = routes.load.cumsum(0).to(torch.int32)
        rows = _Rows.apply(x, order // self.active, back, self.active)
        gate, up = torch._grouped_mm(rows, both.transpose(1, 2), offs=ends).chunk(2, -1)
        weights = _Rows.apply(routes.weights.flatten(), order, back, 1)
        inner = (functional.silu(gate.float()) * up.float() * weights[:, None]).to(x.dtype)
        out = torch._grouped_mm(inner, down.transpose(1, 2), offs=ends)
        return _Rows.apply(out, back, order, 1).unflatten(0, (-1, self.active)).sum(1)


class Moe(nn.Module):
    """Router, routed experts, and the expert that every token shares."""

    def __init__(self, g: Geometry) -> None:
        super().__init__()
        self.gate = Router(g)
        self.experts = Experts(g)
        self.shared_experts = Mlp(g.width, g.expert_width)


class Layer(nn.Module):
    """One decoder layer, in the two parts that can be compiled: what comes before attention and what comes after."""

    def __init__(self, g: Geometry, number: int) -> None:
        super().__init__()
        self.is_dense = number < g.dense_layers
        self.input_layernorm = Norm(g.width)
        self.self_attn = Attention(g)
        self.post_attention_layernorm = Norm(g.width)
        self.mlp: Any = Mlp(g.width, g.dense_width) if self.is_dense else Moe(g)

    def before(self, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values."""
        return self.self_attn.expanded(self.input_layernorm(h), cos, sin)

    def after(self, h: Tensor, mixed: Tensor, experts: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Routes | None]:
        """Add what attention and then the MLP say; `experts` are this step's expert weights."""
        h = h + self.self_attn.finish(mixed)
        x = self.post_attention_layernorm(h)
        if experts is None:
            return h + self.mlp(x), None
        routes = self.mlp.gate(x)
        return h + self.mlp.experts(x, routes, *experts) + self.mlp.shared_experts(x), routes


@dataclass
class Parts:
    """The functions that do the work; compiled ones can take their places."""

    before: Callable[..., Any] = Layer.before
    after: Callable[..., Any] = Layer.after


class Mini(nn.Module):
    """The text model."""

    def __init__(self, geometry: Geometry = MINI, *, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.geometry, self.dtype = geometry, dtype
        self.parts = Parts()
        self.int4 = False
        self.embed_tokens = nn.Parameter(torch.empty(geometry.vocabulary, geometry.width).normal_(std=INIT_STD))
        self.layers = nn.ModuleList(Layer(geometry, number) for number in range(geometry.layers))
        self.norm = Norm(geometry.width)
        self.lm_head = nn.Parameter(torch.empty(geometry.vocabulary, geometry.width).normal_(std=INIT_STD))
        angles = torch.outer(torch.arange(CONTEXT).float(), torch.tensor(ROPE.frequencies(geometry.rope_width)))
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def experts(self) -> list[tuple[Tensor, Tensor] | None]:
        """Return the expert weights that this step uses, by layer."""
        return [None if layer.is_dense else layer.mlp.experts.used(self.dtype, int4=self.int4) for layer in self.layers]

    def forward(self, tokens: Tensor, documents: Documents) -> tuple[Tensor, list[Routes]]:
        """Return the last hidden states [T, D] and the routes of every MoE layer."""
        h = functional.embedding(tokens, self.embed_tokens).to(self.dtype)
        cos, sin = self.cos[documents.positions], self.sin[documents.positions]
        found: list[Routes] = []
        for layer, experts in zip(self.layers, self.experts(), strict=True):
            q, k, v = self.parts.before(layer, h, cos, sin)
            mixed = attend(q, k, v, documents, layer.self_attn.scale)
            h, routes = self.parts.after(layer, h, mixed, experts)
            if routes is not None:
                found.append(routes)
        return self.norm(h), found

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""
        return functional.linear(hidden, self.lm_head.to(hidden.dtype))
