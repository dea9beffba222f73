"""`make demo`: run a complete release of kimi-mini, from the INT4 source to a verdict, card and report.

    python examples/demo.py [nvfp4 | mxfp4 | nvfp4-reap24 | FILE.yaml] [OUT]

kimi-mini (models/kimi-mini) has Kimi-K2.6's architecture and files, and 20 million parameters. A second call resumes.
If PyTorch sees a CUDA GPU, calibration and encoding run there; the server runs on the CPU.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from halfbyte.cli.main import run
from halfbyte.errors import UsageError
from halfbyte.recipe.load import load_recipe
from halfbyte.release.view import duration
from halfbyte.ui.console import Output

ROOT = Path(__file__).parents[1]
SOURCE = Path("models/kimi-mini")
RUNS = Path("runs")


def recipe_file(name: str) -> Path:
    """Return a recipe file by short name or path."""
    for path in (Path("examples") / f"kimi-mini-{name}.yaml", Path(name)):
        if path.is_file():
            return path
    names = sorted(path.stem.removeprefix("kimi-mini-") for path in Path("examples").glob("kimi-mini-*.yaml"))
    fix = f"make demo RECIPE={' or RECIPE='.join(names)}, or the path of a file"
    raise UsageError(f"unknown recipe '{name}'", where="RECIPE", fix=fix)


def device(recipe: Path) -> list[str]:
    """Return the options that run layers on a GPU, if available and supported by the recipe."""
    import torch

    if load_recipe(recipe).prune is not None:
        return []  # the CUDA backend does not prune

    return ["--device", "cuda"] if torch.cuda.is_available() else []


def command(out: Output, *words: object) -> int:
    """Print a command, run it, and return its exit code."""
    typed = [str(word) for word in words]
    out.note(f"\n$ halfbyte {shlex.join(typed)}")
    return run(typed)


def main(name: str = "nvfp4", folder: str | None = None) -> int:
    """Inspect the source, then run the release."""
    start, out = time.monotonic(), Output()
    if folder is not None:
        folder = str(Path(folder).absolute())
    os.chdir(ROOT)
    try:
        recipe = recipe_file(name)
    except UsageError as error:
        out.error(error)
        return error.exit_code
    target = Path(folder or RUNS / f"demo-{recipe.stem.removeprefix('kimi-mini-')}")
    command(out, "inspect", SOURCE, "-q")
    code = command(out, "release", SOURCE, target, "-r", recipe, *device(recipe))
    for label, path in (
        ("card", "README.md"),
        ("report", "halfbyte/report.html"),
        ("evidence", "halfbyte/release.json"),
    ):
        if (target / path).is_file():
            out.note(f"{label:<10} {target / path}")
    out.note(f"{'took':<10} {duration(time.monotonic() - start)}; rerun the same command to resume")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
