"""Print the arithmetic of a fit step by step."""

from __future__ import annotations

from collections.abc import Iterator

from halfbyte.serve.fit import Fit
from halfbyte.serve.parallel import Share
from halfbyte.ui.units import size

_NAME_WIDTH = 11


def fit_lines(fit: Fit) -> list[str]:
    """Return one line per step: memory, weights, reserve, KV cache, tokens and verdict."""
    return [f"{name:{_NAME_WIDTH}}{text}".rstrip() for name, text in _rows(fit)]


def _rows(fit: Fit) -> Iterator[tuple[str, str]]:
    gpus, count = fit.gpus, fit.gpus.count
    budget = int(gpus.memory_nbytes * fit.utilization)
    how = fit.parallel.words(count)
    yield "memory", f"{size(gpus.memory_nbytes)} x {fit.utilization:g} = {size(budget)} on each GPU of {gpus} ({how})"
    yield from _sum("weights", fit.weights)
    if fit.draft:
        yield from _sum("draft", fit.draft)
    yield from _sum("reserve", fit.reserve)
    if fit.reserve_outside:
        yield "", f"outside the memory share, which leaves {size(gpus.memory_nbytes - budget)} for it"
    inside = (fit.weights, fit.draft, () if fit.reserve_outside else fit.reserve)
    used = [sum(share.nbytes for share in group) for group in inside if group]
    minus = " - ".join(size(nbytes) for nbytes in (budget, *used))
    yield "kv cache", f"{minus} = {size(fit.kv_nbytes)}"
    if fit.kv_tokens:
        yield "tokens", _tokens(fit)
    if fit.contexts:
        yield "contexts", f"{fit.kv_tokens:,} / {fit.context:,} = {fit.contexts:.2f} concurrent full-length requests"
    yield "verdict", "it fits" if fit.fits else f"does not fit: {fit.problem}; {fit.advice}"


def _sum(name: str, group: tuple[Share, ...]) -> Iterator[tuple[str, str]]:
    for share in group:
        yield name, _share(share)
        name = ""
    if len(group) > 1:
        yield "", f"total {size(sum(share.nbytes for share in group))}"


def _share(share: Share) -> str:
    why = f" ({share.why})" if share.why else ""
    if share.divisor == 1:
        return f"{share.name} {size(share.nbytes)}{why}"
    return f"{share.name} {size(share.of_nbytes)} / {share.divisor} = {size(share.nbytes)}{why}"


def _tokens(fit: Fit) -> str:
    assert fit.kv_tokens is not None
    dcp, copies = fit.parallel.decode_context, fit.gpus.count // fit.parallel.tensor_of(fit.gpus.count)
    per_gpu = fit.kv_tokens // (dcp * max(1, copies))
    text = f"{size(max(0, fit.kv_nbytes))} / {fit.kv_token_nbytes:,} bytes per token in {fit.kv_dtype} = {per_gpu:,}"
    text += f" in blocks of {fit.block}"
    times = [f"{dcp} by DCP"] if dcp > 1 else []
    times += [f"{copies} copies"] if copies > 1 else []
    return text + (f"; x {' x '.join(times)} = {fit.kv_tokens:,}" if times else "")
