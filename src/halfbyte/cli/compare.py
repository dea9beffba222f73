"""The `halfbyte compare` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from halfbyte.cli.device_options import device_option
from halfbyte.cli.usage import Command
from halfbyte.errors import UsageError
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted

_FOLDER = click.Path(path_type=Path)


@click.command("compare", cls=Command, example="halfbyte compare SRC OUT --data code=code.jsonl --data chat=chat.jsonl")
@click.argument("source", metavar="SRC", type=_FOLDER)
@click.argument("other", metavar="OUT", type=_FOLDER)
@click.option("--data", multiple=True, required=True, metavar="[DOMAIN=]FILE[:COLUMNS]",
              help="Texts: .jsonl, .parquet or .txt. {column}=FILE reads the domain from a column.")  # fmt: skip
@click.option("--samples", type=click.IntRange(1), help="Rows, taken evenly from the files.  [default: up to 128]")
@click.option("--length", type=click.IntRange(2), default=512, show_default=True, help="Tokens per row.")
@click.option("--rows", type=click.Choice(["packed", "padded"]), default="packed", show_default=True,
              help="packed: full rows of several texts, masked from each other. padded: one text per row.")  # fmt: skip
@click.option("--score", type=click.Choice(["all", "answers"]), default="all", show_default=True,
              help="Score all tokens, or only the assistant's (Kimi's template).")  # fmt: skip
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True,
              help="float32 isolates the checkpoints' difference; bfloat16 adds rounding in both models.")  # fmt: skip
@click.option("--activations", type=click.Choice(["off", "as-served"]), default="off", show_default=True,
              help="as-served quantizes OUT's activations as engines do.")  # fmt: skip
@click.option("--kv", type=click.Choice(["off", "fp8", "fp8-scaled"]), default="off", show_default=True,
              help="Emulate OUT's FP8 KV cache: cast, or scaled by its k_scale, as in vLLM 0.17 to 0.24.")  # fmt: skip
@device_option
@click.option("--threads", type=click.IntRange(1), help="Compute threads.  [default: cores]")
@click.option("-o", "--out", "file", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the full report as JSON, with arrays for plots.")  # fmt: skip
@click.pass_obj
def compare_command(out: Output, source: Path, other: Path, file: Path | None, **choice: Any) -> None:
    """Run SRC and OUT on the same tokens and compare the outputs.

    Prints the error of the hidden states after each layer, then KL divergence, top-1 agreement and perplexity with
    confidence intervals. Keeps one layer of each checkpoint in memory at a time.
    """
    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError("no such folder", where=str(file.parent), fix="create it, or choose another")
    measured: dict[str, Any] = {}
    if file is not None:
        from halfbyte.cli.hash_progress import hashed

        measured = hashed(out, other)
    with out.activity("reading the headers of both checkpoints") as activity:
        from halfbyte.cli import compare_output
        from halfbyte.compare.checkpoints import Choice, compare_checkpoints

        result = compare_checkpoints(source, other, Choice(**choice), compare_output.steps(activity), activity.begin)
    compare_output.report(out, result, choice["score"], file, measured)
    if file is None and (other / "halfbyte").is_dir():
        out.hint(f"add -o {pasted(other)}/halfbyte/compare.json to keep the result for card and report")
    elif file is not None:
        out.hint(f"halfbyte diff {pasted(source)} {pasted(other)}")
