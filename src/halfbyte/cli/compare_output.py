"""Print the progress of `halfbyte compare`, one line per layer, and its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from halfbyte.cli.pipeline_output import duration
from halfbyte.compare.report import CONFIDENCE, Report
from halfbyte.compare.stream import Step
from halfbyte.evidence.comparison import Estimate, LayerDifference, Summary
from halfbyte.machine.device_option import CPU
from halfbyte.ui.console import Activity, Column, Output

_WORST = 5  # layers in the table of added errors
_TIMED = 3  # layers before the time left is estimated


def steps(activity: Activity) -> Callable[[Step], None]:
    """Return the callback for each finished layer."""

    def show(step: Step) -> None:
        layer = step.differences[0]
        line = f"layer {layer.layer}  {step.done} of {step.layers}  relative error {_error(layer)}"
        if layer.added_error is not None:
            line += f"  added error {layer.added_error:.3g}"
        if layer.routing_agreement is not None:
            line += f"  same routing {layer.routing_agreement:.2%}"
        line += f"  {duration(step.seconds)}"
        if _TIMED <= step.done < step.layers:
            line += f", about {duration(step.seconds / step.done * (step.layers - step.done))} left"
        activity.step(line)
        activity.at(step.done, step.layers, "layers")

    return show


def report(out: Output, result: Report, score: str, file: Path | None, measured: Mapping[str, Any]) -> None:
    """Print a report. `file` gets all of it, with the plot data and the hashes of the measured files."""
    if file is not None:
        result.whole_record(score, measured).write(file)
    if not out.as_json:
        _tables(out, result)
    rows, length = result.rows
    total = result.total
    lines = [
        (
            "data",
            f"{rows} rows of {length}; {total.tokens:,} predicted tokens ({score}), {total.documents:,} documents",
        ),
        ("emulated", "; ".join(f"{part} {how}" for part, how in result.emulated.items()) or "nothing: weights only"),
        (
            "computed",
            f"{_how(result)}, {duration(result.seconds)}; {CONFIDENCE:.0%} confidence intervals over documents",
        ),
        ("KL", f"{_numbers(total.kl)} nats"),
        ("top-1", f"{_shares(total.top1)} agreement"),
        (
            "perplexity",
            f"{total.perplexity_first:.4g} -> {total.perplexity_second:.4g}, times {_numbers(total.perplexity_ratio)}",
        ),
    ]
    out.facts(result.record(score).as_json(), lines)


def _how(result: Report) -> str:
    where = "" if result.device == CPU else f" on {result.device}, TF32 off"
    return f"in {result.dtype}{where}"


def _error(layer: LayerDifference) -> str:
    return "infinite" if layer.relative_error is None else f"{layer.relative_error:.3g}"


def _tables(out: Output, result: Report) -> None:
    layers = [
        {
            "layer": layer.layer,
            "error": _error(layer),
            "cosine": f"{layer.cosine:.5f}",
            "routing": None if layer.routing_agreement is None else f"{layer.routing_agreement:.2%}",
        }
        for layer in result.layers
    ]
    columns = [Column("layer", "layer"), Column("error", "relative error"), Column("cosine", "cosine")]
    out.table(layers, [*columns, Column("routing", "same routing")])
    if worst := result.by_added_error()[:_WORST]:
        rated = [{"layer": layer.layer, "added": f"{layer.added_error:.3g}"} for layer in worst]
        out.table(rated, [Column("layer", "layer"), Column("added", f"added error (largest {len(worst)} layers)")])
    if len(result.domains) > 1:
        out.table([_row(name, part) for name, part in result.domains.items()], _DOMAIN)


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


def _numbers(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.4g} (too few documents for an interval)"
    return f"{estimate.value:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


def _shares(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2%} (too few documents for an interval)"
    return f"{estimate.value:.2%} ({estimate.low:.2%} to {estimate.high:.2%})"
