"""The commands: each parses its arguments, calls one function and shows what it returns.

Heavy modules are imported inside the commands, so that `halfbyte --help` is instant.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from halfbyte.audit.command import audit_command
from halfbyte.audit.diff_command import diff_command
from halfbyte.calibrate.command import calibrate_command
from halfbyte.compare.command import compare_command
from halfbyte.distributed.option import ray_option
from halfbyte.errors import EXIT_INTERRUPTED, CheckFailedError, HalfbyteError, MachineError
from halfbyte.machine.lack_of_memory import lack_of_memory
from halfbyte.machine.own_python import distrust_folder
from halfbyte.prune.command import prune_command
from halfbyte.publish.card.command import card_command
from halfbyte.publish.report.command import report_command
from halfbyte.publish.upload.command import publish_command
from halfbyte.publish.verify_command import verify_command
from halfbyte.recipe.options import (
    chosen_plan,
    chosen_recipe,
    recipe_options,
    recipe_or_plan_options,
    refuse_data_beside_statistics,
)
from halfbyte.release.command import release_command
from halfbyte.serve.command import serve_command
from halfbyte.source.remote.address import is_remote
from halfbyte.terminal.console import Column, Output
from halfbyte.terminal.device_options import CPU, chosen_device_memory, device_options
from halfbyte.terminal.libraries import tame_libraries
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.remote_options import (
    cache_folder_option,
    cache_options,
    chosen_cache,
    chosen_push,
    chosen_source,
    push_options,
)
from halfbyte.terminal.usage import Group, usage_errors
from halfbyte.validate.bench.command import bench_command
from halfbyte.validate.command import loops_command
from halfbyte.validate.evaluate.command import eval_command
from halfbyte.validate.probe.command import probe_command

if TYPE_CHECKING:
    from halfbyte.numerics.formats import Format
    from halfbyte.plan.manifest import Plan
    from halfbyte.serve.fit import Fit

EXIT_BUG = 70  # EX_SOFTWARE; Python's own 1 would read as "a check failed"
EXIT_BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended
WATCH_SECONDS = 2
COMPLETE_VARIABLE = "_HALFBYTE_COMPLETE"


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Turn trillion-parameter MoE checkpoints into 4-bit ones, and prove what was written."""


@cli.group()
def recipes() -> None:
    """Show the recipes that come with halfbyte."""


@recipes.command("list")
@click.pass_obj
def recipes_list(out: Output) -> None:
    """List the recipes, one line each."""
    from halfbyte.recipe.load import load_recipe, recipe_names

    rows = [{"name": name, "description": load_recipe(name).description} for name in recipe_names()]
    out.table(rows, [Column("name", "recipe"), Column("description", "what it makes")])
    out.hint(f"halfbyte recipes show {rows[0]['name'] if rows else 'FILE'}")


@recipes.command("show")
@click.argument("name")
@click.pass_obj
def recipes_show(out: Output, name: str) -> None:
    """Print the recipe NAME (or a file) as it is written, with its comments; as JSON, as it is understood."""
    from halfbyte.recipe.load import load_recipe, recipe_text

    understood = load_recipe(name).as_dict()  # first: a recipe that cannot be read is not shown
    out.text(recipe_text(name), understood)
    out.hint(f"halfbyte recipes show {name} > my-recipe.yaml, and change what you like")


@cli.command()
@click.pass_obj
def formats(out: Output) -> None:
    """List the number formats that halfbyte reads and writes."""
    from halfbyte.numerics.formats import FORMATS

    columns = [
        Column("name", "format"),
        Column("bits_per_weight", "bits/weight", number=True),
        Column("block", "block", number=True),
        Column("decodes", "decode"),
        Column("encodes", "encode"),
        Column("title", "what it is"),
        Column("used_by", "used by"),
    ]
    out.table([format_row(row) for row in FORMATS.values()], columns)
    out.hint("halfbyte doctor, to see which of them this machine computes with")


def format_row(row: Format) -> dict[str, Any]:
    """Return what the table and the JSON say of a format."""
    return {
        "name": row.name,
        "title": row.title,
        "bits_per_weight": row.bits_per_weight,
        "block": row.block or None,  # none: one scale for the whole row
        "decodes": row.decodes,
        "encodes": list(row.encodes),
        "tensors": [{"suffix": part.suffix, "dtype": part.dtype} for part in row.tensors],
        "used_by": row.used_by,
    }


@cli.command("inspect")
@click.argument("source", metavar="[SRC]", required=False)
@click.option("--example", metavar="NAME", help="A published checkpoint by heart, without its files: kimi-k2.6.")
@click.option("--tensors", "pattern", metavar="GLOB", help="List the tensors whose names match, one a line.")
@cache_folder_option
@click.pass_obj
def inspect_command(
    out: Output, source: str | None, example: str | None, pattern: str | None, cache_dir: Path | None
) -> None:
    """Show what a checkpoint holds, from its headers alone.

    SRC is a folder or an address: hf://organisation/name@revision, s3://bucket/folder.
    """
    from halfbyte.inspect import inspection
    from halfbyte.inspect import text as inspection_text

    start = time.perf_counter()
    checkpoint = inspection.open_source(source, example, chosen_cache({"cache_dir": cache_dir}))
    if pattern is not None:
        return inspection_text.show_tensors(out, inspection.matching_tensors(checkpoint, pattern))
    found = inspection.inspect(checkpoint)
    inspection_text.show(out, found)
    read = "nothing" if example else f"{found.header_nbytes / 1e6:,.1f} MB of headers"
    out.note(f"{read} read, {time.perf_counter() - start:.1f} s")
    return out.hint(f"halfbyte recipes show {found.recipes[0].recipe}")


@cli.command("plan")
@click.argument("source", metavar="[SRC]", required=False)
@recipe_options
@click.option("--example", metavar="NAME", help="Instead of SRC: a published checkpoint that halfbyte knows by heart.")
@click.option("-o", "--out", "file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the plan as JSON, as `quantize --plan` reads it.")  # fmt: skip
@click.option("--diff", "other", type=click.Path(path_type=Path), help="Say how it differs from a plan.json.")
@click.option("--fit", "gpus", metavar="NxGPU", help="Say whether it fits, as in 8xB200. Exit code 1 if not.")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Measure writing in this folder too.")
@click.option("--no-measure", is_flag=True, help="Do not measure this machine (up to 2 s); no time is estimated then.")
@cache_folder_option
@device_options
@click.pass_obj
def plan_command(out: Output, source: str | None, file: Path | None, other: Path | None, **choice: Any) -> None:
    """Show what `quantize` would do to the checkpoint SRC: fates, sizes, shards, time.

    Reads headers only, and 128 MB of weights to measure the disk.
    """
    from halfbyte import show
    from halfbyte.inspect.inspection import open_source
    from halfbyte.machine.collector import paused
    from halfbyte.pipeline import plan
    from halfbyte.plan.manifest import refuse_nothing_to_prune

    limit = chosen_device_memory(choice)
    with paused():
        recipe = chosen_recipe(choice)
        fit = _fitter(choice["gpus"])
        made = plan(open_source(source, choice["example"], chosen_cache(choice)), recipe, layers=choice["layers"])
        refuse_nothing_to_prune(made)
        seconds = device = None
        if choice["device"] != CPU:
            from halfbyte.plan.device import on_device
            from halfbyte.plan.measure import measure_disk
            from halfbyte.prune.decide import not_on_a_gpu

            if recipe.prune is not None:
                raise not_on_a_gpu()
            disk = None if choice["no_measure"] else measure_disk(made, choice["folder"])
            device = on_device(made, disk, limit, choice["device"].count(",") + 1)
            seconds = None if choice["no_measure"] else device.time
        elif not choice["no_measure"]:
            from halfbyte.plan.estimate import estimate
            from halfbyte.plan.measure import measure

            seconds = estimate(made, measure(made, choice["folder"]))
        fitted = fit(made) if fit else None
        show.plan(out, made, file, other, fit=fitted, time=seconds, device=device)
    if fitted is not None and not fitted.fits:
        raise CheckFailedError(f"it does not fit {fitted.gpus}: {fitted.problem}", where="--fit", fix=fitted.advice)
    decided = f"--plan {file}" if file is not None else f"-r {choice['recipe']}"
    decided += "".join(
        f" --{key.replace('_', '-')} {choice[key]}" for key in ("device", "device_memory") if device and choice[key]
    )
    out.hint(f"halfbyte quantize {source or 'SRC'} OUT {decided}")


def _fitter(gpus: str | None) -> Callable[[Plan], Fit] | None:
    """Return what tells whether a plan fits; a GPU that nobody knows is an error before any work."""
    if gpus is None:
        return None
    from halfbyte.serve.fit import fit, parse_gpus
    from halfbyte.serve.needs import needs

    known = parse_gpus(gpus, where="--fit")
    return lambda plan: fit(needs(plan), known)


@cli.command("quantize")
@click.argument("source")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@recipe_or_plan_options
@click.option("--stats", type=click.Path(path_type=Path), help="Take statistics of `halfbyte calibrate`; run no data.")
@device_options
@ray_option
@click.option("--threads", type=click.IntRange(1), help="Threads that read, compute and write.  [default: cores + 2]")
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="First compare the source's shards with their known SHA-256.")  # fmt: skip
@cache_options
@push_options
@click.pass_obj
def quantize_command(out: Output, source: str, out_folder: Path, threads: int | None, **choice: Any) -> None:
    """Make the checkpoint OUT from SOURCE as the recipe or the plan says. Run the same command again to resume.

    SOURCE is a folder, or an address whose shards are fetched as they are needed: hf://organisation/name@revision,
    s3://bucket/folder.
    """
    from halfbyte import show
    from halfbyte.folders import FOLDER
    from halfbyte.pipeline import quantize

    refuse_data_beside_statistics(choice)
    planned = chosen_plan(choice)
    recipe = planned.recipe if planned else chosen_recipe(choice)
    with out.progress() as bar:
        result = quantize(
            chosen_source(source, out_folder / FOLDER, choice),
            out_folder,
            recipe,
            layers=choice["layers"] or (planned.layers if planned else None),
            planned=planned,
            stats=choice["stats"],
            threads=threads,
            device=choice["device"],
            device_memory=chosen_device_memory(choice),
            ray=choice["ray"],
            verify_source=choice["verify"],
            push=chosen_push(out_folder, choice),
            progress=show.steps(bar),
        )
    show.result(out, result)
    out.hint(f"halfbyte audit {pasted(out_folder)}" + ("" if is_remote(source) else f" --against {pasted(source)}"))


cli.add_command(calibrate_command)
cli.add_command(prune_command)


@cli.command("status")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Look again every two seconds until the run is whole.")
@click.pass_obj
def status_command(out: Output, out_folder: Path, watch: bool) -> None:
    """Show how far a run is, from any terminal."""
    from halfbyte import show
    from halfbyte.status import read_status

    while True:
        status = read_status(out_folder)
        show.status(out, status)
        if not watch or status.whole:
            break
        time.sleep(WATCH_SECONDS)
    out.hint(f"halfbyte audit {pasted(out_folder)}" if status.whole else "run the same command again to go on")


cli.add_command(audit_command)


cli.add_command(diff_command)
cli.add_command(compare_command)
cli.add_command(loops_command)
cli.add_command(serve_command)
cli.add_command(probe_command)
cli.add_command(eval_command)
cli.add_command(bench_command)
cli.add_command(card_command)
cli.add_command(report_command)
cli.add_command(verify_command)
cli.add_command(publish_command)
cli.add_command(release_command)


@cli.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="The folder whose disk is measured.",
)
@click.option("--no-disk", is_flag=True, help="Do not measure the disk.")
@click.pass_obj
def doctor(out: Output, folder: Path, no_disk: bool) -> None:
    """Show what this machine has, and what that means for you."""
    from halfbyte.machine.advice import advise
    from halfbyte.machine.doctor import examine

    if not no_disk:
        out.note(f"measuring the disk under {folder} with a nameless file of 256 MiB ...")
    machine = examine(None if no_disk else folder)
    advice = advise(machine)
    out.facts({**machine.as_dict(), "advice": [item.as_dict() for item in advice]}, machine.lines())
    out.verdicts([(item.level, item.text) for item in advice])
    blocking = [item for item in advice if item.level == "bad"]
    if blocking:
        raise MachineError(blocking[0].text, where="halfbyte doctor", fix=blocking[0].fix)
    out.hint("halfbyte recipes list")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "halfbyte", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE]))
    distrust_folder()
    tame_libraries()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _write_nowhere(stream: TextIO) -> None:
    """Send the rest of a stream nowhere: Python flushes it once more when it ends, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed_streams() -> None:
    """Give a closed stdout or stderr somewhere to write to (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def run(argv: Sequence[str]) -> int:
    """Run one command; every way in which it can end becomes an exit code here."""
    out = Output()
    try:
        with usage_errors(out), cli.make_context("halfbyte", list(argv), obj=out) as ctx:
            cli.invoke(ctx)
        sys.stdout.flush()
    except HalfbyteError as error:
        out.error(error)
        return error.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, click.Abort):
        out.error(HalfbyteError("interrupted"))
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _write_nowhere(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:  # a full disk under stdout, a folder that went away
        what, where = f"cannot go on: {error.strerror or error}", str(error.filename or "output")
        _write_nowhere(sys.stdout)
        out.error(lack_of_memory(error) or MachineError(what, where=where, fix="check the disk and the folder"))
        return MachineError.exit_code
    except Exception as error:
        if (lack := lack_of_memory(error)) is not None:
            out.error(lack)
            return lack.exit_code
        out.trace(error)
        out.error(HalfbyteError("this is a bug in halfbyte", fix="report the traceback above and `halfbyte --version`"))
        return EXIT_BUG
    return 0
