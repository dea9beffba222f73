"""Texts from a checkpoint of any stored format, without an engine: for models that fit into memory decoded.

The model is transformers' own; its weights are decoded to FP32. A pruned checkpoint is a model with fewer experts, and
loads as it is. Greedy and sampled texts come from one rule: the largest logit, plus the temperature times Gumbel noise,
which is a draw from the softmax at that temperature. The noise comes from the seed alone, so that two models that
differ little write texts that differ little.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3ForCausalLM, DeepseekV3RotaryEmbedding

from halfbyte.calibrate.chat import ChatTemplate, load_template
from halfbyte.calibrate.vocabulary import Vocabulary, load_vocabulary
from halfbyte.compare.sides import Side, open_side
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.forward.layer import fetch, load_into
from halfbyte.machine.doctor import memory_facts
from halfbyte.source.foreign import read_json
from halfbyte.terminal.units import size

_GENERATION = "generation_config.json"
_CONFIG = "config.json"
_ROOM = 1.25  # times the decoded weights: a layer's experts are twice in memory while they are put together


@dataclass(frozen=True, slots=True)
class Written:
    """What a model wrote after a prompt, special tokens spelled out but for the one that ended it."""

    text: str
    tokens: int
    ended: bool  # by itself, not because there was no more room


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """A model in memory with its vocabulary."""

    model: Any  # DeepseekV3ForCausalLM: transformers says little of its types
    vocabulary: Vocabulary
    template: ChatTemplate | None
    stops: tuple[int, ...]

    def asked(self, question: str) -> list[int]:
        """Return the tokens of a question that waits for an answer without thoughts; bare text without a template."""
        if self.template is None:
            return [*self.vocabulary.before, *self.vocabulary.encode(question)]
        return self.vocabulary.encode(self.template.prompt([{"role": "user", "content": question}]), special=True)

    def write(
        self, prompts: Sequence[Sequence[int]], *, tokens: int, temperatures: Sequence[float], seed: int = 0
    ) -> list[Written]:
        """Answer all prompts at once, each at its temperature (0: greedy)."""
        written = _continued(self.model, prompts, tokens, temperatures, self.stops, seed)
        return [self._as_text(row) for row in written]

    def _as_text(self, row: list[int]) -> Written:
        end = next((at for at, token in enumerate(row) if token in self.stops), None)
        text = self.vocabulary.decode(row[:end])
        return Written(text, len(row) if end is None else end + 1, end is not None)


@contextmanager
def open_writer(folder: Path) -> Generator[Writer]:
    """Decode a checkpoint into memory; refuse one that does not fit."""
    with open_side(folder) as side:
        model = _empty(side)
        _refuse_too_large(model, folder)
        _fill(model, side)
    vocabulary = load_vocabulary(folder)
    yield Writer(model, vocabulary, load_template(folder, vocabulary.named), _stops(folder, vocabulary))


def _empty(side: Side) -> Any:
    """Return the model as shapes."""
    config: Any = side.model.config
    config._experts_implementation = "eager"  # on a CPU the others are slower
    with torch.device("meta"):
        return DeepseekV3ForCausalLM(config)


def decoded_nbytes(folder: Path) -> int:
    """Return what a checkpoint's weights take in memory once they are decoded. Reads headers only."""
    with open_side(folder) as side:
        return _nbytes(_empty(side))


def _nbytes(model: Any) -> int:
    return sum(4 * tensor.numel() for tensor in model.state_dict().values())


def _refuse_too_large(model: Any, folder: Path) -> None:
    needed = int(_ROOM * _nbytes(model))
    memory = memory_facts()
    there = min((n for n in (memory.available_nbytes, memory.limit_nbytes) if n is not None), default=None)
    if there is not None and needed > there:
        what = f"texts need the model whole in memory: {size(needed)} decoded, and {size(there)} are free"
        raise MachineError(what, where=str(folder), fix="serve it with an engine and ask its endpoint instead")


def _fill(model: Any, side: Side) -> None:
    """Put the decoded weights in their places, routed experts stacked."""

    def tensor(name: str) -> torch.Tensor:
        module, _, part = name.rpartition(".")
        if not module.endswith(".mlp.experts"):
            tied = name == "lm_head.weight" and side.model.config.tie_word_embeddings
            return fetch(side.tensors, side.model.prefix + ("model.embed_tokens.weight" if tied else name))
        expert = side.experts(int(module.split(".")[2]))
        numbers = range(side.model.config.n_routed_experts)
        if part == "down_proj":
            return torch.stack([expert(number)[2] for number in numbers])
        return torch.stack([torch.cat(expert(number)[:2]) for number in numbers])

    load_into(model, "", tensor, torch.float32, "cpu")
    model.model.rotary_emb = DeepseekV3RotaryEmbedding(side.model.config)  # has numbers of its own, not the file's


def _stops(folder: Path, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens that end an answer, as engines find them: generation_config.json, then config.json."""
    for name in (_GENERATION, _CONFIG):
        path = folder / name
        try:
            found: Any = read_json(path).get("eos_token_id") if path.exists() else None
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError("it is not a JSON object", where=str(path), fix="download it again") from error
        if found is not None:
            return tuple(cast("list[int]", found)) if isinstance(found, list) else (int(found),)
    return () if vocabulary.eos is None else (vocabulary.eos,)


@torch.no_grad()
def _continued(
    model: Any,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperatures: Sequence[float],
    stops: tuple[int, ...],
    seed: int,
) -> list[list[int]]:
    """Return the new tokens of each prompt. A row that has ended leaves the batch: the others go on without it."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    heat = torch.tensor(temperatures, dtype=torch.float32)[:, None]
    ending = torch.tensor(stops, dtype=torch.int64)
    noise, cache = _Noise(seed, len(prompts), model.config.vocab_size), _Cache(model)
    rows = torch.arange(len(prompts))
    written: list[list[int]] = [[] for _ in prompts]
    for _ in range(tokens):
        at = (seen.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        found = model(input_ids=ids, attention_mask=seen, position_ids=at, past_key_values=cache, logits_to_keep=1)
        chosen = (found.logits[:, -1].float() + heat[rows] * noise.next()[rows]).argmax(-1)
        pairs = zip(cast("list[int]", rows.tolist()), cast("list[int]", chosen.tolist()), strict=True)
        for row, token in pairs:
            written[row].append(token)
        going = torch.isin(chosen, ending, invert=True)
        if not bool(going.any()):
            break
        if not bool(going.all()):
            cache.batch_select_indices(going.nonzero()[:, 0])
        rows, ids = rows[going], chosen[going, None]
        seen = torch.cat([seen[going], torch.ones_like(ids)], -1)
    return written


class _Cache(DynamicCache):
    """Keeps keys and values of all heads, where transformers keeps latents and expands all of them at every step."""

    def __init__(self, model: Any) -> None:
        super().__init__(config=model.config)
        for layer in model.model.layers:
            layer.self_attn.expand_kv = partial(self._expanded, layer.self_attn)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Let the latents of new tokens pass; they are kept once they are expanded."""
        return key_states, value_states

    def _expanded(self, attention: Any, latent: torch.Tensor, k_rope: torch.Tensor) -> Any:
        expand = cast("Any", type(attention)).expand_kv
        keys, values = cast("tuple[torch.Tensor, torch.Tensor]", expand(attention, latent, k_rope))
        return super().update(keys, values, attention.layer_idx)


class _Noise:
    """Gumbel noise for every row and word, step after step."""

    def __init__(self, seed: int, rows: int, words: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._shape = rows, words

    def next(self) -> torch.Tensor:
        """Return the noise of the next step: the same for a row, whoever has left."""
        uniform = torch.rand(self._shape, generator=self._random).clamp_(1e-20, 1 - 1e-7)
        return -(-uniform.log()).log()
