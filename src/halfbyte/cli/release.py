"""The `halfbyte release` command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfbyte.cli.command import command
from halfbyte.cli.load_options import chosen_device_memory, chosen_recipe
from halfbyte.cli.usage import commands_beside
from halfbyte.errors import EXIT_USAGE, CheckFailedError, HalfbyteError, RecipeError, UsageError
from halfbyte.machine.device_option import CPU
from halfbyte.options.declare import to_argv
from halfbyte.options.release import ReleaseOptions
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.options.shared import Placement, RecipeChanges
from halfbyte.ui.console import SYMBOLS, Column, Level, Output
from halfbyte.ui.escape import pasted

if TYPE_CHECKING:
    from halfbyte.recipe.decisions import Recipe
    from halfbyte.release.gate import Judged
    from halfbyte.release.preflight import Preflight
    from halfbyte.release.run import Ended, Release
    from halfbyte.release.stages import Stage

_GATES = (Column("name", "gate"), Column("required", "required"), Column("measured", "measured"), Column("outcome", ""))
_STAGES = (Column("stage", "stage"), Column("state", ""), Column("command", "command"))
_REQUIREMENTS = (Column("mark", ""), Column("stage", "stage"), Column("needs", "needs"), Column("here", "here"),
                 Column("fix", "fix"))  # fmt: skip
_BAD = ("failed", "anomalous", "infeasible")


@command("release", ReleaseOptions, example="halfbyte release Kimi-K2.6 OUT -r kimi-k2.6-nvfp4-nvidia --dry-run")
def release_command(out: Output, options: ReleaseOptions) -> None:
    """Quantize, check, serve, measure, judge and report in one run.

    A preflight first checks the requirements of every stage and writes nothing: exit code 3 if this machine lacks
    something, 2 if the recipe is invalid. Finished stages are kept if plan and options are the same. Run the same
    command again to resume, also after a crash. Exit code 1 unless the verdict is ACCEPT.
    """
    from halfbyte.cli.hash_progress import hash_output

    out_folder = options.out_folder
    release, preflight = _release(options)
    _refuse_missing_commands(release.stages, commands_beside(click.get_current_context()))
    if options.stop_after and options.stop_after not in [stage.name for stage in release.stages]:
        what = f"this release has no stage '{options.stop_after}'"
        raise UsageError(what, where="--stop-after", fix=f"use {', '.join(stage.name for stage in release.stages)}")
    _check_first(out, release, preflight, dry_run=options.dry_run)
    if options.dry_run:
        return None
    hash_output(out, out_folder)
    ended = release.run(out)
    _show(out, ended)
    return _finish(out, ended, out_folder)


def _release(options: ReleaseOptions) -> tuple[Release, Preflight]:
    from halfbyte.recipe.load import load_release
    from halfbyte.release.preflight import Preflight
    from halfbyte.release.run import Folders, Release
    from halfbyte.release.stages import ReleaseRequest, make_stages

    recipe, block = (
        chosen_recipe(options.recipe, options.changes),
        load_release(options.recipe, options.changes.overrides),
    )
    if block is None:
        fix = "add a 'release' block with stages and gates; `halfbyte recipes show kimi-k2.6-nvfp4-nvidia` has one"
        raise RecipeError(f"recipe '{recipe.name}' has no 'release' block", where=options.recipe, fix=fix)
    asks = [name for name in URL_COMMANDS if name in block]
    if asks and "serve" not in block and options.url is None:
        fix = "add 'release.serve' to the recipe ({} for the engine's defaults), or pass --url"
        raise RecipeError(f"stage '{asks[0]}' needs a server, but there is no 'serve' stage", where="release", fix=fix)
    asked = ReleaseRequest(
        recipe=options.recipe,
        block=block,
        quantize=_quantize_words(options),
        device=options.placement.device,
        reads=_local_data(recipe),
        url=options.url,
        reference_url=options.reference_url,
        force=options.force,
    )
    release = Release(
        folders=Folders(options.source, options.out_folder),
        stages=make_stages(asked),
        gates=block["gates"],
        recipe=recipe.name,
        fingerprint=recipe.fingerprint(),
        force=options.force,
        again=options.again,
        stop_after=options.stop_after,
    )
    return release, Preflight(release, asked, recipe, options.changes.layers)


def _quantize_words(options: ReleaseOptions) -> tuple[str, ...]:
    """Return the options of `quantize` besides the recipe, without overrides of the release block."""
    placement, changes = options.placement, options.changes
    chosen_device_memory(placement)  # raises for a size without a GPU
    own = [override for override in changes.overrides if override.partition(".")[0].strip() != "release"]
    values = asdict(changes) | {"overrides": own}
    device = None if placement.device == CPU else placement.device
    return (
        *to_argv(RecipeChanges, values, ("overrides", "data", "samples", "layers")),
        *to_argv(Placement, {"memory": placement.memory, "device": device}, ("memory", "device")),
    )


def _local_data(recipe: Recipe) -> tuple[Path, ...]:
    """Return the local calibration files, whose content may change between runs."""
    sources = [Path(dataset.source) for dataset in recipe.calibrate.datasets] if recipe.calibrate else []
    return tuple(path for path in sources if path.is_file())


def _refuse_missing_commands(stages: Sequence[Stage], commands: Mapping[str, click.Command]) -> None:
    from halfbyte.release.stages import HALFBYTE, PROVENANCE

    for stage in stages:
        no_command = stage.program == HALFBYTE and stage.words != () and stage.words[0] not in commands
        no_module = stage.program == PROVENANCE and find_spec("halfbyte.publish.provenance") is None
        if no_command or no_module:
            fix = f"remove 'release.{stage.name}' from the recipe, or --set release.{stage.name}=null"
            raise UsageError(f"this version of halfbyte has no stage '{stage.name}'", where="release", fix=fix)


def _check_first(out: Output, release: Release, preflight: Preflight, *, dry_run: bool) -> None:
    """Refuse a release that cannot complete on this machine. A dry run shows all stages and requirements."""
    from halfbyte.release.preflight import infeasible

    out.note("preflight: checking the requirements of every stage")
    requirements = preflight.run()
    problem = infeasible(requirements, [stage.name for stage in release.stages])
    stages = _outlook(release) if dry_run and release.folders.source.is_dir() else []
    if out.as_json and (dry_run or problem):
        verdict = {"verdict": "INFEASIBLE", "why": [problem.what]} if problem else {}
        out.facts({**verdict, "stages": stages, "preflight": [item.as_dict() for item in requirements]}, [])
    elif not out.as_json:
        if dry_run:
            out.table(stages, _STAGES)
        if dry_run or problem:
            out.table([{**item.as_dict(), "mark": SYMBOLS[item.level]} for item in requirements], _REQUIREMENTS)
    if problem is not None:
        raise problem
    for item in requirements:
        if item.level == "note":
            out.note(f"! {item.stage}: {item.needs}: {item.here}; {item.fix}")
    kept = f"; {len(stages)} stages, {sum(row['state'] == 'kept' for row in stages)} of them kept; nothing was run"
    out.note(f"preflight: all {len(requirements)} requirements are met" + (kept if dry_run else ""))


def _outlook(release: Release) -> list[dict[str, str]]:
    from halfbyte.release.stages import shown

    folders = release.folders.shown()
    return [
        {"stage": stage.name, "state": state, "command": shown(stage, folders) or "(judges by the gates)"}
        for stage, state in release.outlook()
    ]


def _show(out: Output, ended: Ended) -> None:
    if out.as_json:
        out.facts(ended.release.as_json(), [])
        return
    out.table([asdict(gate) for gate in ended.judged.gates], _GATES)
    bad: list[tuple[Level, str]] = [
        ("bad" if gate.outcome in _BAD else "note", f"{gate.name}: {gate.why}")
        for gate in ended.judged.gates
        if gate.outcome != "passed"
    ]
    level: Level = "good" if ended.judged.headline == ended.judged.verdict else "note"
    out.verdicts(bad or [(level, f"{ended.judged.headline}: {ended.judged.why[0]}")])


def _finish(out: Output, ended: Ended, out_folder: Path) -> None:
    """Raise the error that sets the exit code, or print the next step."""
    from halfbyte.checkpoint.output_folder import FOLDER

    judged, where = ended.judged, str(out_folder / FOLDER / ended.release.file)
    quantized = ended.records.get("quantize")
    if quantized is not None and quantized.state == "failed" and quantized.exit_code == EXIT_USAGE:
        raise UsageError(quantized.why, where="quantize", fix=f"see {out_folder / FOLDER}/release/quantize.log")
    if ended.stopped:
        bad = [gate for gate in judged.gates if gate.outcome in _BAD]
        if bad:
            raise CheckFailedError(f"{bad[0].name}: {bad[0].why}", where=where, fix=_next(judged, out_folder))
        failed = [record for record in ended.records.values() if record.state == "failed"]
        if failed:
            raise CheckFailedError(f"{failed[0].name}: {failed[0].why}", where=where, fix=_next(judged, out_folder))
        out.note(f"{judged.verdict}: {judged.why[0]}")
        out.note("stopped by --stop-after; run the same command without it to resume")
        return
    if judged.verdict != "ACCEPT":
        raise CheckFailedError(f"{judged.verdict}: {judged.why[0]}", where=where, fix=_next(judged, out_folder))
    for record in ended.records.values():
        if record.state == "failed":  # a stage after the verdict
            error = HalfbyteError(f"{record.name}: {record.why}", where=where, fix="run the same command to retry")
            error.exit_code = record.exit_code or CheckFailedError.exit_code
            raise error
    out.note(where)
    if "publish" not in ended.records:
        out.hint(_next(judged, out_folder))


def _next(judged: Judged, out_folder: Path) -> str:
    return judged.next[0].replace("OUT", pasted(out_folder)) if judged.next else ""
