"""The `halfbyte inspect` command."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from halfbyte.cli.command import command
from halfbyte.cli.load_options import chosen_cache
from halfbyte.errors import CheckFailedError
from halfbyte.options.inspect import InspectOptions
from halfbyte.options.shared import ShardCache
from halfbyte.ui.console import Column, Output
from halfbyte.ui.escape import pasted
from halfbyte.ui.units import count, size

if TYPE_CHECKING:
    from halfbyte.inspect.inspection import Inspection

_OWN_PLAN = "halfbyte/plan.json"  # in every halfbyte output; repeated here because output_folder imports NumPy
_ROLES = (
    Column("role", "role"),
    Column("parameters", "params", number=True),
    Column("stored_as", "stored as"),
    Column("bits_per_weight", "bits/weight", number=True),
    Column("size", "size", number=True),
)
_RECIPES = (
    Column("recipe", "recipe"),
    Column("size", "output size", number=True),
    Column("change", "change", number=True),
    Column("elements", "elements", number=True),
)
_TENSORS = (
    Column("name", "tensor"),
    Column("role", "role"),
    Column("format", "format"),
    Column("dtype", "dtype"),
    Column("shape", "shape"),
    Column("nbytes", "bytes", number=True),
    Column("shard", "shard"),
)
_SAME = 1e-4  # relative size changes below this are shown as "same size"


@command("inspect", InspectOptions, example="halfbyte inspect hf://moonshotai/Kimi-K2.6")
def inspect_command(out: Output, options: InspectOptions) -> None:
    """Show the contents of a checkpoint. Reads only headers.

    SRC is a folder or an address: hf://organization/name@revision, s3://bucket/folder.
    """
    from halfbyte.inspect import inspection

    start, source, example = time.perf_counter(), options.source, options.example
    checkpoint = inspection.open_source(source, example, chosen_cache(ShardCache(folder=options.cache_dir)))
    if options.tensors is not None:
        return _show_tensors(out, inspection.matching_tensors(checkpoint, options.tensors))
    report = inspection.inspect(checkpoint)
    _show(out, report)
    read = "nothing" if example else f"{report.header_nbytes / 1e6:,.1f} MB of headers"
    out.note(f"read {read} in {time.perf_counter() - start:.1f} s")
    if source is not None and (checkpoint.root / _OWN_PLAN).is_file():
        return out.hint(f"halfbyte audit {pasted(source)} --against SRC")
    recipe = inspection.recommended(report)
    source_words = f"--example {example}" if source is None else pasted(source)
    return out.hint(f"halfbyte plan {source_words} -r {recipe}" if recipe else "halfbyte recipes list")


def _show(out: Output, inspection: Inspection) -> None:
    """Print the inspection. Raise CheckFailedError if engines would misread the checkpoint."""
    out.facts(inspection.as_dict(), _lines(inspection))
    if not out.as_json:
        out.text("", None)
        out.table(_role_table(inspection), _ROLES)
        out.text("", None)
        out.table(_recipe_table(inspection), _RECIPES)
        out.text("", None)
    out.verdicts(inspection.verdicts)
    wrong = [text for level, text in inspection.verdicts if level == "bad"]
    if wrong:
        raise CheckFailedError(wrong[0], where="config.json", fix="download config.json and the weights again")


def _show_tensors(out: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per tensor."""
    out.table(rows if out.as_json else [{**row, "shape": str(row["shape"])} for row in rows], _TENSORS)


def _lines(inspection: Inspection) -> list[tuple[str, str]]:
    """Return the labelled lines of the summary."""
    text = inspection.parameters - inspection.vision_parameters
    vision = f", plus {count(inspection.vision_parameters, 2)} for vision" if inspection.vision_parameters else ""
    shared = f", {inspection.shared_experts} shared" if inspection.shared_experts else ""
    experts = f"; {inspection.experts} experts, top-{inspection.active_experts}{shared}" if inspection.experts else ""
    moe = (
        f" ({inspection.dense_layers} dense, {inspection.layers - inspection.dense_layers} MoE)"
        if inspection.experts
        else ""
    )
    shards = "1 shard" if inspection.shards == 1 else f"{inspection.shards} shards"
    return [
        ("checkpoint", f"{inspection.source}: {inspection.family}"),
        ("parameters", f"{count(text, 3)}{vision}; {count(inspection.active_parameters, 2)} active per token"),
        ("layers", f"{inspection.layers}{moe}{experts}"),
        ("stored", f"{size(inspection.nbytes + inspection.header_nbytes)}, {inspection.tensors:,} tensors in {shards}"),
        ("elements", f"{count(inspection.elements)}, packed or not; the Hub shows this number as parameters"),
    ]


def _role_table(inspection: Inspection) -> list[dict[str, Any]]:
    """Return the rows of the role table, largest first."""
    return [
        {
            "role": row.role,
            "parameters": count(row.parameters, largest="B") if row.parameters else None,
            "stored_as": row.stored_as,
            "bits_per_weight": row.bits_per_weight,
            "size": size(row.nbytes),
        }
        for row in inspection.roles
    ]


def _recipe_table(inspection: Inspection) -> list[dict[str, Any]]:
    """Return the rows of the recipe table: the output size of each recipe."""
    rows: list[dict[str, Any]] = []
    for gain in inspection.recipes:
        if gain.nbytes is None:
            rows.append({"recipe": gain.recipe, "size": None, "change": gain.why_not, "elements": None})
            continue
        before = inspection.nbytes + inspection.header_nbytes
        after = gain.nbytes + gain.header_nbytes
        change = after - before
        words = f"{'+' if change > 0 else ''}{size(change)}" if abs(change) > _SAME * before else "same size"
        elements = count(gain.elements or 0, largest="B")
        rows.append({"recipe": gain.recipe, "size": size(after), "change": words, "elements": elements})
    return rows
