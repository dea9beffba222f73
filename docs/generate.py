"""The parts of the documentation that are written by the program itself. `make docs` puts them into place with cog.

A test compares them with the files, so a changed option, help text or format cannot leave stale words behind.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from halfbyte.cli import cli, run
from halfbyte.errors import RecipeError
from halfbyte.numerics.formats import FORMATS, Format
from halfbyte.recipe.load import load_recipe, recipe_text
from halfbyte.serve.known_errors import known_errors
from halfbyte.terminal.console import Output
from halfbyte.validate.probe.causes import causes
from halfbyte.validate.statistics.noninferiority import items_needed

HELP_WIDTH = 100
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield a context for a command and everything below it, in the order of the help."""
    ctx = click.Context(command, info_name=name, parent=parent, terminal_width=HELP_WIDTH, **command.context_settings)
    yield ctx
    if isinstance(command, click.Group):
        for child in command.list_commands(ctx):
            yield from walk(command.commands[child], child, ctx)


def cli_reference() -> str:
    """The help of every command, word for word."""
    return "\n".join(f"## {ctx.command_path}\n\n```text\n{ctx.get_help()}\n```\n" for ctx in walk(cli, "halfbyte"))


def command_table() -> str:
    """One line a command."""
    leaves = [ctx for ctx in walk(cli, "halfbyte") if not isinstance(ctx.command, click.Group)]
    return _markdown(("command", "does"), [(f"`{_usage(ctx)}`", ctx.command.get_short_help_str(200)) for ctx in leaves])


def format_table() -> str:
    """One line a format, and the tensors that carry it."""
    heading = ("format", "what it is", "bits/weight", "block", "encode methods", "stored tensors", "used by")
    return _markdown(heading, [_format_cells(row) for row in FORMATS.values()])


def format_summary() -> str:
    """The format table without blocks and tensors."""
    heading = ("format", "what it is", "bits/weight", "encode methods", "used by")
    rows = [_format_cells(row) for row in FORMATS.values()]
    return _markdown(heading, [(*row[:3], row[4], row[6]) for row in rows])


def _format_cells(row: Format) -> tuple[str, ...]:
    tensors = "<br>".join(f"`{part.suffix}` {part.dtype}" for part in row.tensors)
    encodes = ", ".join(f"`{name}`" for name in row.encodes) or "read only"
    block = str(row.block) if row.block else "row"
    return (f"`{row.name}`", row.title, f"{row.bits_per_weight:.2f}", block, encodes, tensors, row.used_by)


def speed_table() -> str:
    """The newest benchmark of the number formats, as its own file has it."""
    newest = max(RESULTS.glob("numerics_*.json"), key=lambda path: path.stem[-6:])
    result = json.loads(newest.read_text())
    shape, by_cores = next(iter(result["shapes"].items()))
    one, every = by_cores["1"], by_cores["all"]
    peers = [name for name in one if name != "halfbyte"]
    rows: list[tuple[str, ...]] = []
    for name, rate in one["halfbyte"].items():
        theirs = [f"{one[peer][name] / 1e9:.4f}" if name in one[peer] else "" for peer in peers]
        rows.append((name, f"{rate / 1e9:.2f}", f"{every['halfbyte'][name] / 1e9:.2f}", *theirs))
    copy = f"memory copy | {result['memory_copy']['1'] / 1e9:.1f} | {result['memory_copy']['all'] / 1e9:.1f}"
    rows.append((*copy.split(" | "), *[""] * len(peers)))
    words = (
        f"GB/s of the BF16 side (2 bytes a weight) for a {shape} expert matrix, {result['date']}, {result['cpu']}, "
        f"`{result['command']}`; all of it is in [benchmarks/results](../benchmarks/results/{newest.stem}.md)."
    )
    heading = ("operation", "1 core", f"{result['cores']} cores", *[f"{peer}, 1 core" for peer in peers])
    return f"{words}\n\n{_markdown(heading, rows)}"


def engine_table() -> str:
    """The newest benchmark of the engine, as its own file has it, without its title."""
    newest = max(RESULTS.glob("engine_*.md"), key=lambda path: path.stem[-6:])
    title, *lines = newest.read_text().rstrip().splitlines()
    link = f"[benchmarks/results](../benchmarks/results/{newest.name})"
    return "\n".join([f"{title.removeprefix('# ')} ({link}):", *lines])


def fault_table() -> str:
    """The faults that tests inject, counted by a run of them, as its own file has it."""
    newest = max(RESULTS.glob("fault_injection_*.json"), key=lambda path: path.stem[-6:])
    found = json.loads(newest.read_text())
    rows = [(row["fault"], f"{row['injections']:,}", f"{row['survived']:,}") for row in found["faults"]]
    total = [sum(row[key] for row in found["faults"]) for key in ("injections", "survived")]
    rows.append(("**all**", *(f"**{count:,}**" for count in total)))
    runs = [
        f"{run['date'][:10]}, {run['machine']['processor']}, {run['machine']['cores']} cores with a load of "
        f"{run['machine']['load'][0]:.0f}, {' and '.join(run['files']) or 'all'}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in run["tests"].items())
        + f", {run['seconds']:,.0f} s"
        for run in found["runs"]
    ]
    words = f"`python tests/faults/table.py benchmarks/results/{newest.stem}`: {'; '.join(runs)}."
    return f"{words}\n\n{_markdown(('fault', 'injections', 'survived'), rows)}"


def load_table() -> str:
    """What half a million tensors and large reports cost, as the newest results have it."""
    headers, report = (
        json.loads(max(RESULTS.glob(f"{name}_*.json"), key=lambda path: path.stem[-6:]).read_text())
        for name in ("headers", "report")
    )
    rows: list[tuple[str, ...]] = []
    for row in headers["rows"]:
        rows.append((f"`{row['command']}` of {row['tensors']:,} tensors", *_cost(row), ""))
    for row in report["rows"]:
        opens = f"opens in {min(row['load_seconds']):.2f} to {max(row['load_seconds']):.2f} s"
        name = f"`report` of {row['layers']} x {row['experts']} experts"
        rows.append((name, *_cost(row), f"{row['nbytes'] / 1e3:,.0f} kB, {opens}"))
    return _markdown(("what", "seconds of a core", "peak", ""), rows)


def _cost(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['core_seconds']:.1f}", f"{row['peak_mb']:,.0f} MB"


# Rows of the pruning study that docs/pruning.md shows; the others are in the results.
PRUNING_METHODS = ("reap", "reap_public", "ean", "frequency")
PRUNING_SHARES = (75, 62, 50, 37)
PRUNING_TEXTS = {
    "mixed": "mixed",
    "even": "every domain alike",
    "max_min": "mixed, `max_min`",
    "task": "one domain alone",
}


def pruning_table() -> str:
    """The newest study of pruning: REAP on each choice of text, the other criteria on mixed text."""
    newest = max(RESULTS.glob("pruning_*.json"), key=lambda path: path.stem[-6:])
    builds = {(one["method"], one["calibration"], one["keep"]): one for one in json.loads(newest.read_text())["builds"]
              if not one["tuned"] and "restored" not in one["name"]}  # fmt: skip
    kinds = [("reap", text) for text in PRUNING_TEXTS] + [(method, "mixed") for method in PRUNING_METHODS[1:]]
    rows: list[tuple[str, ...]] = []
    for method, text in kinds:
        found = [builds[method, text, share] for share in PRUNING_SHARES]
        rows.append((f"`{method}`", PRUNING_TEXTS[text], *map(_pruned, found)))
    return _markdown(("chosen by", "on", *[f"{share} % kept" for share in PRUNING_SHARES]), rows)


def _pruned(build: Mapping[str, Any]) -> str:
    domains, loops = build["domains"].values(), build["loops"]
    right = sum(one["right"] for one in domains) / sum(one["items"] for one in domains)
    return f"{100 * right:.1f} / {build['kl']['all']['value']:.3f} / {loops['loops']}+{loops['short']}"


FLIPS, MARGINS = (0.01, 0.02, 0.03, 0.05, 0.1), (0.005, 0.01, 0.03)


def items_table() -> str:
    """How many items ACCEPT needs, by the share of items on which the two disagree and by the margin."""
    heading = ("items that flip", *[f"margin {100 * margin:g} pp" for margin in MARGINS])
    rows = [(f"{100 * flips:g} %", *[f"{items_needed(flips, margin):,}" for margin in MARGINS]) for flips in FLIPS]
    return _markdown(heading, rows)


def engine_errors() -> str:
    """What is known of engines' error lines, in the order in which it is looked up."""
    rows = [(f"`{_cell(one.pattern.pattern)}`", _cell(one.cause), _cell(one.fix)) for one in known_errors()]
    return _markdown(("the engine writes", "cause", "try"), rows)


def probe_causes() -> str:
    """What is known to cause a failing probe."""
    rows = [(_cell(one.sign), _cell(one.known), _cell(one.fix)) for one in causes().values()]
    return _markdown(("you see", "known to cause it", "try"), rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def inspect_example() -> str:
    """What `halfbyte inspect` says of Kimi-K2.6."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        assert run(["inspect", "--example", "kimi-k2.6"]) == 0
    return shown.getvalue().rstrip()


def recipe_table() -> str:
    """The recipes that come with halfbyte, and what each would make of Kimi-K2.6."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        assert run(["inspect", "--example", "kimi-k2.6", "--json"]) == 0
    found = json.loads(shown.getvalue())
    rows = [
        (f"[`{one['recipe']}`](src/halfbyte/recipes/{one['recipe']}.yaml)", load_recipe(one["recipe"]).description,
         f"{one['nbytes'] / 1e9:,.1f} GB")
        for one in found["recipes"]
    ]  # fmt: skip
    return _markdown(("recipe", "what comes out", f"Kimi-K2.6, {found['nbytes'] / 1e9:,.1f} GB, becomes"), rows)


# Times are measured, and so differ from machine to machine.
PLAN_EXAMPLE = "--example kimi-k2.6 -r kimi-k2.6-mxfp4-wafer --fit 8xMI355X --no-measure"


def plan_example() -> str:
    """What `halfbyte plan` says of Kimi-K2.6 and the MXFP4 recipe."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        assert run(f"plan {PLAN_EXAMPLE}".split()) == 0
    return re.sub(r"at most .* for jobs", "at most ... for jobs", shown.getvalue()).rstrip()  # depends on the cores


def run_example() -> str:
    """What `quantize`, `quantize` again and `audit` say of a checkpoint with Kimi-K2.6's names and small matrices."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from synth import tiny

    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        source, out = f"{folder}/tiny-k2.6", f"{folder}/tiny-mxfp4"
        tiny(Path(source))
        for command in (f"quantize {source} {out} -r kimi-k2.6-mxfp4-wafer", f"audit {out} --against {source}"):
            with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
                assert run(["-q", *command.split()]) == 0
            timeless = re.sub(r"[0-9.]+ s\b", "... s", shown.getvalue().rstrip())
            lines.append(f"$ halfbyte {command}\n{timeless}".replace(f"{folder}/", ""))
    return "\n\n".join(lines)


def recipe_error() -> str:
    """What halfbyte answers to a recipe with a typing error."""
    text = recipe_text("kimi-k2.6-nvfp4-wafer").replace("\n  format:", "\n  fromat:")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as shown:
        recipe = Path(folder) / "my-recipe.yaml"
        recipe.write_text(text)
        try:
            load_recipe(recipe)
        except RecipeError as error:
            Output().error(error)
    return shown.getvalue().replace(f"{folder}/", "").rstrip()


def _usage(ctx: click.Context) -> str:
    arguments = [param.make_metavar(ctx) for param in ctx.command.params if isinstance(param, click.Argument)]
    return " ".join([ctx.command_path, *arguments])


def _markdown(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
