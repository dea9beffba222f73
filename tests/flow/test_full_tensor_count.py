"""Plan, quantize, audit and report a checkpoint with all 208,550 tensors of Kimi-K2.6 and narrow matrices.

Every command runs in a separate process. The bounds are several times the measured values, to allow for other load.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))
from bench_headers import measured  # noqa: E402 - beside the tests, not in the package
from synth import KIMI_K26, PUBLISHED, write_layers  # noqa: E402

RECIPE = "kimi-k2.6-mxfp4a16"
GROUP = 32  # values per block scale, which every quantized matrix must have room for
NARROW = replace(
    replace(KIMI_K26, width=GROUP, dense_width=GROUP, expert_width=GROUP, vocabulary=64, heads=1),
    q_rank=GROUP,
    kv_rank=GROUP,
    nope_width=GROUP,
    value_width=GROUP,
    vision_width=16,
    vision_mlp_width=16,
    vision_grid=2,
)
MXFP4_TENSORS = 139_430  # one tensor less for each of the 69,120 routed expert matrices
BOUNDS = {  # seconds of a core, and megabytes
    "plan": (30, 900),
    "quantize": (150, 1_500),
    "audit": (80, 1_500),
    "report": (40, 900),
}


def test_every_command_handles_the_full_tensor_count(tmp_path):
    source, out, plan_file = tmp_path / "source", tmp_path / "out", tmp_path / "plan.json"
    written = write_layers(source, NARROW)
    assert (written["tensors"], written["shards"]) == (PUBLISHED["tensors"], PUBLISHED["shards"])
    commands = {
        "plan": (source, "-r", RECIPE, "--no-measure", "-o", plan_file),
        "quantize": (source, out, "--plan", plan_file),
        "audit": (out, "--against", source),
        "report": (out,),
    }
    for name, options in commands.items():
        cost = measured(name, *options)
        seconds, megabytes = BOUNDS[name]
        print(f"{name}: {cost.core_seconds:.1f} s of a core, {cost.wall_seconds:.1f} s, {cost.peak_mb:,.0f} MB")
        assert cost.code == 0, cost.printed
        assert cost.core_seconds < seconds
        assert cost.peak_mb < megabytes
    assert json.loads(plan_file.read_text())["tensors"] == MXFP4_TENSORS
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert len(index["weight_map"]) == MXFP4_TENSORS
    assert (out / "halfbyte" / "report.html").is_file()
