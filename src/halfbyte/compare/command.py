"""The command `halfbyte compare`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.errors import UsageError
from halfbyte.terminal.console import Output
from halfbyte.terminal.device_options import device_option
from halfbyte.terminal.usage import Command

_FOLDER = click.Path(path_type=Path)


@click.command("compare", cls=Command)
@click.argument("source", metavar="SRC", type=_FOLDER)
@click.argument("other", metavar="OUT", type=_FOLDER)
@click.option("--data", multiple=True, required=True, metavar="DOMAIN=FILE[:COLUMNS]",
              help="Texts to run on: .jsonl, .parquet or .txt. {column}=FILE: the domain is in a column.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1), default=128, show_default=True, help="Rows, evenly of each file.")
@click.option("--length", type=click.IntRange(2), default=512, show_default=True, help="Tokens in a row.")
@click.option("--rows", type=click.Choice(["packed", "padded"]), default="packed", show_default=True,
              help="Full rows of several texts that do not see each other, or a text a row.")  # fmt: skip
@click.option("--score", type=click.Choice(["all", "answers"]), default="all", show_default=True,
              help="Predictions of all tokens, or only of the assistant's (Kimi's template).")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
              help="float32 shows the checkpoints' difference alone; bfloat16 adds two models' rounding.")  # fmt: skip
@click.option("--activations", type=click.Choice(["off", "as-served"]), default="off", show_default=True,
              help="as-served quantizes OUT's activations as engines do.")  # fmt: skip
@click.option("--kv", type=click.Choice(["off", "fp8", "fp8-scaled"]), default="off", show_default=True,
              help="OUT's KV cache in FP8: cast, or by its own k_scale as vLLM does it.")  # fmt: skip
@device_option
@click.option("--threads", type=click.IntRange(1), help="Threads that compute.  [default: cores]")
@click.option("-o", "--out", "file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write everything as JSON, with arrays for plots.")  # fmt: skip
@click.pass_obj
def compare_command(out: Output, source: Path, other: Path, file: Path | None, **choice: Any) -> None:
    """Say how far OUT is from SRC: both run on the same tokens, a layer of each in memory at a time.

    By layer the error of the hidden states, and at the end KL, top-1 agreement and perplexity with their intervals.
    """
    from halfbyte.compare import text  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.compare.checkpoints import Choice, compare_checkpoints  # noqa: PLC0415

    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError("there is no such folder", where=str(file.parent), fix="make it, or give another")
    found = compare_checkpoints(source, other, Choice(**choice), text.steps(out))
    text.report(out, found, choice["score"], file)
    out.hint(f"halfbyte diff {source} {other}" if file is not None else "-o FILE keeps the arrays for plots")
