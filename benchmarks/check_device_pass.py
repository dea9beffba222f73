"""The pass on a GPU against the CPU's: the same statistics must give the same bytes, from every stored format.

    python benchmarks/check_device_pass.py --write CASES      where recipes can be read (pydantic, PyYAML)
    python benchmarks/check_device_pass.py CASES              on the machine with the GPU, which needs neither

A case is a small checkpoint, texts, and a plan. It is run on the GPU twice, which must give the same bytes, and then on
the CPU with the statistics that the GPU measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "flow")]
KINDS = ("int4-k2.6", "int4-g64", "fp8-block-k2", "bf16", "nvfp4", "mxfp4")
RECIPES = {
    "max": ("kimi-k2.6-nvfp4-nvidia", []),
    "mse": ("kimi-k2.7-code-nvfp4-decart", []),
    "wafer": ("kimi-k2.6-nvfp4-wafer", ["shards=1MB"]),
    "packed": ("kimi-k2.6-nvfp4-nvidia", ["calibrate.rows=packed"]),
    "mxfp4": ("kimi-k2.6-mxfp4-wafer", []),
}
SHAPE = {"layers": 3, "experts": 8, "hidden": 256, "expert_width": 192}


def write(cases: Path) -> None:
    """Write sources, texts and plans."""
    from calibratable import small, texts

    from halfbyte.calibrate.named_files import with_data
    from halfbyte.models.model import describe
    from halfbyte.pipeline import plan
    from halfbyte.recipe import load_recipe
    from halfbyte.source.checkpoint import open_checkpoint

    shutil.rmtree(cases, ignore_errors=True)
    for kind in KINDS:
        source = small(cases / kind / "source", kind, **SHAPE)
        data = texts(cases / kind / "texts.jsonl", count=40)
        stored = {one.role for one in describe(open_checkpoint(source)).linears.values() if one.format != "bf16"}
        for name, (recipe, overrides) in RECIPES.items():
            roles = load_recipe(recipe).roles
            decoded = [f"roles.{role}=bf16" for role in sorted(stored) if roles[role] == "keep"]
            calibrates = load_recipe(recipe).calibrate is not None
            length = ["calibrate.sequence_length=24"] if calibrates else []
            loaded = load_recipe(recipe, [*decoded, *length, *overrides])
            if calibrates:
                path = f"news={data.relative_to(Path.cwd()) if data.is_relative_to(Path.cwd()) else data}"
                loaded = with_data(loaded, [path], 20)
            (cases / kind / f"{name}.json").write_text(json.dumps(plan(source, loaded).as_dict()))


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a checkpoint."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    named = {str(path.relative_to(folder)): path for path in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in named.items()
        if not name.startswith("halfbyte/") or name.endswith("stats.safetensors")
    }


def check(case: Path, plan: Path, work: Path, device: str) -> list[str]:
    """Return the files that differ."""
    from halfbyte.pipeline import quantize
    from halfbyte.plan.file import read_plan_file

    recipe = read_plan_file(plan).recipe
    shutil.rmtree(work, ignore_errors=True)
    found = []
    for name in ("first", "second"):
        quantize(case / "source", work / name, recipe, device=device, verify_source=False)
        found.append(digests(work / name))
    stats = work / "first/halfbyte/stats" if recipe.calibrate is not None else None
    quantize(case / "source", work / "cpu", recipe, stats=stats, verify_source=False)
    found.append(digests(work / "cpu"))
    return sorted({name for other in found[1:] for name in found[0] if found[0][name] != other.get(name)})


def main() -> None:
    """Write cases, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--device", default="cuda", help="cpu:0 is Triton's interpreter, slowly")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    if given.write:
        write(given.cases)
        return
    if given.device != "cuda":
        os.environ["TRITON_INTERPRET"] = "1"
    wrong = number = 0
    begin = time.perf_counter()
    for case in sorted(path for path in given.cases.iterdir() if (path / "source").is_dir()):
        for plan in sorted(case.glob("*.json")):
            if given.only in f"{case.name} {plan.stem}":
                different = check(case, plan, given.cases / "work", given.device)
                number, wrong = number + 1, wrong + bool(different)
                print(f"{case.name:<14} {plan.stem:<8} {'equal' if not different else different[:3]}", flush=True)
    shutil.rmtree(given.cases / "work", ignore_errors=True)
    print(f"{number - wrong} of {number} cases equal, {time.perf_counter() - begin:.0f} s")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
