"""The `halfbyte compare` command."""

from __future__ import annotations

from typing import Any

from halfbyte.cli.command import command
from halfbyte.errors import UsageError
from halfbyte.options.check import CompareOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted


@command("compare", CompareOptions, example="halfbyte compare SRC OUT --data code=code.jsonl --data chat=chat.jsonl")
def compare_command(out: Output, options: CompareOptions) -> None:
    """Run SRC and OUT on the same tokens and compare the outputs.

    Prints the error of the hidden states after each layer, then KL divergence, top-1 agreement and perplexity with
    confidence intervals. Keeps one layer of each checkpoint in memory at a time.
    """
    file, other = options.file, options.out_folder
    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError("no such folder", where=str(file.parent), fix="create it, or choose another")
    measured: dict[str, Any] = {}
    if file is not None:
        from halfbyte.cli.hash_progress import hashed

        measured = hashed(out, other)
    with out.activity("reading the headers of both checkpoints") as activity:
        from halfbyte.cli import compare_output
        from halfbyte.compare.stream import compare_checkpoints

        result = compare_checkpoints(options, compare_output.steps(activity), activity.begin)
    compare_output.report(out, result, options.score, file, measured)
    if file is None and (other / "halfbyte").is_dir():
        out.hint(f"add -o {pasted(other)}/halfbyte/compare.json to keep the result for card and report")
    elif file is not None:
        out.hint(f"halfbyte diff {pasted(options.source)} {pasted(other)}")
