"""Generators for parts of the documentation; `make docs` inserts them with cog.

A test checks that the files are up to date with options, help texts and formats.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from halfbyte.cli.main import cli, run
from halfbyte.engine.backends.support import BACKENDS, CAPABILITIES, Unsupported
from halfbyte.errors import RecipeError
from halfbyte.evidence.folder import KINDS
from halfbyte.evidence.record import Record
from halfbyte.evidence.release import AfterRelease
from halfbyte.formats.format import Format
from halfbyte.formats.registry import FORMATS
from halfbyte.probe.output import causes
from halfbyte.recipe.load import load_recipe, recipe_text
from halfbyte.serve.engine_log import known_errors
from halfbyte.statistics.verdicts import items_needed
from halfbyte.ui.console import Output

HELP_WIDTH = 100
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """Yield the context of a command and its subcommands, in the order of the help."""
    ctx = click.Context(command, info_name=name, parent=parent, terminal_width=HELP_WIDTH, **command.context_settings)
    yield ctx
    if isinstance(command, click.Group):
        for child in command.list_commands(ctx):
            yield from walk(command.commands[child], child, ctx)


def cli_reference() -> str:
    """Return the help text of every command."""
    return "\n".join(f"## {ctx.command_path}\n\n```text\n{ctx.get_help()}\n```\n" for ctx in walk(cli, "halfbyte"))


def command_table() -> str:
    """Return a table with one row per command."""
    leaves = [ctx for ctx in walk(cli, "halfbyte") if not isinstance(ctx.command, click.Group)]
    return _markdown(
        ("command", "description"), [(f"`{_usage(ctx)}`", ctx.command.get_short_help_str(200)) for ctx in leaves]
    )


def format_table() -> str:
    """Return a table with one row per format and its stored tensors."""
    heading = ("format", "description", "bits/weight", "block", "encode methods", "stored tensors", "used by")
    return _markdown(heading, [_format_cells(row) for row in FORMATS.values()])


def format_summary() -> str:
    """Return the format table without blocks and tensors."""
    heading = ("format", "description", "bits/weight", "encode methods", "used by")
    rows = [_format_cells(row) for row in FORMATS.values()]
    return _markdown(heading, [(*row[:3], row[4], row[6]) for row in rows])


def _format_cells(row: Format) -> tuple[str, ...]:
    tensors = "<br>".join(f"`{part.suffix}` {part.dtype}" for part in row.tensors)
    encodes = ", ".join(f"`{name}`" for name in row.encodes) or "read only"
    block = str(row.block) if row.block else "row"
    return (f"`{row.name}`", row.title, f"{row.bits_per_weight:.2f}", block, encodes, tensors, row.used_by)


def backend_table() -> str:
    """Return a table with one row per capability and one column per backend."""
    heading = ("capability", *(f"{name} ({selected})" for name, selected in BACKENDS.items()))
    return _markdown(
        heading, [(row.name, *(_supported(row.missing.get(name)) for name in BACKENDS)) for row in CAPABILITIES]
    )


def _supported(missing: Unsupported | None) -> str:
    return "yes" if missing is None else f"no: {missing.what.format(device='cuda', recipe='')}"


def speed_table() -> str:
    """Return the newest benchmark of the number formats."""
    newest = max(RESULTS.glob("numerics_*.json"), key=lambda path: path.stem[-6:])
    result = json.loads(newest.read_text())
    shape, by_cores = next(iter(result["shapes"].items()))
    one_core, all_cores = by_cores["1"], by_cores["all"]
    peers = [name for name in one_core if name != "halfbyte"]
    rows: list[tuple[str, ...]] = []
    for name, rate in one_core["halfbyte"].items():
        peer_rates = [f"{one_core[peer][name] / 1e9:.4f}" if name in one_core[peer] else "" for peer in peers]
        rows.append((name, f"{rate / 1e9:.2f}", f"{all_cores['halfbyte'][name] / 1e9:.2f}", *peer_rates))
    copy = f"memory copy | {result['memory_copy']['1'] / 1e9:.1f} | {result['memory_copy']['all'] / 1e9:.1f}"
    rows.append((*copy.split(" | "), *[""] * len(peers)))
    caption = (
        f"GB/s of the BF16 side (2 bytes per weight) for a {shape} expert matrix, {result['date']}, {result['cpu']}, "
        f"`{result['command']}`. Full results: [benchmarks/results](../benchmarks/results/{newest.stem}.md)."
    )
    heading = ("operation", "1 core", f"{result['cores']} cores", *[f"{peer}, 1 core" for peer in peers])
    return f"{caption}\n\n{_markdown(heading, rows)}"


def engine_table() -> str:
    """Return the newest benchmark of the engine."""
    newest = max(RESULTS.glob("engine_*.md"), key=lambda path: path.stem[-6:])
    title, *lines = newest.read_text().rstrip().splitlines()
    link = f"[benchmarks/results](../benchmarks/results/{newest.name})"
    return "\n".join([f"{title.removeprefix('# ')} ({link}):", *lines])


def fault_table() -> str:
    """Return the counts of injected faults from the newest run."""
    newest = max(RESULTS.glob("fault_injection_*.json"), key=lambda path: path.stem[-6:])
    result = json.loads(newest.read_text())
    rows = [(row["fault"], f"{row['injections']:,}", f"{row['survived']:,}") for row in result["faults"]]
    total = [sum(row[key] for row in result["faults"]) for key in ("injections", "survived")]
    rows.append(("**all**", *(f"**{count:,}**" for count in total)))
    runs = [
        f"{run['date'][:10]}, {run['machine']['processor']}, {run['machine']['cores']} cores with a load of "
        f"{run['machine']['load'][0]:.0f}, {' and '.join(run['files']) or 'all'}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in run["tests"].items())
        + f", {run['seconds']:,.0f} s"
        for run in result["runs"]
    ]
    caption = f"`python tests/faults/table.py benchmarks/results/{newest.stem}`: {'; '.join(runs)}."
    return f"{caption}\n\n{_markdown(('fault', 'injections', 'survived'), rows)}"


def load_table() -> str:
    """Return the cost of large headers and reports from the newest results."""
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
    return _markdown(("command", "CPU seconds", "peak memory", "report"), rows)


def _cost(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['core_seconds']:.1f}", f"{row['peak_mb']:,.0f} MB"


# Rows of the pruning study shown in docs/pruning.md; the results have all of them.
PRUNING_METHODS = ("reap", "reap_public", "ean", "frequency")
PRUNING_SHARES = (75, 62, 50, 37)
PRUNING_TEXTS = {
    "mixed": "mixed",
    "even": "equal domain weights",
    "max_min": "mixed, `max_min`",
    "task": "one domain",
}


def pruning_table() -> str:
    """Return the newest pruning study: REAP on each calibration text, the other criteria on mixed text."""
    newest = max(RESULTS.glob("pruning_*.json"), key=lambda path: path.stem[-6:])
    builds = {(row["method"], row["calibration"], row["keep"]): row for row in json.loads(newest.read_text())["builds"]
              if not row["tuned"] and "restored" not in row["name"]}  # fmt: skip
    kinds = [("reap", text) for text in PRUNING_TEXTS] + [(method, "mixed") for method in PRUNING_METHODS[1:]]
    rows: list[tuple[str, ...]] = []
    for method, text in kinds:
        cells = [_pruned(builds[method, text, share]) for share in PRUNING_SHARES]
        rows.append((f"`{method}`", PRUNING_TEXTS[text], *cells))
    return _markdown(("criterion", "calibration text", *[f"{share} % kept" for share in PRUNING_SHARES]), rows)


def _pruned(build: Mapping[str, Any]) -> str:
    domains, loops = build["domains"].values(), build["loops"]
    right = sum(row["right"] for row in domains) / sum(row["items"] for row in domains)
    return f"{100 * right:.1f} / {build['kl']['all']['value']:.3f} / {loops['loops']}+{loops['short']}"


FLIPS, MARGINS = (0.01, 0.02, 0.03, 0.05, 0.1), (0.005, 0.01, 0.03)


def items_table() -> str:
    """Return the number of items that ACCEPT needs, by share of flips and margin."""
    heading = ("items that flip", *[f"margin {100 * margin:g} pp" for margin in MARGINS])
    rows = [(f"{100 * flips:g} %", *[f"{items_needed(flips, margin):,}" for margin in MARGINS]) for flips in FLIPS]
    return _markdown(heading, rows)


def engine_errors() -> str:
    """Return the known engine errors, in lookup order."""
    rows = [(f"`{_cell(error.pattern.pattern)}`", _cell(error.cause), _cell(error.fix)) for error in known_errors()]
    return _markdown(("engine log", "cause", "fix"), rows)


def probe_causes() -> str:
    """Return the known causes of failing probes."""
    rows = [(_cell(cause.sign), _cell(cause.known), _cell(cause.fix)) for cause in causes().values()]
    return _markdown(("symptom", "known causes", "fix"), rows)


def evidence_tables() -> str:
    """Return a section for each kind of evidence file: its fields, and the fields of the objects in it."""
    return "\n".join(_evidence_section(kind) for kind in (*KINDS.values(), AfterRelease))


def _evidence_section(kind: type[Record]) -> str:
    measured = {
        "nothing": "", "weights": " Valid while weights and formats are unchanged.",
        "server": " Valid while the checkpoint's files are unchanged.",
        "outputs": " Valid while the recorded weights and formats are unchanged.",
    }[kind.measured]  # fmt: skip
    format = "" if kind.version is None else f" Format {kind.version}."
    about = f"{inspect.getdoc(kind)} Written by `{kind.created_by.format(out='OUT')}`.{format}{measured}"
    tables = [_evidence_table(part) for part in _parts(kind)]
    return f"## halfbyte/{kind.file}\n\n{about}\n\n" + "\n\n".join(tables) + "\n"


def _parts(kind: type) -> list[type]:
    """Return a record and the dataclasses that it contains, in order of appearance."""
    parts = [kind]
    for part in parts:
        pending = list(get_type_hints(part).values())
        while pending:
            hint = pending.pop(0)
            pending = [*get_args(hint), *pending]
            if is_dataclass(hint) and hint not in parts:
                parts.append(hint)  # pyright: ignore[reportArgumentType]
    return parts


def _evidence_table(kind: type) -> str:
    """Return the fields of a dataclass with their types and the comments in the source."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        comments |= dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(base), re.MULTILINE))
    rows = [
        (f"`{row.name}`", _type(str(row.type), sys.modules[kind.__module__]), _cell(comments.get(row.name, "")))
        for row in fields(kind)  # pyright: ignore[reportArgumentType]
        if not row.name.startswith("measured_")
    ]
    about = "" if issubclass(kind, Record) else f"`{kind.__name__}`: {_cell(inspect.getdoc(kind) or '')}\n\n"
    return about + _markdown(("field", "type", "meaning"), rows)


def _type(hint: str, module: ModuleType) -> str:
    """Return a type in the words of JSON, with aliases of the module spelled out."""
    aliases = {"Interval": "tuple[float, float]", "Spread": "Mapping[str, float] | None"}
    for name in re.findall(r"\b[A-Z]\w+\b", hint):
        choices = get_args(value) if get_origin(value := getattr(module, name, None)) is Literal else ()
        hint = hint.replace(name, " | ".join(f'"{choice}"' for choice in choices) or aliases.get(name, name))
    if hint.startswith("Literal["):
        hint = hint.removeprefix("Literal[").removesuffix("]").replace(", ", " | ")
    text = re.sub(r"tuple\[([^\[\]]*(?:\[[^\]]*\])?[^\[\]]*), \.\.\.\]", r"list of \1", hint)
    text = re.sub(r"Mapping\[str, (.*)\]", r"object of \1", text)
    text = re.sub(r"tuple(\[[^\]]*\])", r"\1", text)
    words = {"str": "string", "bool": "boolean", "int": "integer", "float": "number", "None": "null", "Any": "any"}
    return re.sub(r"\b(str|bool|int|float|None|Any)\b", lambda match: words[match[0]], text).replace(" | ", " or ")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def inspect_example() -> str:
    """Return the output of `halfbyte inspect` for Kimi-K2.6."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        assert run(["inspect", "--example", "kimi-k2.6"]) == 0
    return shown.getvalue().rstrip()


def recipe_table() -> str:
    """Return the shipped recipes with their output size for Kimi-K2.6."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        assert run(["inspect", "--example", "kimi-k2.6", "--json"]) == 0
    result = json.loads(shown.getvalue())
    source = result["nbytes"] + result["header_nbytes"]
    rows = [
        (f"[`{row['recipe']}`](src/halfbyte/recipes/{row['recipe']}.yaml)", load_recipe(row["recipe"]).description,
         f"{(row['nbytes'] + row['header_nbytes']) / 1e9:,.1f} GB")
        for row in result["recipes"]
    ]  # fmt: skip
    return _markdown(("recipe", "output", f"size for Kimi-K2.6 (source {source / 1e9:,.1f} GB)"), rows)


# Without measured times, which differ between machines.
PLAN_EXAMPLE = "--example kimi-k2.6 -r kimi-k2.6-mxfp4-wafer --fit 8xMI355X --no-measure"


def plan_example() -> str:
    """Return the output of `halfbyte plan` for Kimi-K2.6 and the MXFP4 recipe."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
        assert run(f"plan {PLAN_EXAMPLE}".split()) == 0
    return re.sub(r"at most .* for jobs", "at most ... for jobs", shown.getvalue()).rstrip()  # depends on the cores


def run_example() -> str:
    """Return the output of `quantize` and `audit` for a checkpoint with Kimi-K2.6's names and small matrices."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from synth import tiny

    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        source, out = f"{folder}/tiny-k2.6", f"{folder}/tiny-mxfp4"
        tiny(Path(source))
        for command in (f"quantize {source} {out} -r kimi-k2.6-mxfp4-wafer", f"audit {out} --against {source}"):
            with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
                assert run(["-q", *command.split()]) == 0
            without_times = re.sub(r"[0-9.]+ s\b", "... s", shown.getvalue().rstrip())
            lines.append(f"$ halfbyte {command}\n{without_times}".replace(f"{folder}/", ""))
    return "\n\n".join(lines)


def recipe_error() -> str:
    """Return the error for a recipe with a typo."""
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
