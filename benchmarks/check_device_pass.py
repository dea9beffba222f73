"""The pass on a GPU against the CPU's: the same statistics must give the same bytes, from every stored format.

    python benchmarks/check_device_pass.py --write CASES      where recipes can be read (pydantic, PyYAML)
    python benchmarks/check_device_pass.py CASES              on the machine with the GPU, which needs neither

A case is a small checkpoint, texts, and a plan. It is run on the GPU twice, which must give the same bytes, and then on
the CPU with the statistics that the GPU measured.

    python benchmarks/check_device_pass.py CASES --device cuda:0,cuda:0     the same for several; here one GPU plays two

Of several, each has at least 64 rows: write the cases with --samples 160. One GPU measures too, and the distance of
its statistics from those of several is printed.
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

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "flow")]
KINDS = ("int4-k2.6", "int4-g64", "fp8-block-k2", "bf16", "nvfp4", "mxfp4")
PRUNE = ("prune.method=reap", "prune.statistics=calibrate", "prune.keep=4", "prune.select=mean")
RECIPES = {
    "max": ("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max"]),
    "mse": ("kimi-k2.7-code-nvfp4-decart", []),
    "wafer": ("kimi-k2.6-nvfp4-wafer", ["shards=1MB"]),
    "packed": ("kimi-k2.6-nvfp4-nvidia", ["calibrate.rows=packed", "quantize.scales=max"]),
    "mxfp4": ("kimi-k2.6-mxfp4-wafer", []),
    "fixed": ("kimi-k2.7-code-nvfp4-nvidia", []),
    "pruned": ("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max", *PRUNE]),
    "gptq": ("kimi-k2.6-nvfp4-gptq", []),
}
SHAPE = {"layers": 3, "experts": 8, "hidden": 256, "expert_width": 192}


def write(cases: Path, samples: int) -> None:
    """Write sources, texts and plans."""
    from calibratable import small, texts

    from halfbyte.calibrate.datasets import with_data
    from halfbyte.checkpoint.folder import open_checkpoint
    from halfbyte.engine.pipeline import plan
    from halfbyte.families.model import describe
    from halfbyte.recipe.load import load_recipe

    shutil.rmtree(cases, ignore_errors=True)
    for kind in KINDS:
        source = small(cases / kind / "source", kind, **SHAPE)
        data = texts(cases / kind / "texts.jsonl", count=2 * samples)
        stored = {one.role for one in describe(open_checkpoint(source)).linears.values() if one.format != "bf16"}
        for name, (recipe, overrides) in RECIPES.items():
            roles = load_recipe(recipe).roles
            decoded = [f"roles.{role}=bf16" for role in sorted(stored) if roles[role] == "keep"]
            calibrates = load_recipe(recipe).calibrate is not None
            length = ["calibrate.sequence_length=24"] if calibrates else []
            loaded = load_recipe(recipe, [*decoded, *length, *overrides])
            if calibrates:
                path = f"news={data.relative_to(Path.cwd()) if data.is_relative_to(Path.cwd()) else data}"
                loaded = with_data(loaded, [path], samples)
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


def distance(ours: Path, theirs: Path) -> str:
    """Say how far statistics are from others: the largest relative difference of any number of each kind."""
    import numpy as np
    from safetensors.numpy import load_file

    ours_by_name, theirs_by_name = (load_file(folder / "stats.safetensors") for folder in (ours, theirs))
    found = {"counts": 0.0, "sums": 0.0, "largest values": 0.0}
    for name, array in ours_by_name.items():
        kind = "sums" if "sum_" in name else "largest values" if "amax" in name or "max_" in name else "counts"
        other = theirs_by_name[name].astype(np.float64)
        apart = np.abs(array.astype(np.float64) - other) / np.where(other == 0, 1, np.abs(other))
        found[kind] = max(found[kind], float(apart.max(initial=0)))
    return "from one GPU: " + ", ".join(f"{kind} {apart:.1e}" for kind, apart in found.items())


def equal_codes(ours: Path, theirs: Path) -> str:
    """Say how many codes and block scales of experts equal the CPU's, which adds products in another order."""
    import numpy as np
    from safetensors import safe_open

    equal = {"weight": [0, 0], "weight_scale": [0, 0]}
    for path in sorted(ours.glob("*.safetensors")):
        with safe_open(path, "pt") as first, safe_open(theirs / path.name, "pt") as second:
            for name in first.keys():  # noqa: SIM118
                kind = name.rpartition(".")[2]
                if ".experts." in name and kind in equal:
                    a, b = (opened.get_tensor(name).view(torch.uint8).numpy() for opened in (first, second))
                    if kind == "weight":
                        a, b = (np.stack((codes & 15, codes >> 4)) for codes in (a, b))
                    equal[kind][0] += int((a == b).sum())
                    equal[kind][1] += a.size
    return "like the CPU: " + ", ".join(f"{kind} {same / of:.4%}" for kind, (same, of) in equal.items())


def check(case: Path, plan: Path, work: Path, device: str) -> list[str]:
    """Return the files that differ."""
    from halfbyte.engine.calibrate import calibrate
    from halfbyte.engine.pipeline import quantize
    from halfbyte.plan.manifest import read_plan_file

    recipe = read_plan_file(plan).recipe
    shutil.rmtree(work, ignore_errors=True)
    found = []
    for name in ("first", "second"):
        quantize(case / "source", work / name, recipe, device=device, verify_source=False)
        found.append(digests(work / name))
    stats = work / "first/halfbyte/stats" if recipe.calibrate is not None else None
    if recipe.quantize is not None and recipe.quantize.needs_hessians:
        quantize(case / "source", work / "cpu", recipe, verify_source=False)
        print(f"  {equal_codes(work / 'first', work / 'cpu')}")
        return sorted(name for name in found[0] if found[0][name] != found[1].get(name))
    if stats is not None and "," in device:
        calibrate(case / "source", work / "one", recipe, device=device.split(",", maxsplit=1)[0])
        print(f"  {distance(stats, work / 'one')}")
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
    parser.add_argument("--samples", type=int, default=20)
    given = parser.parse_args()
    if given.write:
        write(given.cases, given.samples)
        return
    if not given.device.startswith("cuda"):
        os.environ["TRITON_INTERPRET"] = "1"
    os.environ["HALFBYTE_SAME_DEVICE_TWICE"] = "1"  # see halfbyte.machine.device_option
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
