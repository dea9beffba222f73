"""`inspect` and `plan` on headers of complete models: CPU seconds and memory, in a separate process.

The bounds are several times the measured values (docs/log.md), to allow for other load.
"""

import json
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))
from bench_headers import MODELS, RECIPE, measured  # noqa: E402 - beside the tests, not in the package

# Tensors before and after, and the most seconds of a core and megabytes of each command. MXFP4 has two tensors, and
# both INT4 and NVFP4 have three; the k and v scales of an FP8 cache that 93 layers have are dropped.
BOUNDS = {
    "k2.6": (208_550, 208_550, {"inspect": (30, 600), "plan": (40, 900)}),
    "k3-like": (497_220, 497_220 + 92 * 896 * 3 - 2 * 93, {"inspect": (60, 1_000), "plan": (90, 1_500)}),
}


# Of all source tensors: plans that were made before must stay the same plans.
DIGESTS = {"k2.6": "6ebea02a02542a42", "k3-like": "70c374420f39fba2"}


@pytest.mark.parametrize("model", BOUNDS)
def test_the_headers_of_a_whole_model(tmp_path, model):
    tensors, written, bounds = BOUNDS[model]
    assert MODELS[model](tmp_path / model)["tensors"] == tensors
    for name, options in (("inspect", ()), ("plan", (*RECIPE, "-o", tmp_path / "plan.json"))):
        cost = measured(name, tmp_path / model, *options)
        print(f"{model}: {name} of {tensors:,} tensors: {cost.core_seconds:.1f} s, {cost.peak_mb:,.0f} MB")
        assert cost.code == 0, cost.printed
        seconds, megabytes = bounds[name]
        assert cost.core_seconds < seconds
        assert cost.peak_mb < megabytes
        if name == "inspect":
            assert f"{tensors:,} tensors has a role" in cost.printed
    planned = json.loads((tmp_path / "plan.json").read_text())
    kept = [role["tensors"] for role in planned["roles"] if not role["action"].startswith("drop")]
    assert sum(kept) == planned["tensors"] == written
    assert planned["parts"]["source tensors"] == DIGESTS[model]
