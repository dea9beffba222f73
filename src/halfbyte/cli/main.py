"""The command line. Each command parses its arguments, calls one function and prints the result.

Commands import heavy modules when they run, so `halfbyte --help` is instant.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from halfbyte.checkpoint.remote.address import is_remote
from halfbyte.cli.audit import audit_command
from halfbyte.cli.bench import bench_command
from halfbyte.cli.calibrate import calibrate_command
from halfbyte.cli.card import card_command
from halfbyte.cli.compare import compare_command
from halfbyte.cli.device_options import chosen_device_memory, device_options
from halfbyte.cli.diff import diff_command
from halfbyte.cli.eval import eval_command
from halfbyte.cli.loops import loops_command
from halfbyte.cli.named_values import EXAMPLE, GPUS, RECIPE
from halfbyte.cli.probe import probe_command
from halfbyte.cli.prune import prune_command
from halfbyte.cli.publish import publish_command
from halfbyte.cli.ray_option import ray_option
from halfbyte.cli.recipe_options import (
    chosen_plan,
    chosen_recipe,
    recipe_options,
    recipe_or_plan_options,
    refuse_data_beside_statistics,
)
from halfbyte.cli.release import release_command
from halfbyte.cli.remote_options import (
    cache_folder_option,
    cache_options,
    chosen_cache,
    chosen_push,
    chosen_source,
    push_options,
)
from halfbyte.cli.report import report_command
from halfbyte.cli.serve import serve_command
from halfbyte.cli.typed_command import typed_command
from halfbyte.cli.usage import Group, usage_errors
from halfbyte.cli.verify import verify_command
from halfbyte.errors import EXIT_INTERRUPTED, CheckFailedError, HalfbyteError, MachineError
from halfbyte.machine.devices import CPU
from halfbyte.machine.os_errors import lack_of_memory, os_error
from halfbyte.machine.python_path import distrust_folder
from halfbyte.ui.console import Column, Output
from halfbyte.ui.escape import escape_library_output, pasted

if TYPE_CHECKING:
    from halfbyte.formats.format import Format
    from halfbyte.plan.manifest import Plan
    from halfbyte.serve.launch import PlannedFit

EXIT_BUG = 70  # EX_SOFTWARE; 1 means "a check failed"
EXIT_BROKEN_PIPE = 141  # the shell's exit code for SIGPIPE
OWN_PLAN = "halfbyte/plan.json"  # in every halfbyte output; repeated here because output_folder imports NumPy
WATCH_SECONDS = 2
COMPLETE_VARIABLE = "_HALFBYTE_COMPLETE"


SECTIONS = {
    "Inspect": ("doctor", "recipes", "formats", "inspect", "plan"),
    "Make": ("calibrate", "prune", "quantize", "status"),
    "Check": ("audit", "verify", "diff", "compare", "loops"),
    "Serve and measure": ("serve", "probe", "eval", "bench"),
    "Publish": ("card", "report", "publish", "release"),
}


@click.group(
    cls=Group,
    sections=SECTIONS,
    example="halfbyte quantize hf://moonshotai/Kimi-K2.6 OUT -r kimi-k2.6-nvfp4-nvidia",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def cli() -> None:
    """Convert trillion-parameter MoE checkpoints to 4 bits and verify the result."""


@cli.group(example="halfbyte recipes show kimi-k2.6-nvfp4-nvidia")
def recipes() -> None:
    """List and show the recipes that come with halfbyte."""


@recipes.command("list", example="halfbyte recipes list")
@click.pass_obj
def recipes_list(out: Output) -> None:
    """List the recipes, one per line."""
    from halfbyte.recipe.load import load_recipe, recipe_names

    rows = [{"name": name, "description": load_recipe(name).description} for name in recipe_names()]
    out.table(rows, [Column("name", "recipe"), Column("description", "description")])
    out.hint(f"halfbyte recipes show {rows[0]['name'] if rows else 'FILE'}")


@recipes.command("show", example="halfbyte recipes show kimi-k2.6-nvfp4-nvidia > my-recipe.yaml")
@click.argument("name", type=RECIPE)
@click.pass_obj
def recipes_show(out: Output, name: str) -> None:
    """Print the recipe NAME, a name or a file. With --json, print the parsed recipe."""
    from halfbyte.recipe.load import load_recipe, recipe_text

    parsed = load_recipe(name).as_dict()  # first: an invalid recipe is not printed
    out.text(recipe_text(name), parsed)
    out.hint(f"halfbyte recipes show {name} > my-recipe.yaml, then edit the file")


@cli.command(example="halfbyte formats --json")
@click.pass_obj
def formats(out: Output) -> None:
    """List the number formats that halfbyte reads and writes."""
    from halfbyte.formats.registry import FORMATS

    columns = [
        Column("name", "format"),
        Column("bits_per_weight", "bits/weight", number=True),
        Column("block", "block", number=True),
        Column("decodes", "decode"),
        Column("encodes", "encode"),
        Column("title", "description"),
        Column("used_by", "used by"),
    ]
    out.table([format_row(row) for row in FORMATS.values()], columns)
    out.hint("halfbyte doctor, to see which formats this machine computes in")


def format_row(row: Format) -> dict[str, Any]:
    """Return a row of the format table and its JSON."""
    return {
        "name": row.name,
        "title": row.title,
        "bits_per_weight": row.bits_per_weight,
        "block": row.block or None,  # None: one scale per row
        "decodes": row.decodes,
        "encodes": list(row.encodes),
        "tensors": [{"suffix": part.suffix, "dtype": part.dtype} for part in row.tensors],
        "used_by": row.used_by,
    }


@cli.command("inspect", example="halfbyte inspect hf://moonshotai/Kimi-K2.6")
@click.argument("source", metavar="[SRC]", required=False)
@click.option("--example", metavar="NAME", type=EXAMPLE, help="Instead of SRC: a built-in example, kimi-k2.6.")
@click.option("--tensors", "pattern", metavar="GLOB", help="List the tensors whose names match, one per line.")
@cache_folder_option
@click.pass_obj
def inspect_command(
    out: Output, source: str | None, example: str | None, pattern: str | None, cache_dir: Path | None
) -> None:
    """Show the contents of a checkpoint. Reads only headers.

    SRC is a folder or an address: hf://organization/name@revision, s3://bucket/folder.
    """
    from halfbyte.cli import inspect_output as inspection_text
    from halfbyte.inspect import inspection

    start = time.perf_counter()
    checkpoint = inspection.open_source(source, example, chosen_cache({"cache_dir": cache_dir}))
    if pattern is not None:
        return inspection_text.show_tensors(out, inspection.matching_tensors(checkpoint, pattern))
    report = inspection.inspect(checkpoint)
    inspection_text.show(out, report)
    read = "nothing" if example else f"{report.header_nbytes / 1e6:,.1f} MB of headers"
    out.note(f"read {read} in {time.perf_counter() - start:.1f} s")
    if source is not None and (checkpoint.root / OWN_PLAN).is_file():
        return out.hint(f"halfbyte audit {pasted(source)} --against SRC")
    recipe = inspection.recommended(report)
    source_words = f"--example {example}" if source is None else pasted(source)
    return out.hint(f"halfbyte plan {source_words} -r {recipe}" if recipe else "halfbyte recipes list")


@cli.command("plan", example="halfbyte plan --example kimi-k2.6 -r kimi-k2.6-nvfp4-nvidia --fit 8xB200")
@click.argument("source", metavar="[SRC]", required=False)
@recipe_options
@click.option("--example", metavar="NAME", type=EXAMPLE, help="Instead of SRC: a built-in example, kimi-k2.6.")
@click.option("-o", "--out", "file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the plan as JSON, for `quantize --plan`.")  # fmt: skip
@click.option("--diff", "other", type=click.Path(path_type=Path), help="Show the differences from a plan.json.")
@click.option(
    "--fit",
    "gpus",
    metavar="NxGPU",
    type=GPUS,
    help="Check that the output fits these GPUs, e.g. 8xB200. Exit code 1 if not.",
)
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Also measure the write speed of this folder.")
@click.option("--no-measure", is_flag=True, help="Do not measure this machine (up to 2 s) or estimate the time.")
@cache_folder_option
@device_options
@click.pass_obj
def plan_command(out: Output, source: str | None, file: Path | None, other: Path | None, **choice: Any) -> None:
    """Show what `quantize` would do to SRC: actions, sizes, time.

    Reads the headers, plus 128 MB of weights to measure the disk.
    """
    from halfbyte.checkpoint.output_folder import refuse_nested
    from halfbyte.cli import pipeline_output as show
    from halfbyte.engine.backends.support import Request, Resources, refuse_unsupported
    from halfbyte.engine.pipeline import plan
    from halfbyte.inspect.inspection import open_source
    from halfbyte.machine.process import gc_paused
    from halfbyte.plan.manifest import refuse_nothing_to_prune

    if file is not None and source is not None and not is_remote(source):
        refuse_nested(Path(source), file)
    limit = chosen_device_memory(choice)
    with gc_paused():
        recipe = chosen_recipe(choice)
        resources = Resources(device=choice["device"], device_memory=limit)
        refuse_unsupported(Request(recipe=recipe, resources=resources, measures=recipe.calibrate is not None))
        fit = _fitter(choice["gpus"])
        planned = plan(open_source(source, choice["example"], chosen_cache(choice)), recipe, layers=choice["layers"])
        refuse_nothing_to_prune(planned)
        seconds = device = None
        if choice["device"] != CPU:
            from halfbyte.engine.device_plan import on_device
            from halfbyte.plan.measure import measure_disk

            disk = None if choice["no_measure"] else measure_disk(planned, choice["folder"])
            device = on_device(planned, disk, limit, choice["device"].count(",") + 1)
            seconds = None if choice["no_measure"] else device.time
        elif not choice["no_measure"]:
            from halfbyte.plan.estimate import estimate
            from halfbyte.plan.measure import measure

            seconds = estimate(planned, measure(planned, choice["folder"]))
        fitted = fit(planned) if fit else None
        show.plan(out, planned, file, other, fit=fitted, time=seconds, device=device)
    if fitted is not None and fitted.problem is not None:
        what = f"the output does not fit on {fitted.gpus}: {fitted.problem}" if fitted.fit else fitted.problem
        raise CheckFailedError(what, where="--fit", fix=fitted.advice)
    options = f"--plan {file}" if file is not None else f"-r {choice['recipe']}"
    options += "".join(
        f" --{key.replace('_', '-')} {choice[key]}" for key in ("device", "device_memory") if device and choice[key]
    )
    out.hint(f"halfbyte quantize {source or 'SRC'} OUT {options}")


def _fitter(gpus: str | None) -> Callable[[Plan], PlannedFit] | None:
    """Return the function that fits a plan to GPUs. Raise on an unknown GPU before any work."""
    if gpus is None:
        return None
    from halfbyte.serve.gpus import parse_gpus
    from halfbyte.serve.launch import planned_fit

    known = parse_gpus(gpus, where="--fit")
    return lambda plan: planned_fit(plan, known)


@cli.command("quantize", example="halfbyte quantize Kimi-K2.6 OUT -r kimi-k2.6-nvfp4-nvidia")
@click.argument("source")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@recipe_or_plan_options
@click.option("--stats", type=click.Path(path_type=Path), help="Use statistics from `halfbyte calibrate`.")
@device_options
@ray_option
@click.option(
    "--threads", type=click.IntRange(1), help="Threads for reading, computing and writing.  [default: cores + 2]"
)
@click.option("--verify/--no-verify", default=True, show_default=True,
              help="First compare the source's shards with their known SHA-256.")  # fmt: skip
@cache_options
@push_options
@click.pass_obj
def quantize_command(out: Output, source: str, out_folder: Path, threads: int | None, **choice: Any) -> None:
    """Convert the checkpoint SOURCE to OUT with a recipe or a plan. Run the same command again to resume.

    SOURCE is a folder, or an address whose shards are downloaded as needed: hf://organization/name@revision,
    s3://bucket/folder.
    """
    from halfbyte.checkpoint.output_folder import FOLDER

    refuse_data_beside_statistics(choice)
    with out.progress("reading the headers of the source") as bar:
        from halfbyte.cli import pipeline_output as show
        from halfbyte.engine.pipeline import quantize

        planned = chosen_plan(choice)
        recipe = planned.recipe if planned else chosen_recipe(choice)
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
            begins=bar.doing,
            command=typed_command({"source": "SRC", "out_folder": "OUT"}),
        )
    show.result(out, result)
    out.hint(f"halfbyte audit {pasted(out_folder)}" + ("" if is_remote(source) else f" --against {pasted(source)}"))


@cli.command("status", example="halfbyte status OUT --watch")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--watch", is_flag=True, help="Refresh every two seconds until the run is complete.")
@click.pass_obj
def status_command(out: Output, out_folder: Path, watch: bool) -> None:
    """Show the progress of a run. Works from any terminal."""
    from halfbyte.cli import pipeline_output as show
    from halfbyte.release.status import read_status

    while True:
        status = read_status(out_folder)
        show.status(out, status)
        if not watch or status.whole:
            break
        time.sleep(WATCH_SECONDS)
    unfinished = not status.whole or status.verdict == "UNFINISHED"
    then = f"publish {pasted(out_folder)} REPO" if status.verdict == "ACCEPT" else f"audit {pasted(out_folder)}"
    out.hint("run the same command again to resume" if unfinished else f"halfbyte {then}")


cli.add_command(calibrate_command)
cli.add_command(prune_command)
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


@cli.command(example="halfbyte doctor --dir .")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Measure the disk of this folder.",
)
@click.option("--no-disk", is_flag=True, help="Do not measure the disk.")
@click.pass_obj
def doctor(out: Output, folder: Path, no_disk: bool) -> None:
    """Check this machine: CPU, memory, disk, GPUs, libraries."""
    from halfbyte.doctor.advice import advise
    from halfbyte.doctor.facts import examine

    if not no_disk:
        out.note(f"measuring the disk of {folder} with a temporary file of 256 MiB ...")
    machine = examine(None if no_disk else folder)
    advice = advise(machine)
    out.facts({**machine.as_dict(), "advice": [item.as_dict() for item in advice]}, machine.lines())
    out.verdicts([(item.level, item.text) for item in advice])
    blocking = [item for item in advice if item.level == "bad"]
    if blocking:
        raise MachineError(blocking[0].text, where="halfbyte doctor", fix=blocking[0].fix)
    out.hint("halfbyte recipes list")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "halfbyte", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE]))
    distrust_folder()
    escape_library_output()
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _discard_output(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that Python's flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_closed_streams() -> None:
    """Replace a closed stdout or stderr (`>&-`) by /dev/null."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code."""
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
        _discard_output(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as error:  # e.g. stdout on a full disk, a removed folder
        _discard_output(sys.stdout)
        out.error(os_error(error))
        return MachineError.exit_code
    except Exception as error:
        if (lack := lack_of_memory(error)) is not None:
            out.error(lack)
            return lack.exit_code
        out.trace(error)
        out.error(HalfbyteError("this is a bug in halfbyte", fix="report the traceback above and `halfbyte --version`"))
        return EXIT_BUG
    return 0
