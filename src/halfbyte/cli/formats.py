"""The `halfbyte formats` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbyte.cli.command import command
from halfbyte.options.inspect import NoOptions
from halfbyte.ui.console import Column, Output

if TYPE_CHECKING:
    from halfbyte.formats.format import Format


@command("formats", NoOptions, example="halfbyte formats --json")
def formats_command(out: Output, options: NoOptions) -> None:
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
