"""Print plans, results and progress of the pipeline commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.checkpoint.atomic_write import write_json
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.engine.calibrate import Measured
from halfbyte.engine.pipeline import Result
from halfbyte.engine.runner import Progress
from halfbyte.errors import UsageError
from halfbyte.plan import summary
from halfbyte.plan.manifest import Plan
from halfbyte.plan.prune_plan import PrunePlan
from halfbyte.plan.summary import source_nbytes
from halfbyte.prune.report import domain_rows, sentences, stored_advice
from halfbyte.release.status import Status
from halfbyte.ui.console import Bar, Column, Level, Output
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.degeneracy.loop_test import LoopTest
    from halfbyte.engine.device_plan import DeviceEstimate, OnDevice
    from halfbyte.plan.estimate import Estimate
    from halfbyte.serve.launch import PlannedFit
    from halfbyte.ui.console import Advice

_MINUTE, _HOUR = 60, 3600


def plan(  # noqa: PLR0913 - each part is optional
    out: Output,
    planned: Plan,
    file: Path | None,
    other: Path | None,
    *,
    fit: PlannedFit | None = None,
    time: Estimate | DeviceEstimate | None = None,
    device: OnDevice | None = None,
) -> None:
    """Print a plan, its differences from another one, whether it fits, and its time and GPU memory."""
    value = summary.as_dict(planned)
    if file is not None:
        write_json(file, value)
    if other is not None:
        value["differs_in"] = summary.difference(_read_plan(other), planned)
    lines = [
        ("total", f"{size(source_nbytes(planned))} -> {size(planned.write_nbytes)}"),
        ("shards", f"{len(planned.shards)}, {value['tensors']:,} tensors"),
        (
            "memory",
            f"at most {size(value['peak_memory_nbytes'])} for jobs in flight, independent of the number of layers",
        ),
    ]
    if planned.kept is not None:
        when = "" if planned.chosen else "; chosen after calibration"
        lines.append(("experts", f"{planned.experts} of {planned.model.experts} kept in each layer{when}"))
        value["advice"] = [advice.as_dict() for advice in stored_advice(planned)]
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
    out.verdicts(_verdicts(stored_advice(planned)))


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


def _fit(planned: PlannedFit) -> list[tuple[str, str]]:
    """Return the lines about the fit: weights per GPU, space for the KV cache, the assumed launch."""
    if planned.problem is not None:
        return [("fits", f"{planned.gpus}: no")]  # the error that follows has the reason and the fix
    fit = planned.fit
    assert fit is not None
    used = "" if fit.gpus.count == planned.gpus.count else f"{fit.gpus.count} of "
    weights = f"{size(fit.weights_nbytes)} of weights per GPU of {size(fit.gpus.memory_nbytes)}"
    reserve = "in addition" if fit.reserve_outside else "of that"
    assumed = f"{fit.utilization:.0%} used, {size(fit.reserve_nbytes)} {reserve} for activations and other buffers"
    lines = [("fits", f"{used}{planned.gpus}: yes, {weights} ({assumed})")]
    if fit.kv_tokens is not None:
        text = f"{size(fit.kv_nbytes)}: {fit.kv_tokens:,} tokens in {fit.kv_dtype}"
        if fit.contexts is not None:
            text += f", {fit.contexts:.1f} requests of {fit.context:,}"
        lines.append(("kv cache", text))
    launch = f"{planned.engine}, {fit.parallel.words(fit.gpus.count)}, no draft"
    launch += f", up to {fit.concurrency:,} concurrent requests"
    lines.append(("launch", f"{launch}, as `halfbyte serve OUT --gpus '{planned.gpus}'` prints it"))
    return lines


def _read_plan(path: Path) -> dict[str, object]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        fix = "pass a plan.json, e.g. OUT/halfbyte/plan.json"
        raise UsageError("not a valid plan", where=str(path), fix=fix) from None


def steps(bar: Bar) -> Callable[[Progress], None]:
    """Return the callback that prints a line for each finished shard."""

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
    """Return the combined rate of all machines and the time left."""
    if not progress.done_nbytes or not progress.seconds:
        return ""
    rate = progress.done_nbytes / progress.seconds
    left = duration((progress.all_nbytes - progress.done_nbytes) / rate)
    return f", {size(round(rate))}/s, about {left} left"


def result(out: Output, run: Result, before: int | None = None, loops: LoopTest | None = None) -> None:
    """Print the result of a run. `before` is the source's size and `loops` the loop test, both of pruning."""
    lines = [
        ("plan", run.fingerprint),
        ("shards", f"{run.shards}" + (f", {run.resumed} of them from an earlier run, verified" * bool(run.resumed))),
        ("written", f"{size(run.write_nbytes)}{_of(before)} in {duration(run.seconds)}"),
        ("source", _verified(run)),
    ]
    if run.coverage is not None:
        lines.append(("coverage", run.coverage.line()))
    if run.pruned is not None:
        lines.append(("experts", _experts(run.pruned)))
    value = {
        "out": str(run.out),
        "fingerprint": run.fingerprint,
        "shards": run.shards,
        "resumed": run.resumed,
        "write_nbytes": run.write_nbytes,
        "seconds": run.seconds,
        "source_shards": run.source_shards,
        "verified_shards": run.verified_shards,
        "md5_shards": run.md5_shards,
        "coverage": run.coverage.summary() if run.coverage else None,
    }
    if run.pruned is not None:
        value |= {"source_nbytes": before, **_pruned(run.pruned, run.advice)}
    if loops is not None:
        value["loops"] = loops.as_dict()
    out.facts(value, lines)
    _advise(out, run.pruned, run.advice)
    if loops is not None:
        out.verdicts([("note" if loops.judged is None else loops.judged.verdict.level, loops.sentence)])


def prune_plan(out: Output, plan: PrunePlan, planned: Plan, files: Mapping[str, Path]) -> None:
    """Print the kept experts and the resulting size."""
    before = sum(planned.checkpoint.shards.values())
    lines = [
        ("experts", _experts(plan)),
        ("total", f"{size(before)} -> {size(planned.write_nbytes)}"),
        *((label, str(file)) for label, file in files.items()),
    ]
    written = {label.replace(" ", "_"): str(file) for label, file in files.items()}
    value = {**written, "source_nbytes": before, "write_nbytes": planned.write_nbytes}
    out.facts({**value, **_pruned(plan, stored_advice(planned))}, lines)
    _advise(out, plan, stored_advice(planned))


def _experts(plan: PrunePlan) -> str:
    return f"{plan.counted()} kept in each of {len(plan.layers)} layers"


def _pruned(plan: PrunePlan, more: Sequence[Advice]) -> dict[str, Any]:
    return {
        "experts": plan.experts,
        "kept": {str(layer): count for layer, count in plan.counts().items()},
        "domains": domain_rows(plan),
        "advice": [advice.as_dict() for advice in (*sentences(plan), *more)],
    }


def _advise(out: Output, plan: PrunePlan | None, more: Sequence[Advice]) -> None:
    if plan is not None:
        out.verdicts(_verdicts([*sentences(plan), *more]))


def _verdicts(advice: Sequence[Advice]) -> list[tuple[Level, str]]:
    return [(item.level, f"{item.text}; {item.fix}" if item.fix else item.text) for item in advice]


def _of(before: int | None) -> str:
    return "" if before is None else f" of {size(before)}"


def calibration(out: Output, measured: Measured) -> None:
    """Print the result of a calibration."""
    domains: Mapping[str, int] = measured.about["domains"]
    rows, length = measured.about["rows"]
    lines = [
        ("data", ", ".join(f"{name} {tokens:,}" for name, tokens in domains.items()) + " tokens"),
        ("rows", f"{rows} of {length}, {measured.about['dtype']}, tokens {measured.about['tokens_sha256'][:16]}"),
        ("coverage", measured.coverage.line()),
        ("statistics", f"{measured.folder} in {duration(measured.seconds)}"),
    ]
    value = {"out": str(measured.folder), "seconds": measured.seconds, "about": dict(measured.about)}
    out.facts({**value, "coverage": measured.coverage.summary() | asdict(measured.coverage)}, lines)


def _verified(run: Result) -> str:
    """Return how many source shards matched their known hash."""
    if run.verified_shards is None:
        return f"{run.source_shards} shards, not verified (--no-verify)"
    if not run.verified_shards:
        md5 = f"; {run.md5_shards} match their MD5" if run.md5_shards else ""
        return f"{run.source_shards} shards, no known SHA-256{md5}"
    unknown = run.source_shards - run.verified_shards
    rest = f"; {unknown} have no known SHA-256" if unknown else ""
    return f"{run.verified_shards} of {run.source_shards} shards match their known SHA-256{rest}"


def status(out: Output, run_status: Status) -> None:
    """Print the progress of a run."""
    left = f", about {duration(run_status.eta_seconds)} left" if run_status.eta_seconds is not None else ""
    lines = [
        ("recipe", run_status.recipe),
        ("plan", run_status.fingerprint),
        ("shards", f"{run_status.shards_done} of {run_status.shards}{' (complete)' if run_status.whole else ''}"),
        ("bytes", f"{size(run_status.nbytes_done)} of {size(run_status.nbytes)}{left}"),
    ]
    if run_status.stages:
        lines.append(("release", ", ".join(f"{name} {state}" for name, state in run_status.stages.items())))
    if run_status.verdict is not None:
        lines.append(("verdict", run_status.verdict))
    out.facts(run_status.as_dict(), lines)


def duration(seconds: float) -> str:
    """Return seconds as readable text, e.g. "1 h 05 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{round(seconds) // _MINUTE} min {round(seconds) % _MINUTE:02d} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // _MINUTE} h {minutes % _MINUTE:02d} min"
