"""What the command says: a line a layer while it runs, then the numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halfbyte.compare.intervals import CONFIDENCE, Estimate
from halfbyte.compare.report import Report, Summary
from halfbyte.compare.stream import Step
from halfbyte.show import duration
from halfbyte.terminal.console import Column, Output
from halfbyte.terminal.device_options import CPU
from halfbyte.write import write_whole

_TIMED = 3  # layers before the time that is left is worth saying


def steps(out: Output) -> Callable[[Step], None]:
    """Return what is called after each layer."""

    def show(step: Step) -> None:
        found = step.differences[0]
        line = f"layer {found.layer}  {step.done} of {step.layers}  relative error {found.relative_error:.3g}"
        if found.routed_alike is not None:
            line += f"  routed alike {found.routed_alike:.2%}"
        line += f"  {duration(step.seconds)}"
        if _TIMED <= step.done < step.layers:
            line += f", about {duration(step.seconds / step.done * (step.layers - step.done))} left"
        out.note(line)

    return show


def report(out: Output, found: Report, score: str, file: Path | None) -> None:
    """Show a report; a file gets all of it, with what a plot needs."""
    if file is not None:
        value = {**found.plot_data(), "scored": score}
        write_whole(file, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())
    if not out.as_json:
        _tables(out, found)
    rows, length = found.rows
    total = found.total
    lines = [
        (
            "data",
            f"{rows} rows of {length}; {total.tokens:,} predicted tokens ({score}), {total.documents:,} documents",
        ),
        ("emulated", "; ".join(f"{what} {how}" for what, how in found.emulated.items()) or "nothing: weights only"),
        ("computed", f"{_how(found)}, {duration(found.seconds)}; intervals of {CONFIDENCE:.0%} over documents"),
        ("KL", f"{_numbers(total.kl)} nats"),
        ("top-1", f"{_shares(total.top1)} the same"),
        (
            "perplexity",
            f"{total.perplexity_first:.4g} -> {total.perplexity_second:.4g}, times {_numbers(total.perplexity_ratio)}",
        ),
    ]
    out.facts({**found.as_dict(), "scored": score}, lines)


def _how(found: Report) -> str:
    where = "" if found.device == CPU else f" on {found.device}, TF32 off"
    return f"in {found.dtype}{where}"


def _tables(out: Output, found: Report) -> None:
    layers = [
        {
            "layer": layer.layer,
            "error": f"{layer.relative_error:.3g}",
            "cosine": f"{layer.cosine:.5f}",
            "alike": None if layer.routed_alike is None else f"{layer.routed_alike:.2%}",
        }
        for layer in found.layers
    ]
    columns = [Column("layer", "layer"), Column("error", "relative error"), Column("cosine", "cosine")]
    out.table(layers, [*columns, Column("alike", "routed alike")])
    if len(found.domains) > 1:
        out.table([_row(name, part) for name, part in found.domains.items()], _DOMAIN)


_DOMAIN = [
    Column("domain", "domain"),
    Column("documents", "documents", number=True),
    Column("tokens", "tokens", number=True),
    Column("kl", "KL"),
    Column("top1", "top-1"),
    Column("ratio", "perplexity"),
]


def _row(name: str, part: Summary) -> dict[str, Any]:
    return {
        "domain": name,
        "documents": part.documents,
        "tokens": part.tokens,
        "kl": _numbers(part.kl),
        "top1": _shares(part.top1),
        "ratio": f"times {_numbers(part.perplexity_ratio)}",
    }


def _numbers(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.4g} (too few documents for an interval)"
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


def _shares(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:.2%} (too few documents for an interval)"
    return f"{found.value:.2%} ({found.low:.2%} to {found.high:.2%})"
