"""What the commands of the pipeline say: values in, lines of the console out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.errors import UsageError
from halfbyte.measuring import Measured
from halfbyte.pipeline import Result
from halfbyte.plan import summary
from halfbyte.plan.manifest import Plan
from halfbyte.prune.plan_file import PrunePlan
from halfbyte.prune.report import domain_rows, sentences, stored_advice
from halfbyte.run import Progress
from halfbyte.serve.fit import Fit
from halfbyte.source.foreign import read_json
from halfbyte.status import Status
from halfbyte.terminal.console import Bar, Column, Level, Output
from halfbyte.terminal.units import size
from halfbyte.write import write_whole

if TYPE_CHECKING:
    from halfbyte.machine.advice import Advice
    from halfbyte.plan.device import DeviceEstimate, OnDevice
    from halfbyte.plan.estimate import Estimate
    from halfbyte.validate.after_pruning import LoopTest

_MINUTE, _HOUR = 60, 3600


def plan(  # noqa: PLR0913 - what is not known is not shown
    out: Output,
    made: Plan,
    file: Path | None,
    other: Path | None,
    *,
    fit: Fit | None = None,
    time: Estimate | DeviceEstimate | None = None,
    device: OnDevice | None = None,
) -> None:
    """Show a plan, how it differs from another one, whether it fits, and what it would take of time and of a GPU."""
    value = summary.as_dict(made)
    if file is not None:
        write_whole(file, (json.dumps(value, indent=1) + "\n").encode())
    if other is not None:
        value["differs_in"] = summary.difference(_read_plan(other), made)
    lines = [
        ("total", f"{size(_before(made))} -> {size(made.write_nbytes)}"),
        ("shards", f"{len(made.shards)}, {value['tensors']:,} tensors"),
        ("memory", f"at most {size(value['peak_memory_nbytes'])} for jobs in flight, whatever the layers"),
    ]
    if made.kept is not None:
        when = "" if made.chosen else "; which, is known when they are measured"
        lines.append(("experts", f"{made.experts} of {made.model.experts} stay in each layer{when}"))
        value["advice"] = [advice.as_dict() for advice in stored_advice(made)]
    if device is not None:
        value["device"] = device.as_dict()
        lines += device.lines()
    if time is not None:
        value["time"] = time.as_dict()
        lines.append(("time", _time(time)))
    lines.append(("plan", f"{value['fingerprint']} (same plan, same bytes)"))
    if fit is not None:
        value["fit"] = fit.as_dict()
        lines += _fit(fit)
    if other is not None:
        lines.append(("differs in", ", ".join(value["differs_in"]) or "nothing"))
    if not out.as_json:
        _roles(out, value["roles"])
    out.facts(value, lines)
    out.verdicts(_said(stored_advice(made)))


def _before(made: Plan) -> int:
    """Return the size of what becomes smaller: with the experts that go, of which nothing is read."""
    whole = made.kept is not None and made.layers is None
    return sum(made.checkpoint.shards.values()) if whole else made.read_nbytes


def _roles(out: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = [
        Column("role", "role"),
        Column("action", "action"),
        Column("tensors", "tensors", number=True),
        Column("before", "before", number=True),
        Column("after", "after", number=True),
    ]
    out.table(
        [{**row, "before": size(row["read_nbytes"]), "after": size(row["write_nbytes"])} for row in rows], columns
    )


def _time(time: Estimate | DeviceEstimate) -> str:
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in time.parts())
    return f"about {duration(time.seconds)}: {parts} ({time.basis()})"


def _fit(fit: Fit) -> list[tuple[str, str]]:
    """Say whether and how it fits, and what is left for the KV cache."""
    if not fit.fits:
        return [("fits", f"{fit.gpus}: no, {fit.problem}; {fit.advice}")]
    weights = f"{size(fit.weights_nbytes)} of weights on each GPU of {size(fit.gpus.memory_nbytes)}"
    assumed = f"{fit.utilization:.0%} used, {size(fit.reserve_nbytes)} of it for activations and the like"
    lines = [("fits", f"{fit.gpus}: yes, {weights} ({assumed})")]
    if fit.fp8_tokens is not None and fit.bf16_tokens is not None:
        text = f"{size(fit.kv_nbytes)}: {fit.fp8_tokens:,} tokens in FP8, {fit.bf16_tokens:,} in BF16"
        if fit.contexts is not None:
            few = "; serve it with a shorter context" if fit.contexts < 1 else ""
            text += f"; {fit.contexts:.1f} contexts of {fit.context:,} in FP8{few}"
        lines.append(("kv cache", text))
    return lines


def _read_plan(path: Path) -> dict[str, object]:
    try:
        found = read_json(path)
        return dict(found)
    except (OSError, ValueError, TypeError):
        fix = "give a plan.json, as in OUT/halfbyte/plan.json"
        raise UsageError("not a plan", where=str(path), fix=fix) from None


def steps(bar: Bar) -> Callable[[Progress], None]:
    """Return what is called for each finished shard: one honest line."""

    def show(progress: Progress) -> None:
        line = f"{progress.shard}  {size(progress.done_nbytes)} of {size(progress.all_nbytes)}"
        line += f"  {duration(progress.seconds)}"
        if progress.node:
            line += f"  by {progress.node}{_pace(progress)}"
        if progress.sqnr_db is not None and progress.worst is not None:
            line += f"  sqnr {progress.sqnr_db:.1f} dB, worst {progress.worst[1]:.1f} dB {progress.worst[0]}"
        bar.step(line, progress.done_nbytes, progress.all_nbytes)

    return show


def _pace(progress: Progress) -> str:
    """Say how fast many machines are together, and how long it will take them."""
    if not progress.done_nbytes or not progress.seconds:
        return ""
    rate = progress.done_nbytes / progress.seconds
    left = duration((progress.all_nbytes - progress.done_nbytes) / rate)
    return f", {size(round(rate))}/s, about {left} left"


def result(out: Output, made: Result, before: int | None = None, loops: LoopTest | None = None) -> None:
    """Show what a run did; `before` is the size of the source, where it matters, `loops` how the result writes."""
    lines = [
        ("plan", made.fingerprint),
        ("shards", f"{made.shards}" + (f", {made.resumed} of them from an earlier run, verified" * bool(made.resumed))),
        ("written", f"{size(made.write_nbytes)}{_of(before)} in {duration(made.seconds)}"),
        ("source", _verified(made)),
    ]
    if made.coverage is not None:
        lines.append(("coverage", made.coverage.line()))
    if made.pruned is not None:
        lines.append(("experts", _experts(made.pruned)))
    value = {
        "out": str(made.out),
        "fingerprint": made.fingerprint,
        "shards": made.shards,
        "resumed": made.resumed,
        "write_nbytes": made.write_nbytes,
        "seconds": made.seconds,
        "source_shards": made.source_shards,
        "verified_shards": made.verified_shards,
        "md5_shards": made.md5_shards,
        "coverage": made.coverage.summary() if made.coverage else None,
    }
    if made.pruned is not None:
        value |= {"source_nbytes": before, **_pruned(made.pruned, made.advice)}
    if loops is not None:
        value["loops"] = loops.as_dict()
    out.facts(value, lines)
    _advise(out, made.pruned, made.advice)
    if loops is not None:
        out.verdicts([("note" if loops.judged is None else loops.judged.verdict.level, loops.sentence)])


def prune_plan(out: Output, plan: PrunePlan, made: Plan, files: Mapping[str, Path]) -> None:
    """Show which experts would stay, and what that means."""
    before = sum(made.checkpoint.shards.values())
    lines = [
        ("experts", _experts(plan)),
        ("total", f"{size(before)} -> {size(made.write_nbytes)}"),
        *((what, str(file)) for what, file in files.items()),
    ]
    written = {what.replace(" ", "_"): str(file) for what, file in files.items()}
    value = {**written, "source_nbytes": before, "write_nbytes": made.write_nbytes}
    out.facts({**value, **_pruned(plan, stored_advice(made))}, lines)
    _advise(out, plan, stored_advice(made))


def _experts(plan: PrunePlan) -> str:
    return f"{plan.counted()} stay in each of {len(plan.layers)} layers"


def _pruned(plan: PrunePlan, more: Sequence[Advice]) -> dict[str, Any]:
    return {
        "experts": plan.experts,
        "kept": {str(layer): count for layer, count in plan.counts().items()},
        "domains": domain_rows(plan),
        "advice": [advice.as_dict() for advice in (*sentences(plan), *more)],
    }


def _advise(out: Output, plan: PrunePlan | None, more: Sequence[Advice]) -> None:
    if plan is not None:
        out.verdicts(_said([*sentences(plan), *more]))


def _said(advice: Sequence[Advice]) -> list[tuple[Level, str]]:
    return [(one.level, f"{one.text}; {one.fix}" if one.fix else one.text) for one in advice]


def _of(before: int | None) -> str:
    return "" if before is None else f" of {size(before)}"


def calibration(out: Output, made: Measured) -> None:
    """Show what a calibration measured."""
    domains: Mapping[str, int] = made.about["domains"]
    rows, length = made.about["rows"]
    lines = [
        ("data", ", ".join(f"{name} {tokens:,}" for name, tokens in domains.items()) + " tokens"),
        ("rows", f"{rows} of {length}, {made.about['dtype']}, tokens {made.about['tokens_sha256'][:16]}"),
        ("coverage", made.coverage.line()),
        ("statistics", f"{made.folder} in {duration(made.seconds)}"),
    ]
    value = {"out": str(made.folder), "seconds": made.seconds, "about": dict(made.about)}
    out.facts({**value, "coverage": made.coverage.as_dict()}, lines)


def _verified(made: Result) -> str:
    """Say of how many source shards the hash was known and right."""
    if made.verified_shards is None:
        return f"{made.source_shards} shards, not verified as you asked"
    if not made.verified_shards:
        md5 = f"; of {made.md5_shards} their MD5 was right" if made.md5_shards else ""
        return f"{made.source_shards} shards, of which no SHA-256 is known{md5}"
    unknown = made.source_shards - made.verified_shards
    rest = f"; of the other {unknown} none is known" if unknown else ""
    return f"{made.verified_shards} of {made.source_shards} shards have the SHA-256 that is known of them{rest}"


def status(out: Output, found: Status) -> None:
    """Show how far a run is."""
    left = f", about {duration(found.eta_seconds)} left" if found.eta_seconds is not None else ""
    lines = [
        ("recipe", found.recipe),
        ("plan", found.fingerprint),
        ("shards", f"{found.shards_done} of {found.shards}{' (whole)' if found.whole else ''}"),
        ("bytes", f"{size(found.nbytes_done)} of {size(found.nbytes)}{left}"),
    ]
    if found.stages:
        lines.append(("release", ", ".join(f"{name} {state}" for name, state in found.stages.items())))
    if found.verdict is not None:
        lines.append(("verdict", found.verdict))
    out.facts(found.as_dict(), lines)


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{round(seconds) // _MINUTE} min {round(seconds) % _MINUTE:02d} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // _MINUTE} h {minutes % _MINUTE:02d} min"
