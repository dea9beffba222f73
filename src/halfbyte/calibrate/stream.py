"""Run the calibration tokens through the model layer by layer and measure each layer.

Hidden states come from the unquantized weights, as in ModelOpt's max calibration. Sums are added in a fixed order of
the rows, so that results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.calibrate.observe import Observer
from halfbyte.calibrate.stats import PUBLIC_SUMS, SUMS, ExpertStats, LayerStats
from halfbyte.calibrate.token_rows import Rows, make_rows
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.identity import config_name, short_name
from halfbyte.errors import CheckpointError
from halfbyte.families.registry import text_model
from halfbyte.families.weights import Weights
from halfbyte.forward.embedding_and_head import embed
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import TextModel
from halfbyte.forward.ordered_threads import in_order, single_threaded
from halfbyte.forward.positions import attention_inputs
from halfbyte.forward.run import row_chunks, run_layer
from halfbyte.machine.device_option import device_kind
from halfbyte.machine.resources import usable_cores
from halfbyte.recipe.decisions import InputScale, Recipe

VERSION = 2  # incremented when the same rows and weights give different statistics
CHUNK_ROWS = 4  # with more, attention scores of 512 tokens would be allocated afresh every time
DTYPE = torch.bfloat16  # as in the engines and in ModelOpt
_ALL_TOKENS_CHUNK = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """The model, token rows and settings of a calibration."""

    text: TextModel
    rows: Rows
    rule: InputScale | None
    about: Mapping[str, Any]  # everything that determines the statistics
    public: bool = False  # whether to run experts also on the tokens that the public REAP code routes to them
    hessians: bool = False  # whether to collect Hessians

    @property
    def hidden_nbytes(self) -> int:
        """Return the size of the hidden states of all rows."""
        return self.rows.tokens.size * self.text.width * DTYPE.itemsize


def prepare(
    checkpoint: Checkpoint, layers: int, recipe: Recipe, weights: Mapping[str, str], *, device: str = "cpu"
) -> Calibration:
    """Read and tokenize the calibration data; no weights are read."""
    assert recipe.calibrate is not None
    public = bool(recipe.calibrate.public_reap)
    text = text_model(checkpoint.config)
    if layers > text.layers:
        what = f"calibration does not support layer {text.layers}, a multi-token prediction layer"
        fix = f"exclude it: --layers {text.layers}"
        raise CheckpointError(what, where=str(checkpoint.root), fix=fix)
    vocabulary = load_vocabulary(checkpoint.root)
    rows = make_rows(recipe.calibrate, vocabulary, load_template(checkpoint.root, vocabulary.named))
    if int(rows.tokens.max()) >= text.vocabulary:
        what = f"token {int(rows.tokens.max())} exceeds the model's vocabulary size of {text.vocabulary}"
        raise CheckpointError(what, where=str(checkpoint.root), fix="use the tokenizer that belongs to the weights")
    rule = recipe.quantize.input_scale if recipe.quantize else None
    about = _about(text, rows, rule, {"source": short_name(weights), "config": config_name(checkpoint.config)})
    about["sums"] = [*SUMS, *(PUBLIC_SUMS if public else ())]  # folders with other sums are rejected
    # Sums differ in their last bits between devices and numbers of GPUs, which therefore never share a folder.
    about["device"] = device_kind(device)
    hessians = recipe.quantize is not None and recipe.quantize.needs_hessians
    return Calibration(text, rows, rule, about, public=public, hessians=hessians)


def _about(text: TextModel, rows: Rows, rule: InputScale | None, model: Mapping[str, str]) -> dict[str, Any]:
    on_all_tokens = rule is not None and rule.backstop == "all_experts"
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
        "all_tokens_below": rule.min_tokens if rule is not None and on_all_tokens else None,
    }


class Stream:
    """The hidden states of all rows between two layers."""

    def __init__(self, calibration: Calibration, weights: Weights, threads: int | None = None) -> None:
        self._of, self._weights = calibration, weights
        self._threads = threads or usable_cores()
        self._chunks = row_chunks(len(calibration.rows.tokens), CHUNK_ROWS)
        self.hidden = torch.empty(0)

    def start(self) -> None:
        """Set the hidden states to the embeddings."""
        tokens = torch.from_numpy(self._of.rows.tokens).long()
        self.hidden = embed(tokens, self._weights(self._of.text.embedding), DTYPE)

    def through(self, index: int) -> LayerStats:
        """Run a layer and return its statistics."""
        text, rows = self._of.text, self._of.rows
        layer = text.decoder_layer(index, self._weights, DTYPE)
        experts = text.experts if layer.is_moe else 0
        observer = Observer(index, rows, experts, hessians=self._of.hessians, public=self._of.public)
        expert = self._weights.experts(index)
        inputs = run_layer(
            layer,
            self.hidden,
            lambda chunk: attention_inputs(text, rows, chunk, DTYPE),
            self._chunks,
            expert,
            threads=self._threads,
            hook_of=observer.hook,
            routes=observer.routes,
            observe=observer.expert,
        )
        stats = observer.stats
        if inputs is not None:
            with single_threaded():
                observer.all_inputs(inputs)
            observer.run_public(inputs, expert, self._threads)
        if inputs is not None and stats.experts is not None and self._of.about["all_tokens_below"]:
            self._run_on_all_tokens(stats.experts, inputs, expert)
        return stats

    def _run_on_all_tokens(self, stats: ExpertStats, inputs: torch.Tensor, expert: Expert) -> None:
        """Run experts with too few tokens on all tokens and record the amax of the inputs of their down projections."""
        few = [number for number, seen in enumerate(stats.seen) if seen < self._of.about["all_tokens_below"]]

        @torch.no_grad()
        def amax(number: int) -> float:
            gate, up, _ = expert(number)
            parts = self._counted(inputs)
            acts = (functional.silu(functional.linear(x, gate)) * functional.linear(x, up) for x in parts)
            return max((float(act.abs().max()) for act in acts), default=0.0)

        for number, largest in zip(few, in_order(amax, few, self._threads), strict=True):
            stats.all_down_amax[number] = largest

    def _counted(self, inputs: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the inputs in chunks, without the padding of packed rows."""
        rows = self._of.rows
        real = None if rows.left_padded else torch.from_numpy(rows.real.reshape(-1))
        for start in range(0, len(inputs), _ALL_TOKENS_CHUNK):
            part = slice(start, start + _ALL_TOKENS_CHUNK)
            counted = inputs[part] if real is None else inputs[part][real[part]]
            if len(counted):
                yield counted
