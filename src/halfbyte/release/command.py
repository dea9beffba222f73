"""The command `halfbyte release`; what it needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.errors import EXIT_USAGE, CheckFailedError, HalfbyteError, RecipeError, UsageError
from halfbyte.recipe.options import chosen_recipe, recipe_options
from halfbyte.serve.then_option import commands_beside
from halfbyte.terminal.console import Column, Level, Output
from halfbyte.terminal.device_options import CPU, chosen_device_memory, device_options
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.usage import Command

if TYPE_CHECKING:
    from halfbyte.recipe.decisions import Recipe
    from halfbyte.release.run import Ended, Release
    from halfbyte.release.stages import Stage
    from halfbyte.validate.gate import Judged

STAGES = ("quantize", "audit", "loops", "compare", "scripts", "source", "serve", "probe", "eval", "bench", "verdict",
          "provenance", "card", "report", "publish")  # fmt: skip
_FOLDER = click.Path(path_type=Path)
_GATES = (Column("name", "gate"), Column("wanted", "wanted"), Column("measured", "measured"), Column("outcome", ""))
_STAGES = (Column("stage", "stage"), Column("state", ""), Column("command", "command"))
_BAD = ("failed", "anomalous", "infeasible")


@click.command("release", cls=Command)
@click.argument("source", metavar="SRC", type=_FOLDER)
@click.argument("out_folder", metavar="OUT", type=_FOLDER)
@recipe_options
@device_options
@click.option("--url", help="Ask this server, which somebody else runs; no engine is started for OUT.")
@click.option("--reference-url", metavar="URL", help="Compare with this server of the source; it is not started here.")
@click.option("--again", multiple=True, metavar="STAGE", type=click.Choice(STAGES),
              help="Run this stage again although it is done; may be given again.")  # fmt: skip
@click.option("--stop-after", metavar="STAGE", type=click.Choice(STAGES), help="End after this stage.")
@click.option("--force", is_flag=True, help="Publish without ACCEPT; release.json and the card say so.")
@click.option("--dry-run", is_flag=True, help="List the stages with their commands, and which are kept.")
@click.pass_context
def release_command(ctx: click.Context, source: Path, out_folder: Path, dry_run: bool, **choice: Any) -> None:
    """Run the release that the recipe describes: make OUT, check it, serve and measure it, judge it, write about it.

    Stages that are done for the same plan and options are kept. Ctrl-C, or worse, loses nothing: the same command goes
    on. Exit code 1 unless the verdict is ACCEPT.
    """
    out: Output = ctx.obj
    release = _release(source, out_folder, choice)
    _refuse_missing_commands(release.stages, commands_beside(ctx))
    if choice["stop_after"] and choice["stop_after"] not in [stage.name for stage in release.stages]:
        what = f"this release has no stage '{choice['stop_after']}'"
        raise UsageError(what, where="--stop-after", fix=f"use {', '.join(stage.name for stage in release.stages)}")
    if dry_run:
        return _show_outlook(out, release)
    _refuse_folders(release, source, out_folder)
    ended = release.run(out)
    _show(out, ended)
    return _finish(out, ended, out_folder)


def _release(source: Path, out_folder: Path, choice: Mapping[str, Any]) -> Release:
    from halfbyte.recipe.load import load_release  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.release.run import Folders, Release  # noqa: PLC0415
    from halfbyte.release.stages import ASKS_SERVER, Asked, make_stages  # noqa: PLC0415

    recipe, block = chosen_recipe(choice), load_release(choice["recipe"], choice["overrides"])
    if block is None:
        fix = "add a 'release' block with stages and gates; `halfbyte recipes show kimi-k2.6-nvfp4-nvidia` has one"
        raise RecipeError(f"recipe '{recipe.name}' says nothing about a release", where=choice["recipe"], fix=fix)
    asks = [name for name in ASKS_SERVER if name in block]
    if asks and "serve" not in block and choice["url"] is None:
        fix = "add 'release.serve' to the recipe ({} for the engine's own settings), or give --url"
        raise RecipeError(f"'{asks[0]}' asks a server, and nothing says how to start it", where="release", fix=fix)
    asked = Asked(
        recipe=choice["recipe"],
        block=block,
        quantize=_quantize_words(choice),
        device=choice["device"],
        reads=_local_data(recipe),
        url=choice["url"],
        reference_url=choice["reference_url"],
        force=choice["force"],
    )
    return Release(
        folders=Folders(source, out_folder),
        stages=make_stages(asked),
        gates=block["gates"],
        recipe=recipe.name,
        fingerprint=recipe.fingerprint(),
        force=choice["force"],
        again=choice["again"],
        stop_after=choice["stop_after"],
    )


def _quantize_words(choice: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what `quantize` is told beside the recipe; what only the release reads is not for it."""
    chosen_device_memory(choice)  # which refuses a size without a GPU
    words: list[str] = []
    for override in choice["overrides"]:
        if override.partition(".")[0].strip() != "release":
            words += ["--set", override]
    for pair in choice["data"]:
        words += ["--data", pair]
    for name in ("samples", "layers", "device_memory"):
        if choice[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(choice[name])]
    return (*words, *(() if choice["device"] == CPU else ("--device", choice["device"])))


def _local_data(recipe: Recipe) -> tuple[Path, ...]:
    """Return the calibration files that lie here: the same name may hold other texts tomorrow."""
    sources = [Path(one.source) for one in recipe.calibrate.datasets] if recipe.calibrate else []
    return tuple(path for path in sources if path.is_file())


def _refuse_missing_commands(stages: Sequence[Stage], commands: Mapping[str, click.Command]) -> None:
    from halfbyte.release.stages import HALFBYTE, PROVENANCE  # noqa: PLC0415

    for stage in stages:
        no_command = stage.program == HALFBYTE and stage.words != () and stage.words[0] not in commands
        no_module = stage.program == PROVENANCE and find_spec("halfbyte.publish.provenance") is None
        if no_command or no_module:
            fix = f"remove 'release.{stage.name}' from the recipe, or --set release.{stage.name}=null"
            raise UsageError(f"this halfbyte cannot do the stage '{stage.name}'", where="release", fix=fix)


def _refuse_folders(release: Release, source: Path, out_folder: Path) -> None:
    """Refuse what `quantize` would refuse, before anything lies in the folder."""
    from halfbyte.folders import FOLDER, PLAN, is_foreign, read_plan, refuse_nested, refuse_unwritable  # noqa: PLC0415
    from halfbyte.source.checkpoint import open_checkpoint  # noqa: PLC0415

    open_checkpoint(source)
    refuse_nested(source, out_folder)
    refuse_unwritable(out_folder)
    if (out_folder / FOLDER / PLAN).is_file():
        if read_plan(out_folder)["parts"].get("recipe") != release.fingerprint:
            fix = "give a new folder, or the recipe that this one was made with"
            raise UsageError("this folder holds what another recipe made", where=str(out_folder), fix=fix)
    elif out_folder.is_dir() and any(map(is_foreign, out_folder.iterdir())):
        raise UsageError("the output folder is not empty", where=str(out_folder), fix="give a new folder")


def _show_outlook(out: Output, release: Release) -> None:
    from halfbyte.release.stages import shown  # noqa: PLC0415

    places = release.folders.shown()
    rows = [
        {"stage": stage.name, "state": state, "command": shown(stage, places) or "(judges by the gates)"}
        for stage, state in release.outlook()
    ]
    out.table(rows, _STAGES)
    kept = sum(row["state"] == "kept" for row in rows)
    out.note(f"{len(rows)} stages, {kept} of them kept; nothing was done")


def _show(out: Output, ended: Ended) -> None:
    if out.as_json:
        out.facts(ended.value, [])
        return
    out.table([gate.as_dict() for gate in ended.judged.gates], _GATES)
    bad: list[tuple[Level, str]] = [
        ("bad" if gate.outcome in _BAD else "note", f"{gate.name}: {gate.why}")
        for gate in ended.judged.gates
        if gate.outcome != "passed"
    ]
    out.verdicts(bad or [("good", f"ACCEPT: {ended.judged.why[0]}")])


def _finish(out: Output, ended: Ended, out_folder: Path) -> None:
    """Leave with the exit code of what was found, and say what comes next."""
    from halfbyte.folders import FOLDER, RELEASE  # noqa: PLC0415

    judged, where = ended.judged, str(out_folder / FOLDER / RELEASE)
    made = ended.records.get("quantize")
    if made is not None and made.state == "failed" and made.exit_code == EXIT_USAGE:
        raise UsageError(made.why, where="quantize", fix=f"see {out_folder / FOLDER}/release/quantize.log")
    if ended.stopped:
        bad = [gate for gate in judged.gates if gate.outcome in _BAD]
        if bad:
            raise CheckFailedError(f"{bad[0].name}: {bad[0].why}", where=where, fix=_next(judged, out_folder))
        out.note("stopped as asked; the same command without --stop-after goes on")
        return
    if judged.verdict != "ACCEPT":
        raise CheckFailedError(f"{judged.verdict}: {judged.why[0]}", where=where, fix=_next(judged, out_folder))
    for record in ended.records.values():
        if record.state == "failed":  # what comes after the verdict
            error = HalfbyteError(f"{record.name}: {record.why}", where=where, fix="the same command tries it again")
            error.exit_code = record.exit_code or CheckFailedError.exit_code
            raise error
    out.note(where)
    if "publish" not in ended.records:
        out.hint(_next(judged, out_folder))


def _next(judged: Judged, out_folder: Path) -> str:
    return judged.next[0].replace("OUT", pasted(out_folder)) if judged.next else ""
