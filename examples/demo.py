"""`make demo`: the whole work on a model that comes with this repository, from INT4 to an accepted 4-bit release.

    python examples/demo.py [nvfp4 | mxfp4 | nvfp4-reap24 | FILE.yaml] [OUT]

kimi-mini (models/kimi-mini) has Kimi-K2.6's architecture and files, and 20 million parameters. A second call keeps what
is done. With a CUDA GPU that PyTorch sees, layers are measured and experts encoded there; the server stays on the CPU.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from halfbyte.cli import run
from halfbyte.errors import UsageError
from halfbyte.recipe.load import load_recipe
from halfbyte.release.view import duration
from halfbyte.terminal.console import Output

ROOT = Path(__file__).parents[1]
SOURCE = Path("models/kimi-mini")
RUNS = Path("runs")


def recipe_file(name: str) -> Path:
    """Return a recipe by its short name, or the file that somebody names."""
    for path in (Path("examples") / f"kimi-mini-{name}.yaml", Path(name)):
        if path.is_file():
            return path
    names = sorted(path.stem.removeprefix("kimi-mini-") for path in Path("examples").glob("kimi-mini-*.yaml"))
    fix = f"make demo RECIPE={' or RECIPE='.join(names)}, or name a file"
    raise UsageError(f"there is no recipe '{name}'", where="RECIPE", fix=fix)


def device(recipe: Path) -> list[str]:
    """Return the options that put layers on a GPU, if there is one and the recipe can use it."""
    import torch

    if load_recipe(recipe).prune is not None:
        return []  # there is no such pass on a GPU yet

    return ["--device", "cuda"] if torch.cuda.is_available() else []


def command(out: Output, *words: object) -> int:
    """Run a command as a user would, after showing it; return its exit code."""
    typed = [str(word) for word in words]
    out.note(f"\n$ halfbyte {shlex.join(typed)}")
    return run(typed)


def main(name: str = "nvfp4", folder: str | None = None) -> int:
    """Look at the source, then do all of it."""
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
    for what, path in (
        ("card", "README.md"),
        ("report", "halfbyte/report.html"),
        ("evidence", "halfbyte/release.json"),
    ):
        if (target / path).is_file():
            out.note(f"{what:<10} {target / path}")
    out.note(f"{'took':<10} {duration(time.monotonic() - start)}; the same command again keeps what is done")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
