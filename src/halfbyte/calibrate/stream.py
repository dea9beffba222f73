"""Run the calibration tokens through the model, a layer at a time, and measure each layer on the way.

Hidden states come from the unquantized weights, as in ModelOpt's max calibration. Every sum is over rows in an order
that the rows alone decide, so that the number of threads changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.observe import Observer
from halfbyte.calibrate.rows import Rows, make_rows
from halfbyte.calibrate.stats import PUBLIC_SUMS, SUMS, ExpertStats, LayerStats
from halfbyte.calibrate.sums import SUM_ROWS
from halfbyte.calibrate.vocabulary import load_vocabulary
from halfbyte.errors import CheckpointError, RecipeError
from halfbyte.forward.config import TextModel, text_model
from halfbyte.forward.ends import embed
from halfbyte.forward.experts import Expert
from halfbyte.forward.layer import DecoderLayer
from halfbyte.forward.run import row_chunks, run_layer
from halfbyte.forward.sight import look_around
from halfbyte.forward.threads import in_order, single_threaded
from halfbyte.forward.weights import Weights
from halfbyte.machine.devices import device_kind
from halfbyte.numerics.chunks import usable_cores
from halfbyte.recipe.decisions import COMPENSATED, InputScale, Recipe
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.identity import config_name, short_name

VERSION = 2  # raised whenever the same rows and weights would give other statistics
CHUNK_ROWS = 4  # more would put attention's scores of 512 tokens into memory that is fresh every time
DTYPE = torch.bfloat16  # as engines run it, and as ModelOpt measures it
_ALL_TOKENS_CHUNK = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What is run on what."""

    text: TextModel
    rows: Rows
    rule: InputScale | None
    about: Mapping[str, Any]  # all that decides the statistics
    public: bool = False  # whether experts also see what the public REAP code would show them
    moments: bool = False  # whether layers keep the second moments of their inputs until they are written

    @property
    def hidden_nbytes(self) -> int:
        """Return the size of all rows between two layers."""
        return self.rows.tokens.size * self.text.config.hidden_size * DTYPE.itemsize


def prepare(
    checkpoint: Checkpoint, layers: int, recipe: Recipe, weights: Mapping[str, str], *, device: str = "cpu"
) -> Calibration:
    """Read the data and make tokens of it; nothing of the weights is read."""
    assert recipe.calibrate is not None
    if recipe.calibrate.propagate == "quantized":
        fix = "set calibrate.propagate to unquantized, which is what ModelOpt does"
        raise RecipeError("'propagate: quantized' is not built yet", where=recipe.name, fix=fix)
    public = bool(recipe.calibrate.public_reap)
    if public and device != "cpu":
        fix = "give --device cpu, or set calibrate.public_reap to false"
        raise RecipeError("'public_reap: true' runs on the CPU only", where=recipe.name, fix=fix)
    text = text_model(checkpoint.config)
    if layers > text.config.num_hidden_layers:
        what = f"layer {text.config.num_hidden_layers} is for multi-token prediction, which calibration does not run"
        fix = f"leave it out: --layers {text.config.num_hidden_layers}"
        raise CheckpointError(what, where=str(checkpoint.root), fix=fix)
    vocabulary = load_vocabulary(checkpoint.root)
    rows = make_rows(recipe.calibrate, vocabulary, load_template(checkpoint.root, vocabulary.named))
    if int(rows.tokens.max()) >= text.config.vocab_size:
        what = f"the vocabulary has the token {int(rows.tokens.max())}, the model only {text.config.vocab_size}"
        raise CheckpointError(what, where=str(checkpoint.root), fix="tokenizer and weights do not belong together")
    rule = recipe.quantize.input_scale if recipe.quantize else None
    compensated = recipe.quantize is not None and recipe.quantize.scales == COMPENSATED
    about = _about(text, rows, rule, {"source": short_name(weights), "config": config_name(checkpoint.config)})
    about["sums"] = [*SUMS, *(PUBLIC_SUMS if public else ())]  # a folder that was begun with others is refused
    # Sums on a GPU differ in their last bits, and on two: kinds of devices never measure into one folder.
    about["device"] = device_kind(device)
    return Calibration(text, rows, rule, about, public=public, moments=compensated)


def _about(text: TextModel, rows: Rows, rule: InputScale | None, model: Mapping[str, str]) -> dict[str, Any]:
    everywhere = rule is not None and rule.backstop == "all_experts"
    return {
        "version": VERSION,
        **model,
        "tokens_sha256": rows.fingerprint(),
        "rows": list(rows.tokens.shape),
        "domains": rows.tokens_of_domains(),
        "padding_counts": rows.left_padded,
        "dtype": str(DTYPE).removeprefix("torch."),
        "attention": text.attention,
        "sum_rows": SUM_ROWS,
        "all_tokens_below": rule.min_tokens if rule is not None and everywhere else None,
    }


class Stream:
    """All rows between two layers."""

    def __init__(self, calibration: Calibration, weights: Weights, threads: int | None = None) -> None:
        self._of, self._weights = calibration, weights
        self._threads = threads or usable_cores()
        self._chunks = row_chunks(len(calibration.rows.tokens), CHUNK_ROWS)
        self.hidden = torch.empty(0)

    def start(self) -> None:
        """Stand before the first layer."""
        tokens = torch.from_numpy(self._of.rows.tokens).long()
        self.hidden = embed(tokens, self._weights(f"{self._of.text.prefix}model.embed_tokens.weight"), DTYPE)

    def through(self, index: int) -> LayerStats:
        """Run a layer; return what was measured in it."""
        text, rows = self._of.text, self._of.rows
        layer = DecoderLayer(text, index, self._weights, DTYPE)
        experts = text.config.n_routed_experts if layer.is_moe else 0
        observer = Observer(index, rows, experts, moments=self._of.moments, public=self._of.public)
        expert = self._weights.experts(text, index)
        given = run_layer(
            layer,
            self.hidden,
            lambda chunk: look_around(text, rows, chunk, DTYPE),
            self._chunks,
            expert,
            threads=self._threads,
            looks=observer.look,
            routes=observer.routes,
            observe=observer.expert,
        )
        stats = observer.stats
        if given is not None:
            with single_threaded():
                observer.all_given(given)
            observer.run_public(given, expert, self._threads)
        if given is not None and stats.experts is not None and self._of.about["all_tokens_below"]:
            self._run_everywhere(stats.experts, given, expert)
        return stats

    def _run_everywhere(self, stats: ExpertStats, given: torch.Tensor, expert: Expert) -> None:
        """Show all tokens to experts that saw too few: what down_proj would be given, were they routed there."""
        few = [number for number, seen in enumerate(stats.seen) if seen < self._of.about["all_tokens_below"]]

        @torch.no_grad()
        def amax(number: int) -> float:
            gate, up, _ = expert(number)
            parts = self._counted(given)
            acts = (functional.silu(functional.linear(x, gate)) * functional.linear(x, up) for x in parts)
            return max((float(act.abs().max()) for act in acts), default=0.0)

        for number, found in zip(few, in_order(amax, few, self._threads), strict=True):
            stats.all_down_amax[number] = found

    def _counted(self, given: torch.Tensor) -> Iterator[torch.Tensor]:
        """Give what counts of all tokens, in parts; padding does only where rows are padded on the left."""
        rows = self._of.rows
        real = None if rows.left_padded else torch.from_numpy(rows.real.reshape(-1))
        for start in range(0, len(given), _ALL_TOKENS_CHUNK):
            part = slice(start, start + _ALL_TOKENS_CHUNK)
            counted = given[part] if real is None else given[part][real[part]]
            if len(counted):
                yield counted
