"""The time estimate: arithmetic by hand, measurement on every stored format, and messages."""

import json
import math

import numpy as np
import pytest
from pico import KINDS

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.cli.pipeline_output import duration
from halfbyte.families.model import describe
from halfbyte.formats.codec import decode
from halfbyte.plan.estimate import ASSUMED_NBYTES_PER_S, estimate
from halfbyte.plan.machine_speed import Kernel, Speeds, invented, kernels, measure
from halfbyte.plan.manifest import make_plan
from halfbyte.recipe.load import load_recipe

RECIPES = ("kimi-k2.6-mxfp4-wafer", "kimi-k2.6-nvfp4a16", "kimi-k2.6-fp8-reference", "kimi-k2.7-code-nvfp4-decart")


@pytest.fixture
def planned(pico):
    def make(kind="int4-k2.6", recipe="kimi-k2.6-nvfp4a16"):
        checkpoint = open_checkpoint(pico(kind))
        return make_plan(checkpoint, describe(checkpoint), load_recipe(recipe))

    return make


def speeds(plan, **changes):
    found = {
        "cores": 2,
        "read_nbytes_per_s": 100.0,
        "write_nbytes_per_s": 50.0,
        "same_disk": True,
        "core_s_per_read_byte": 0.001,
        "core_s_per_copied_byte": 0.002,
        "core_s_per_hashed_byte": 0.004,
        "core_s_per_weight": {kernel: 0.01 for kernel, _ in kernels(plan)},
    }
    return Speeds(**found | changes)


def test_by_hand(planned):
    plan = planned()
    read, written = plan.read_nbytes, plan.write_nbytes
    weights = sum(linear.weights for _, linear in kernels(plan))
    assert weights == sum(linear.weights for linear in plan.model.linears.values() if linear.expert is not None)
    found = estimate(plan, speeds(plan))
    assert found.disk_s == pytest.approx(read / 100 + written / 50)
    assert found.cores_s == pytest.approx((read * 0.001 + written * 0.006 + weights * 0.01) / 2)
    assert found.seconds == max(found.disk_s, found.cores_s)
    assert found.hash_nbytes_per_s == 500
    apart = estimate(plan, speeds(plan, same_disk=False))
    assert apart.disk_s == pytest.approx(max(read / 100, written / 50))
    slow = estimate(plan, speeds(plan, core_s_per_hashed_byte=100.0))
    assert slow.seconds == slow.cores_s > slow.disk_s


def test_unmeasured_speeds_are_assumed_and_reported(planned):
    plan = planned()
    half = estimate(plan, speeds(plan, write_nbytes_per_s=None))
    assert half.disk_s == pytest.approx((plan.read_nbytes + plan.write_nbytes) / 100)
    assert "assumed: same disk, same write speed" in half.basis()
    slow = estimate(plan, speeds(plan, read_nbytes_per_s=200e6, write_nbytes_per_s=3e9)).basis()
    assert "read 200.0 MB/s, write 3.0 GB/s" in slow  # never "0.0 GB/s"
    none = estimate(plan, speeds(plan, read_nbytes_per_s=None, write_nbytes_per_s=None))
    assert none.disk_s == pytest.approx((plan.read_nbytes + plan.write_nbytes) / ASSUMED_NBYTES_PER_S)
    assert "assumed: a disk of 1 GB/s" in none.basis()
    assert "calibration not included" not in none.basis()
    calibrated = planned(recipe="kimi-k2.6-nvfp4-wafer")
    assert "calibration not included" in estimate(calibrated, speeds(calibrated)).basis()


def test_fused_linears_are_timed_as_their_own_kernel(planned):
    assert {kernel for kernel, _ in kernels(planned())} == {
        Kernel("quantize", "int4", 32, True, "max"),
        Kernel("quantize", "int4", 32, False, "max"),
    }
    assert {kernel for kernel, _ in kernels(planned(recipe="kimi-k2.6-mxfp4-wafer"))} == {
        Kernel("quantize", "int4", 32, False, "even")
    }


def test_gptq_is_timed_by_its_width(planned, tmp_path):
    plan = planned(recipe="kimi-k2.6-nvfp4-gptq")
    wide, swept = (
        {kernel.method for kernel, _ in kernels(planned(recipe=r))}
        for r in (plan.recipe.name, "kimi-k2.7-code-nvfp4-decart")
    )
    assert (wide, swept) == ({"gptq"}, {"mse"})
    assert all(0 < rate < math.inf for rate in measure(plan, tmp_path).core_s_per_weight.values())


def test_speeds_of_a_folder(planned, tmp_path):
    plan = planned()
    found = measure(plan, tmp_path / "not" / "yet" / "there")
    assert found.same_disk
    assert found.core_s_per_weight.keys() == {kernel for kernel, _ in kernels(plan)}
    rates = [found.read_nbytes_per_s, found.write_nbytes_per_s, found.core_s_per_hashed_byte]
    rates += [found.core_s_per_read_byte, found.core_s_per_copied_byte, *found.core_s_per_weight.values()]
    assert all(rate is not None and 0 < rate < math.inf for rate in rates)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int4-k2.6"]  # nothing is left behind
    assert measure(plan, None).write_nbytes_per_s is None


@pytest.mark.parametrize(
    ("kind", "recipe"), [*((kind, "kimi-k2.6-bf16") for kind in KINDS), *(("int4-k2.6", name) for name in RECIPES)]
)
def test_random_weights_exist_for_every_format(planned, monkeypatch, kind, recipe):
    plan = planned(kind, recipe)
    monkeypatch.setattr("halfbyte.plan.machine_speed._KERNEL_S", 0.001)
    assert all(seconds > 0 for seconds in measure(plan, None).core_s_per_weight.values())
    for _, linear in kernels(plan):
        weights = (decode(invented(linear)).astype(np.uint32) << 16).view(np.float32)
        assert np.isfinite(weights).all()
        assert np.abs(weights).max() > 0


def test_the_command_says_it(pico, halfbyte):
    source = pico()
    code, printed, _ = halfbyte("plan", source, "-r", "kimi-k2.6-nvfp4a16", "--json")
    value = json.loads(printed)["time"]
    assert code == 0
    assert value["seconds"] == max(value["disk_s"], value["cores_s"])
    assert value["measured_read_nbytes_per_s"] > 0
    assert value["measured_write_nbytes_per_s"] is None
    _, printed, _ = halfbyte("plan", source, "-r", "kimi-k2.6-nvfp4a16", "--to", source.parent)
    line = next(line for line in printed.splitlines() if line.startswith("time"))
    assert "assumed" not in line
    assert "write" in line
    _, printed, _ = halfbyte("plan", source, "-r", "kimi-k2.6-nvfp4a16", "--no-measure")
    assert not any(line.startswith("time") for line in printed.splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(9.94, "9.9 s"), (100.9, "1 min 41 s"), (119.7, "2 min 00 s"), (5400, "1 h 30 min"), (7199, "2 h 00 min")],
)
def test_durations_are_not_rounded_twice(seconds, text):
    assert duration(seconds) == text
