"""Run several models on the same tokens, one layer of each in turn, and measure their differences.

One layer of one model is in memory at a time, together with the hidden states of all models. Rows are processed in
fixed chunks, so that results do not depend on the number of threads. On a GPU everything is on the device, and a thread
prefetches the next layer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.calibrate.token_rows import Rows
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.compare.measures import LOGITS_ON_DEVICE, Choices, Difference, Predicting, difference, predict, predicting
from halfbyte.compare.models import Side, open_planned_side, open_side, refuse_unlike
from halfbyte.compare.report import Documents, LayerDifference, Report, summarize
from halfbyte.compare.tokens import answers, rows_of
from halfbyte.engine.backends.cuda.streams import Lane
from halfbyte.engine.planned_output import PlannedOutput, planned_output
from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.forward.embedding_and_head import Head, embed
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import DecoderLayer, fetch
from halfbyte.forward.positions import attention_inputs
from halfbyte.forward.run import row_chunks, run_layer
from halfbyte.machine.device_option import CPU, refuse_threads_beside_device
from halfbyte.machine.resources import usable_cores
from halfbyte.options.check import CompareOptions
from halfbyte.recipe.decisions import Recipe

if TYPE_CHECKING:
    from typing_extensions import Self

    from halfbyte.compare.models import Side


@contextmanager
def exact_products() -> Generator[None]:
    """Disable TF32, so that FP32 products on a GPU are computed in FP32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Staged(NamedTuple):
    """A layer ready to run."""

    layer: DecoderLayer
    experts: Expert | None


class Layers:
    """Return layers one by one: for each index, that of every side. A context manager that stops its thread."""

    def __init__(self, sides: Sequence[Side]) -> None:
        count = sides[0].model.layers
        self._remaining = deque((side, index) for index in range(count) for side in sides)
        self._prefetcher = None if sides[0].device == CPU else ThreadPoolExecutor(1)
        self._device = torch.device(sides[0].device)
        self._lane = Lane(self._device)
        self._next: Future[Staged] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._prefetcher is not None:
            self._prefetcher.shutdown(cancel_futures=True)

    def take(self) -> Staged:
        """Return the next layer; callers must have released the previous one, whose memory is reused."""
        if self._prefetcher is None:
            return self._stage(*self._remaining.popleft())
        future = self._next or self._prefetcher.submit(self._stage, *self._remaining.popleft())
        staged = future.result()
        self._next = self._prefetcher.submit(self._stage, *self._remaining.popleft()) if self._remaining else None
        return staged

    def settle(self) -> None:
        """Wait for the device's pending work, after which a layer may be freed for use by another stream."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _stage(self, side: Side, index: int) -> Staged:
        if self._prefetcher is None:
            layer = side.model.decoder_layer(index, side.tensors, side.dtype)
        else:
            with self._lane:
                layer = side.model.decoder_layer(index, side.tensors, side.dtype, side.device)
            self._lane.mark().wait()
        return Staged(layer, side.experts(index) if layer.is_moe else None)


# Compute the device memory of a comparison from shapes, and raise before it starts if it does not fit.

CHUNK_TOKENS = 1 << 14  # per attention call
_ONCE = 3 << 29  # CUDA context, kernels, cuBLAS workspaces
_F32, _F64 = 4, 8
_BUSIEST = 8  # tokens of the busiest expert, relative to the mean
_WORDS = 8192  # rows of the LM head in FP32 at a time


@dataclass(frozen=True, slots=True)
class Needs:
    """Device memory in bytes: per row of tokens, and independent of the number of rows."""

    row: int
    fixed: int

    def total(self, rows: int) -> int:
        """Return the total for a number of rows."""
        return rows * self.row + self.fixed


def needs(shape: tuple[int, int], chunk_rows: int, sides: Sequence[Side], *, by_layer: bool = False) -> Needs:
    """Return the memory of a comparison: hidden states of all models, and two layers at once.

    With `by_layer`, the inputs of a layer are kept, and copied for all but the last model.
    """
    config: Any = sides[0].model.config
    item = max(side.dtype.itemsize for side in sides)
    (rows, length), width = shape, config.hidden_size
    experts = max(config.n_routed_experts or 1, 1)
    # Hidden states and expert routing of each model, and expert inputs and outputs of the running one.
    states = len(sides) + 2 + (min(len(sides) - 1, 2) if by_layer else 0)
    row = length * (states * width * item + len(sides) * experts + 32 * config.num_experts_per_tok)
    chunk = min(chunk_rows, rows) * length
    heads = config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)
    attention = chunk * (4 * heads + 4 * width) * item + chunk * length * (1 + item)
    dense = chunk * 4 * config.intermediate_size * item
    routed = min(rows * length, rows * length * config.num_experts_per_tok // experts * _BUSIEST)
    matrices = 3 * width * config.moe_intermediate_size * (2 + item)
    expert = routed * 4 * (width + config.moe_intermediate_size) * item + matrices
    apart = 6 * chunk * width * _F64
    logits = 6 * LOGITS_ON_DEVICE * _F64 + _WORDS * width * _F32 + len(sides) * config.vocab_size * width * item
    stored = sum(sorted(side.stored_nbytes for side in sides)[-2:])
    others = 2 * (3 * width * config.intermediate_size + heads * width) * item
    return Needs(row, max(attention + dense, expert, apart, logits) + stored + others + _ONCE)


def refuse_too_large(need: Needs, rows: int, free: int) -> None:
    """Raise if the comparison does not fit into `free` bytes, and suggest a number of rows that does."""
    if need.total(rows) <= free:
        return
    needed = need.total(rows) / 1e9
    what = f"this comparison needs {needed:.1f} GB of device memory, but only {free / 1e9:.1f} GB are free"
    fitting = (free - need.fixed) // need.row
    fewer = f"use fewer rows (--samples {fitting})" if fitting > 0 else "use a GPU with more memory"
    raise MachineError(what, where="--device", fix=f"{fewer}, or --device cpu")


def check_memory(
    shape: tuple[int, int], chunk_rows: int, sides: Sequence[Side], device: torch.device, *, by_layer: bool = False
) -> None:
    """Raise if the comparison does not fit into the device's free memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # frees memory cached by earlier runs of this process
        need = needs(shape, chunk_rows, sides, by_layer=by_layer)
        refuse_too_large(need, shape[0], torch.cuda.mem_get_info(device)[0])


ROWS = 8  # rows per chunk


@dataclass(frozen=True, slots=True)
class Step:
    """Progress after a layer of all models."""

    done: int
    layers: int
    seconds: float
    differences: tuple[LayerDifference, ...]  # one per second model


def compare(  # noqa: PLR0913 - keyword-only
    rows: Rows,
    first: Side,
    second: Side,
    *,
    scored: NDArray[np.bool_] | None = None,
    threads: int = 1,
    by_layer: bool = False,
    progress: Callable[[Step], None] | None = None,
) -> Report:
    """Run two models on the same rows and report the differences of the second from the first.

    `scored` [R, L] selects the tokens whose prediction is scored (default: all). Hidden states of all tokens count.
    With `by_layer`, each layer of the second also runs on the first's hidden states, to measure the error it adds.
    """
    how: dict[str, Any] = {"scored": scored, "threads": threads, "by_layer": by_layer, "progress": progress}
    return compare_many(rows, first, [second], **how)[0]


def compare_many(  # noqa: PLR0913 - keyword-only
    rows: Rows,
    first: Side,
    seconds: Sequence[Side],
    *,
    scored: NDArray[np.bool_] | None = None,
    threads: int = 1,
    by_layer: bool = False,
    progress: Callable[[Step], None] | None = None,
) -> list[Report]:
    """Run one model and several others on the same rows; the first runs only once. Options as in `compare`."""
    layers = first.model.layers
    differences: list[tuple[LayerDifference, ...]] = []
    run = _Run(rows, [first, *seconds], scored, threads, by_layer=by_layer)
    with run.layers, exact_products():
        for index in range(layers):
            differences.append(run.layer(index))
            if progress:
                progress(Step(index + 1, layers, time.monotonic() - run.start, differences[-1]))
        documents = run.predictions()
    seconds_taken = time.monotonic() - run.start
    return [
        _report(run, side, [step[at] for step in differences], documents[at], seconds_taken)
        for at, side in enumerate(seconds)
    ]


class _Run:
    """The hidden states of all models, and their tokens."""

    def __init__(
        self,
        rows: Rows,
        sides: Sequence[Side],
        scored: NDArray[np.bool_] | None,
        threads: int,
        *,
        by_layer: bool = False,
    ) -> None:
        self.start, self._by_layer = time.monotonic(), by_layer
        self.rows, self.sides, self._device = rows, sides, sides[0].device
        self._threads = threads if self._device == CPU else 1  # one thread submits work to a device
        for side in sides[1:]:
            refuse_unlike(sides[0], side)
        self._tokens = self._checked(scored)
        self._chunks = row_chunks(len(rows.tokens), self._chunk_rows())
        self._real = torch.from_numpy(rows.real).to(self._device)
        words = torch.from_numpy(rows.tokens).long()
        self._hidden = [
            embed(words, fetch(side.tensors, side.model.embedding), side.dtype).to(self._device) for side in sides
        ]
        self.layers = Layers(sides)

    def _chunk_rows(self) -> int:
        """Return the number of rows per chunk; on a device, raise an error if memory is insufficient."""
        if self._device == CPU:
            return ROWS
        count, length = self.rows.tokens.shape
        chunk = max(1, min(ROWS, CHUNK_TOKENS // length))
        check_memory((count, length), chunk, self.sides, torch.device(self._device), by_layer=self._by_layer)
        return chunk

    def _checked(self, scored: NDArray[np.bool_] | None) -> Predicting:
        words = self.sides[0].model.vocabulary
        if int(self.rows.tokens.max(initial=0)) >= words:
            what = f"token {int(self.rows.tokens.max())} exceeds the models' vocabulary size of {words}"
            raise UsageError(what, fix="create the rows with the checkpoint's own tokenizer")
        tokens = predicting(self.rows, scored)
        if not len(tokens.at):
            raise UsageError("no tokens to predict", where="data", fix="use longer texts or longer rows")
        return tokens

    def layer(self, index: int) -> tuple[LayerDifference, ...]:
        """Run a layer of every model in turn."""
        before = self._hidden[0].clone() if self._by_layer else None
        reference = self._advance(self.sides[0], self._hidden[0], index)
        return tuple(self._second(at, index, reference, before) for at in range(1, len(self.sides)))

    def _second(self, at: int, index: int, reference: Choices | None, before: torch.Tensor | None) -> LayerDifference:
        """Run a layer of another model, also on the first's inputs `before` if they are given."""
        side, hidden = self.sides[at], self._hidden[at]
        again = before.clone() if before is not None and at < len(self.sides) - 1 else before
        routing = self._advance(side, hidden, index, again)
        apart = self._difference(side, hidden, index)
        added = None if again is None else self._difference(side, again, index).relative_error
        same_experts = reference is not None and routing is not None and reference.experts == routing.experts
        agreement = (
            reference.agreement(routing, self._real.view(-1)) if reference and routing and same_experts else None
        )
        return LayerDifference(index, apart.relative_error, apart.mean_cosine, agreement, added)

    def _difference(self, side: Side, hidden: torch.Tensor, index: int) -> Difference:
        apart = difference(self._hidden[0], hidden, self._real, self._chunks, self._threads)
        if not np.isfinite([apart.error, apart.signal]).all():
            what = f"non-finite values after layer {index}"
            raise CheckpointError(what, where=f"{self.sides[0].name} or {side.name}", fix="audit both checkpoints")
        return apart

    def _advance(
        self, side: Side, hidden: torch.Tensor, index: int, again: torch.Tensor | None = None
    ) -> Choices | None:
        """Run the next layer on hidden states, and on those of `again`; return the routing of the former."""
        layer, experts = self.layers.take()
        hook = side.hook(index) if side.hook else None
        change = side.change(index) if side.change and layer.is_moe else None
        count = side.model.experts
        choices = Choices(self.rows.tokens.size, count, self._device) if layer.is_moe else None
        for states, observe in ((hidden, choices), (again, None)):
            if states is not None:
                run_layer(
                    layer,
                    states,
                    lambda chunk: attention_inputs(side.model, self.rows, chunk, side.dtype, self._device),
                    self._chunks,
                    experts,
                    threads=self._threads,
                    hook_of=(lambda _: hook) if hook else None,
                    observe=observe,
                    change=change,
                )
        self.layers.settle()
        return choices

    def predictions(self) -> list[Documents]:
        """Compare the models' predictions."""
        heads = [_head(side) for side in self.sides]
        words = self.sides[0].model.vocabulary
        return predict(self._hidden, heads, self._tokens, words, self._threads)


def _head(side: Side) -> Head:
    """Return the head. A BF16 head stays BF16 to halve its memory; its products are computed in FP32."""
    cache: dict[str, torch.Tensor] = {}

    def tensors(name: str) -> torch.Tensor:
        if name not in cache:
            cache[name] = fetch(side.tensors, name)
        return cache[name]

    stored = [tensors(name) for name in (side.model.norm, side.model.head)]
    exact = all(tensor.dtype == torch.bfloat16 for tensor in stored)
    return Head(side.model, tensors, torch.bfloat16 if exact else side.dtype, side.device)


def _report(run: _Run, side: Side, layers: Sequence[LayerDifference], documents: Documents, seconds: float) -> Report:
    names = run.rows.names
    of_domains = {name: documents.of_domain(index) for index, name in enumerate(names)}
    rows, length = run.rows.tokens.shape
    return Report(
        first=run.sides[0].name,
        second=side.name,
        emulated=side.emulated,
        dtype=str(side.dtype).removeprefix("torch."),
        device=side.device,
        layers=tuple(layers),
        documents=documents,
        names=names,
        total=summarize(documents),
        domains={name: summarize(part) for name, part in of_domains.items() if len(part.number)},
        rows=(rows, length),
        fingerprint=run.rows.fingerprint(),
        seconds=seconds,
    )


def compare_checkpoints(
    options: CompareOptions,
    progress: Callable[[Step], None],
    begins: Callable[[str], None] = lambda what: None,
    *,
    recipe: Recipe | None = None,
) -> Report:
    """Compare a folder with another, or with its output of a recipe, on the data.

    `begins` is called with each phase, `progress` after each layer.
    """
    refuse_threads_beside_device(options.threads, options.device)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[options.dtype]
    output = None if recipe is None else _planned(options, recipe)
    with (
        open_side(options.source, dtype=dtype, device=options.device) as first,
        _second_side(options, dtype, output) as second,
    ):
        refuse_unlike(first, second)  # before the data is read
        begins("reading and tokenizing the texts")
        rows = rows_of(
            options.data,
            options.source,
            [] if options.out_folder is None else [options.out_folder],
            samples=options.samples,
            length=options.length,
            kind=options.rows,
        )
        scored = answers(rows, load_vocabulary(options.source)) if options.score == "answers" else None
        threads = options.threads or usable_cores()
        begins("running both models, layer by layer")
        report = compare(
            rows, first, second, scored=scored, threads=threads, by_layer=options.by_layer, progress=progress
        )
    return report if output is None else replace(report, planned=output.plan.fingerprint())


def _planned(options: CompareOptions, recipe: Recipe) -> PlannedOutput:
    return planned_output(
        options.source,
        recipe,
        options.stats,
        input_scales=options.activations != "off",
        kv_scales=options.kv == "fp8-scaled",
    )


def _second_side(
    options: CompareOptions, dtype: torch.dtype, output: PlannedOutput | None
) -> AbstractContextManager[Side]:
    how: dict[str, Any] = {"dtype": dtype, "activations": options.activations, "kv": options.kv}
    if output is not None:
        return open_planned_side(output, **how, device=options.device)
    assert options.out_folder is not None
    return open_side(options.out_folder, **how, device=options.device)
