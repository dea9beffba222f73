"""Generate texts from a checkpoint of any stored format without an engine, for models that fit into memory decoded.

The model is transformers' own, with weights decoded to FP32. A pruned checkpoint is a model with fewer experts and
needs no special handling. Each token is the argmax of the logits plus the temperature times Gumbel noise, which samples
from the softmax at that temperature (0: greedy). The noise depends only on the seed, so that similar models write
similar texts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from halfbyte.calibrate.chat import ChatTemplate, load_template
from halfbyte.calibrate.tokenizer import Vocabulary, load_vocabulary
from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.compare.models import open_side
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.forward.model import TextModel
from halfbyte.machine.resources import memory_facts
from halfbyte.ui.units import size

_GENERATION = "generation_config.json"
_ROOM = 1.25  # memory needed, relative to the decoded weights: stacking a layer's experts copies them


@dataclass(frozen=True, slots=True)
class Written:
    """A generated text with special tokens spelled out, except for the final stop token."""

    text: str
    tokens: int
    ended: bool  # with a stop token, not at the token limit


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """A model in memory with its tokenizer."""

    text: TextModel
    model: Any  # transformers' whole model, which lacks type annotations
    vocabulary: Vocabulary
    template: ChatTemplate | None
    stops: tuple[int, ...]

    def prompt_tokens(self, question: str) -> list[int]:
        """Return the tokens of a question with a generation prompt, without thinking; plain text without a template."""
        if self.template is None:
            return [*self.vocabulary.before, *self.vocabulary.encode(question)]
        return self.vocabulary.encode(self.template.prompt([{"role": "user", "content": question}]), special=True)

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        tokens: int,
        temperatures: Sequence[float],
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> list[Written]:
        """Answer all prompts in one batch, each at its temperature (0: greedy); `progress` gets the tokens per text."""
        cache = self.text.cache(self.model)
        written = _continued(self.model, cache, prompts, tokens, temperatures, self.stops, seed, progress)
        return [self._as_text(row) for row in written]

    def _as_text(self, row: list[int]) -> Written:
        end = next((at for at, token in enumerate(row) if token in self.stops), None)
        text = self.vocabulary.decode(row[:end])
        return Written(text, len(row) if end is None else end + 1, end is not None)


@contextmanager
def open_writer(folder: Path) -> Generator[Writer]:
    """Decode a checkpoint into memory; raise MachineError if it does not fit."""
    with open_side(folder) as side:
        text, model = side.model, side.model.whole_model()
        _refuse_too_large(model, folder)
        text.fill(model, side.tensors, side.experts)
    vocabulary = load_vocabulary(folder)
    yield Writer(text, model, vocabulary, load_template(folder, vocabulary.named), _stops(folder, vocabulary))


def decoded_nbytes(folder: Path) -> int:
    """Return the size of a checkpoint's decoded weights. Reads headers only."""
    with open_side(folder) as side:
        return _nbytes(side.model.whole_model())


def _nbytes(model: Any) -> int:
    return sum(4 * tensor.numel() for tensor in model.state_dict().values())


def _refuse_too_large(model: Any, folder: Path) -> None:
    needed = int(_ROOM * _nbytes(model))
    memory = memory_facts()
    free = min((n for n in (memory.available_nbytes, memory.limit_nbytes) if n is not None), default=None)
    if free is not None and needed > free:
        what = f"the decoded model needs {size(needed)} of memory, but only {size(free)} are free"
        raise MachineError(what, where=str(folder), fix="serve it with an engine and use its endpoint instead")


def _stops(folder: Path, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the stop tokens as engines do: from generation_config.json, then config.json."""
    for name in (_GENERATION, CONFIG):
        path = folder / name
        try:
            eos: Any = read_json(path).get("eos_token_id") if path.exists() else None
        except (OSError, ValueError, AttributeError) as error:
            raise CheckpointError("not a JSON object", where=str(path), fix="download it again") from error
        if eos is not None:
            return tuple(cast("list[int]", eos)) if isinstance(eos, list) else (int(eos),)
    return () if vocabulary.eos is None else (vocabulary.eos,)


@torch.no_grad()
def _continued(  # noqa: PLR0913, PLR0917 - called once
    model: Any,
    cache: Any,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperatures: Sequence[float],
    stops: tuple[int, ...],
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt. Finished rows are removed from the batch."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    seen = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    heat = torch.tensor(temperatures, dtype=torch.float32)[:, None]
    stop_ids = torch.tensor(stops, dtype=torch.int64)
    noise = _Noise(seed, len(prompts), model.config.vocab_size)
    rows = torch.arange(len(prompts))
    written: list[list[int]] = [[] for _ in prompts]
    for step in range(tokens):
        at = (seen.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        output = model(input_ids=ids, attention_mask=seen, position_ids=at, past_key_values=cache, logits_to_keep=1)
        chosen = (output.logits[:, -1].float() + heat[rows] * noise.next()[rows]).argmax(-1)
        pairs = zip(cast("list[int]", rows.tolist()), cast("list[int]", chosen.tolist()), strict=True)
        for row, token in pairs:
            written[row].append(token)
        if progress is not None:
            progress(step + 1)
        active = torch.isin(chosen, stop_ids, invert=True)
        if not bool(active.any()):
            break
        if not bool(active.all()):
            cache.batch_select_indices(active.nonzero()[:, 0])
        rows, ids = rows[active], chosen[active, None]
        seen = torch.cat([seen[active], torch.ones_like(ids)], -1)
    return written


class _Noise:
    """Gumbel noise for every row and vocabulary entry, step by step."""

    def __init__(self, seed: int, rows: int, words: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._shape = rows, words

    def next(self) -> torch.Tensor:
        """Return the noise of the next step; it does not depend on which rows have finished."""
        uniform = torch.rand(self._shape, generator=self._random).clamp_(1e-20, 1 - 1e-7)
        return -(-uniform.log()).log()
