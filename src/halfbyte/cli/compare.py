"""The `halfbyte compare` command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbyte.cli.command import command
from halfbyte.cli.load_options import refuse_unclear_comparison
from halfbyte.errors import UsageError
from halfbyte.options.check import CompareOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted

if TYPE_CHECKING:
    from halfbyte.recipe.decisions import Recipe


@command("compare", CompareOptions, example="halfbyte compare SRC OUT --data code=code.jsonl --data chat=chat.jsonl")
def compare_command(out: Output, options: CompareOptions) -> None:
    """Run SRC and OUT on the same tokens and compare the outputs.

    Prints the error of the hidden states after each layer, then KL divergence, top-1 agreement and perplexity with
    confidence intervals. Keeps one layer of each checkpoint in memory at a time. With -r instead of OUT, compares SRC
    with what `quantize` would write, without writing it.
    """
    refuse_unclear_comparison(options, options.recipe)
    file, other = options.file, options.out_folder
    if file is not None and not file.absolute().parent.is_dir():
        raise UsageError("no such folder", where=str(file.parent), fix="create it, or choose another")
    recipe = _recipe(options)
    measured: dict[str, Any] = {}
    if file is not None and other is not None:
        from halfbyte.cli.hash_progress import hashed

        measured = hashed(out, other)
    with out.activity(f"reading the headers of {'both checkpoints' if other else 'the source'}") as activity:
        from halfbyte.cli import compare_output
        from halfbyte.compare.stream import compare_checkpoints

        result = compare_checkpoints(options, compare_output.steps(activity), activity.begin, recipe=recipe)
    compare_output.report(out, result, options.score, file, measured)
    if other is None:
        out.hint(f"halfbyte quantize {pasted(options.source)} OUT -r {pasted(options.recipe or '')}")
    elif file is None and (other / "halfbyte").is_dir():
        out.hint(f"add -o {pasted(other)}/halfbyte/compare.json to keep the result for card and report")
    elif file is not None:
        out.hint(f"halfbyte diff {pasted(options.source)} {pasted(other)}")


def _recipe(options: CompareOptions) -> Recipe | None:
    if options.recipe is None:
        return None
    from halfbyte.recipe.load import load_recipe

    return load_recipe(options.recipe, options.overrides)
