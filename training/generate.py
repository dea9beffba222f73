"""Answers from the training model, greedy or sampled, many at once, with a cache of latents: not for serving.

Attention works on the latents directly (the "absorbed" form that engines use), so a token costs 576 values a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.model import Attention, Documents, Layer, Mini, attend
from training.shape import CONTEXT
from training.tokenizer import IDS

STOPS = (IDS["<|im_end|>"], IDS["[EOS]"])
CHECK_EVERY = 16  # steps between looks at whether all are done: each look waits for the device


@dataclass
class Cache:
    """Latents [B, T, 512] and rotated keys [B, T, 64] by layer, and how many tokens each row has."""

    latents: list[Tensor]
    keys: list[Tensor]
    lengths: Tensor

    def until(self, end: int) -> Cache:
        """Return the same cache as if it ended earlier: nobody attends to room that nobody has written to."""
        return Cache([part[:, :end] for part in self.latents], [part[:, :end] for part in self.keys], self.lengths)


@torch.no_grad()
def generate(
    model: Mini,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    temperatures: Sequence[float] | None = None,
    seed: int = 0,
) -> list[list[int]]:
    """Return the new tokens of each prompt, the stop token included where the model came to one.

    Each prompt has its temperature; none: all are answered greedily.
    """
    device = model.embed_tokens.device
    longest = max(map(len, prompts))
    room = min(longest + new_tokens, CONTEXT)
    experts = model.experts()
    cache, hidden = _read(model, prompts, room, experts)
    choose = _Choice(temperatures, seed, device)
    tokens = choose(model.logits(hidden))
    done = torch.zeros_like(tokens, dtype=torch.bool)
    stops = torch.tensor(STOPS, device=device)
    written = [tokens]
    for step in range(new_tokens - 1):
        done |= torch.isin(tokens, stops) | (cache.lengths >= room)
        if step % CHECK_EVERY == 0 and bool(done.all()):
            break
        hidden = _next(model, tokens, cache.until(min(longest + step + 1, room)), experts)
        tokens = torch.where(done, stops[0], choose(model.logits(hidden)))
        written.append(tokens)
    rows = torch.stack(written, 1).tolist()
    return [_until_stop(row) for row in rows]


class _Choice:
    """The next tokens: the largest logits, plus temperature times Gumbel noise, which draws from the softmax."""

    def __init__(self, temperatures: Sequence[float] | None, seed: int, device: torch.device) -> None:
        heat = torch.tensor(temperatures or [0.0], dtype=torch.float32, device=device)
        self.heat = heat[:, None] if bool(heat.any()) else None
        self.random = torch.Generator(device).manual_seed(seed)

    def __call__(self, logits: Tensor) -> Tensor:
        if self.heat is None:
            return logits.argmax(-1)
        uniform = torch.rand(logits.shape, generator=self.random, device=logits.device).clamp_(1e-20, 1 - 1e-7)
        return (logits.float() - self.heat * (-uniform.log()).log()).argmax(-1)


def _until_stop(row: list[int]) -> list[int]:
    ends = [at for at, token in enumerate(row) if token in STOPS]
    return row[: ends[0] + 1] if ends else row


def _read(
    model: Mini, prompts: Sequence[Sequence[int]], room: int, experts: list[tuple[Tensor, Tensor] | None]
) -> tuple[Cache, Tensor]:
    """Read all prompts as one stream; return the cache and the hidden state of every last token."""
    device, g = model.embed_tokens.device, model.geometry
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    documents = Documents.of(functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32), device)
    row = torch.repeat_interleave(torch.arange(len(prompts)), lengths).to(device)
    at = documents.positions.long()
    cos, sin = model.cos[at], model.sin[at]
    stream = torch.tensor([token for prompt in prompts for token in prompt], device=device)
    h = functional.embedding(stream, model.embed_tokens).to(model.dtype)
    cache = Cache([], [], lengths.to(device))
    for layer, used in zip(model.layers, experts, strict=True):
        latent, key = layer.self_attn.latent(layer.input_layernorm(h), cos, sin)
        cache.latents.append(latent.new_zeros(len(prompts), room, g.kv_rank).index_put_((row, at), latent))
        cache.keys.append(key.new_zeros(len(prompts), room, g.rope_width).index_put_((row, at), key))
        q, k, v = layer.before(h, cos, sin)
        h, _ = layer.after(h, attend(q, k, v, documents, layer.self_attn.scale), used)
    return cache, model.norm(h[documents.starts[1:].long() - 1])


def _next(model: Mini, tokens: Tensor, cache: Cache, experts: list[tuple[Tensor, Tensor] | None]) -> Tensor:
    """Read one more token a row; return the hidden states [B, D]."""
    at = cache.lengths.clamp(max=cache.keys[0].size(1) - 1)
    cos, sin = model.cos[at], model.sin[at]
    rows = torch.arange(len(tokens), device=tokens.device)
    seen = torch.arange(cache.keys[0].size(1), device=tokens.device) <= at[:, None]
    h = functional.embedding(tokens, model.embed_tokens).to(model.dtype)
    for number, (layer, used) in enumerate(zip(model.layers, experts, strict=True)):
        x = layer.input_layernorm(h)
        latent, key = layer.self_attn.latent(x, cos, sin)
        cache.latents[number].index_put_((rows, at), latent)
        cache.keys[number].index_put_((rows, at), key)
        mixed = _absorbed(layer.self_attn, layer.self_attn.queries(x, cos, sin), cache, number, seen)
        h, _ = Layer.after(layer, h, mixed, used)
    cache.lengths += 1
    return model.norm(h)


def _absorbed(attention: Attention, queries: tuple[Tensor, Tensor], cache: Cache, number: int, seen: Tensor) -> Tensor:
    """Attend to the latents themselves; [B, heads, 128]."""
    g = attention.g
    latents, keys = cache.latents[number], cache.keys[number]
    expand = attention.kv_b_proj.weight.to(latents.dtype).view(g.heads, g.nope_width + g.value_width, g.kv_rank)
    to_key, to_value = expand.split([g.nope_width, g.value_width], 1)
    plain, turned = queries
    in_latent = torch.einsum("bhn,hnr->bhr", plain, to_key)
    scores = in_latent @ latents.mT + turned @ keys.mT
    scores = (scores.float() * attention.scale).masked_fill(~seen[:, None], float("-inf"))
    mixed = scores.softmax(-1).to(latents.dtype) @ latents
    return torch.einsum("bhr,hvr->bhv", mixed, to_value)
