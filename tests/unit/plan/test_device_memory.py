"""Device memory of a run, computed from headers alone, with less memory, and the messages."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.backends.cuda.placement import (
    FULL,
    LEAN,
    MODES,
    ONE,
    choose_mode,
    group_of,
    needs_of,
    planned_tokens,
    stacks_by_layer,
)
from halfbyte.engine.device_plan import on_device, rates, work_by_layer
from halfbyte.engine.pipeline import plan
from halfbyte.errors import MachineError
from halfbyte.families.examples import example
from halfbyte.families.model import describe
from halfbyte.plan.machine_speed import Disk
from halfbyte.recipe.load import load_recipe

GB = 10**9
CARDS = 512 * 512  # tokens


@pytest.fixture(scope="module")
def planned():
    """Kimi-K2.6 as published, with the max rule, without weights."""
    return plan(example("kimi-k2.6"), load_recipe("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max"]))


@pytest.fixture(scope="module")
def need(planned):
    return needs_of(planned, CARDS)


def test_a_layer_is_counted_to_the_byte(planned):
    experts = [one for one in planned.model.linears.values() if one.role == "routed_experts" and one.layer == 1]
    stored = sum(info.nbytes for one in experts for suffix, info in one.parts.items() if suffix != "weight_shape")
    need = needs_of(planned, 0)
    assert need.layer == stored == 9_512_681_472
    assert need.output == sum(one.weights * 9 // 16 for one in experts)
    assert need.parts(FULL)["tokens"] == need.parts(FULL)["other_weights"] == 0
    assert need.total(FULL) - need.total(ONE) == stored


def test_the_other_weights_of_a_layer_are_counted_to_the_byte(planned, need):
    """In BF16: 101,122,048 of attention, then the dense MLP, or the shared expert; norms and router by their shapes."""
    assert need.others[0] == 2 * (101_122_048 + 3 * 7168 * 18432) + 4 * (2 * 7168 + 1536 + 512)
    small = 2 * 7168 + 1536 + 512 + 384 * 7168 + 384
    assert set(need.others[1:]) == {2 * (101_122_048 + 3 * 7168 * 2048) + 4 * small}
    assert need.parts(FULL)["other_weights"] == sum(need.others[:3])


def test_the_modes_of_the_cards_calibration(need):
    totals = [need.total(mode) for mode in MODES]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] < 60 * GB
    assert totals[-1] < 24 * GB
    states = CARDS * 7168 * 2
    assert need.parts(FULL)["tokens"] == 3 * states
    assert need.parts(LEAN)["tokens"] == 2 * states
    assert need.host(LEAN) == states


def test_no_part_is_below_what_was_measured(need):
    """An H200 allocated 61.8 GB with three layers at once and outputs of two: two layers' bytes above `full`."""
    assert 61.8 * GB < need.total(FULL) + need.layer + need.output < 66 * GB


def test_what_fits_decides_the_mode(need):
    for mode in MODES:
        assert choose_mode(need, need.total(mode), "here") == mode
    assert choose_mode(need, None, "here") == FULL
    for faster, slower in ((FULL, ONE), (ONE, LEAN)):
        assert choose_mode(need, need.total(faster) - 1, "here") == slower


def test_the_setting_that_is_named_fits(planned, need):
    with pytest.raises(MachineError, match=r"needs at least 2\d\.\d GB of device memory.*72 % of the tokens") as raised:
        choose_mode(need, 20 * GB, "here")
    assert raised.value.exit_code == 3
    fewer = needs_of(planned, CARDS * 72 // 100)
    assert 19 * GB < fewer.total(LEAN) <= 20 * GB


def test_a_device_that_holds_no_layer_is_sent_to_the_cpu(planned):
    for tokens in (0, CARDS):
        with pytest.raises(MachineError, match="--device cpu"):
            choose_mode(needs_of(planned, tokens), 8 * GB, "here")


def test_without_data_only_the_output_is_in_groups(planned):
    need = needs_of(planned, 0)
    group, slot = group_of(stacks_by_layer(planned, 61, forward=False), 1 << 28)
    assert need.group == group * 3 * 2048 * 7168 * 9 // 16 <= slot
    assert need.parts(LEAN)["output"] == 3 * need.group
    assert need.total(LEAN) < 13 * GB


def test_the_sweep_takes_its_list(planned):
    swept = plan(example("kimi-k2.6"), load_recipe("kimi-k2.6-nvfp4-nvidia"))
    assert needs_of(swept, 0).encode - needs_of(planned, 0).encode == 8 << 24


def test_stored_formats_that_go_through_bf16_take_a_group_of_it(pico):
    others = [f"roles.{role}=bf16" for role in ("attention", "shared_experts", "dense_mlp")]
    recipe = load_recipe("kimi-k2.6-nvfp4a16", others)
    direct, through = (needs_of(plan(pico(kind), recipe), 0) for kind in ("bf16", "fp8-block-k2"))
    experts = [one for one in describe(open_checkpoint(pico("bf16"))).linears.values() if one.layer == 1]
    matrices = [one.weights for one in experts if one.role == "routed_experts"]
    assert direct.output == through.output == sum(matrices) * 9 // 16
    assert through.encode - direct.encode == len(matrices) // 3 * max(matrices) * 2  # all of them are one group
    assert needs_of(plan(pico("fp8-block-k2"), load_recipe("kimi-k2.6-bf16")), 0).output == 0


def test_time_by_hand(planned):
    at, tokens = rates(), planned_tokens(planned)
    assert tokens == CARDS
    found = on_device(planned, None, None)
    dense, moe = 101_122_048 + 3 * 7168 * 18432, 101_122_048 + 9 * 3 * 7168 * 2048 + 384 * 7168 + 384
    layers = work_by_layer(planned, tokens)
    assert [work.flop for work in layers] == [2 * CARDS * dense, *[2 * CARDS * moe] * 60]
    weights = 60 * 384 * 3 * 2048 * 7168
    gpu = 2 * CARDS * (dense + 60 * moe) / at.forward_flop_per_s + weights / at.encode_weights_per_s
    assert found.time.waits["GPU"] == pytest.approx(gpu)
    assert found.time.waits["bus"] == pytest.approx(60 * found.needs.output / at.to_host_nbytes_per_s, rel=1e-3)
    assert found.time.waits["host"] == pytest.approx(planned.write_nbytes / at.host_write_nbytes_per_s)
    assert found.time.seconds == at.start_s + at.compile_s + found.time.waits["host"]
    assert 1.5 < found.time.moe_layer_s < 1.8  # measured: 1.13 and 1.63 s on the GPU, 1.7 s until shards are final
    disk = on_device(planned, Disk(1e9, None, True), None).time
    assert disk.seconds == pytest.approx(at.start_s + at.compile_s + (planned.read_nbytes + planned.write_nbytes) / 1e9)
    lean = on_device(planned, None, 24 * GB).time
    assert lean.mode == LEAN
    assert lean.seconds == pytest.approx(at.start_s + at.compile_s + sum(lean.waits.values()))
    assert "assumed: no overlap" in lean.basis()


def test_rates_are_those_of_the_results():
    """The rates in gpu_rates.json, recomputed from the committed results."""
    found = json.loads((Path(__file__).parents[3] / "benchmarks/results/h200_202611.json").read_text())
    again, at = found["memory, max again"], rates()
    work = again["work"]
    flop = 2 * 262_144 * (497_483_776 + 3 * 500_236_288)
    forward = work["attention"]["seconds"] + work["experts"]["seconds"]
    assert at.forward_flop_per_s == pytest.approx(flop / forward, rel=0.01)
    for name, rate in (("to the device", at.to_device_nbytes_per_s), ("to the host", at.to_host_nbytes_per_s)):
        assert rate == pytest.approx(work[name]["nbytes"] / work[name]["seconds"], rel=0.01)
    final = [at for what, at in again["events"] if what.startswith(tuple(f"model-0000{n}" for n in range(1, 7)))]
    assert at.host_write_nbytes_per_s == pytest.approx(5e9 * 5 / (final[-1] - final[0]), rel=0.01)
    assert at.start_s == pytest.approx(found["memory, max"]["layer_ends"][0], abs=0.1)
    rehearsed = json.loads((Path(__file__).parents[3] / "benchmarks/results/rehearsal_h200_202611.json").read_text())
    gptq, plain = (
        next(row for title, row in rehearsed["rows"].items() if title.startswith(name))["work"]
        for name in ("nvfp4-gptq", "reap192")
    )
    seconds = gptq["encode"]["seconds"] + gptq["experts"]["seconds"] - plain["experts"]["seconds"]
    assert at.gptq_weights_per_s == pytest.approx(60 * 384 * 3 * 2048 * 7168 / seconds, rel=0.01)


def test_gptq_is_estimated_with_its_own_rate():
    """Measured: 484 s for the pass and 34 s before it."""
    planned = plan(
        example("kimi-k2.6"),
        load_recipe("kimi-k2.6-nvfp4-gptq", ["calibrate.samples=512", "calibrate.sequence_length=512"]),
    )
    found = on_device(planned, None, None)
    assert 60e9 < found.needs.total(FULL) < 80e9  # measured: 65 GB
    assert 400 < found.time.seconds < 600


def test_plan_states_it_without_torch():
    code = (
        "import sys\nfrom halfbyte.cli.main import run\n"
        "ask = 'plan --example kimi-k2.6 -r kimi-k2.6-nvfp4-nvidia --set quantize.scales=max --device cuda --json'\n"
        "code = run(ask.split())\n"
        "assert code == 0\nassert not {'torch', 'triton', 'transformers'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    memory = found["device"]["memory"]
    assert found["device"]["mode"] == "full"
    assert found["device"]["tokens"] == CARDS
    assert memory.keys() == {"full", "one", "lean"}
    for parts in memory.values():
        held = {name: n for name, n in parts.items() if name not in ("total_nbytes", "host_nbytes")}
        assert sum(held.values()) == parts["total_nbytes"]
    assert memory["lean"]["total_nbytes"] < 24 * GB
    assert found["time"]["rates_of"] == "H200"
    assert 100 < found["time"]["seconds"] < 150


def test_the_command_says_it(pico, halfbyte):
    source = pico()
    code, printed, _ = halfbyte("plan", source, "-r", "kimi-k2.6-nvfp4a16", "--device", "cuda")
    assert code == 0
    assert "GPU, full" in printed
    assert "GPU, lean" in printed
    assert "rates of one H200" in printed
    assert "measured here: read" in printed
    code, printed, _ = halfbyte("plan", source, "-r", "kimi-k2.6-nvfp4a16", "--device", "cuda", "--no-measure")
    assert "GPU, full" in printed
    assert "\ntime" not in printed
    code, _, errors = halfbyte("plan", source, "-r", "kimi-k2.6-nvfp4a16", "--device", "cuda", "--device-memory", "1GB")
    assert code == 3
    assert "needs at least" in errors


@pytest.mark.parametrize(("memory", "says"), [("24GB", "add --device cuda"), ("much", "use a size like 24GB")])
def test_memory_that_means_nothing_is_refused(pico, halfbyte, memory, says):
    device = ["--device", "cuda"] if memory == "much" else []
    code, _, errors = halfbyte("plan", pico(), "-r", "kimi-k2.6-nvfp4a16", *device, "--device-memory", memory)
    assert code == 2
    assert says in errors


@pytest.mark.parametrize(
    ("free", "limit", "mode", "share"),
    [(100, None, FULL, 1.0), (100, 24, LEAN, 23.4 / 141), (23, 80, LEAN, 79.4 / 141), (40, None, ONE, 1.0)],
)
def test_the_smaller_of_what_is_free_and_what_is_allowed(planned, monkeypatch, free, limit, mode, share):
    torch = pytest.importorskip("torch")
    from halfbyte.engine.backends.cuda.backend import mode_of

    shares = gpus_with(monkeypatch, torch.cuda, {"cuda:0": free})
    rows = SimpleNamespace(tokens=np.empty((512, 512), np.int32))
    found = mode_of(planned, SimpleNamespace(rows=rows), [torch.device("cuda:0")], limit and limit * GB)
    assert found == (needs_of(planned, CARDS), mode)
    assert shares == [pytest.approx(share)]


def gpus_with(monkeypatch, cuda, free):
    """Simulate GPUs with this much free memory; return the list of allocator limits."""
    shares = []
    monkeypatch.setattr(cuda, "mem_get_info", lambda device: (free[str(device)] * GB, 141 * GB))
    monkeypatch.setattr(cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(cuda, "device", nullcontext)
    monkeypatch.setattr(cuda, "set_per_process_memory_fraction", shares.append)
    return shares


@pytest.mark.parametrize(
    ("names", "limit", "mode", "allowed"),
    [
        (["cuda:0", "cuda:1"], None, FULL, [1.0, 1.0]),
        (["cuda:0", "cuda:2"], None, LEAN, [1.0, 1.0]),  # the smallest decides
        (["cuda:2", "cuda:0"], 60, LEAN, [59.4 / 141] * 2),
        (["cuda:0", "cuda:1"], 20, LEAN, [19.4 / 141] * 2),
        (["cuda:2", "cuda:2"], None, None, [1.0, 1.0]),  # one that is named twice has half of it each time
        (["cuda:0", "cuda:0"], 20, LEAN, [39.4 / 141] * 2),
    ],
)
def test_the_smallest_of_several(planned, monkeypatch, names, limit, mode, allowed):
    torch = pytest.importorskip("torch")
    from halfbyte.engine.backends.cuda.backend import mode_of

    shares = gpus_with(monkeypatch, torch.cuda, {"cuda:0": 100, "cuda:1": 90, "cuda:2": 20})
    calibration = SimpleNamespace(rows=SimpleNamespace(tokens=np.empty((512, 512), np.int32)))
    devices = [torch.device(name) for name in names]
    if mode is None:
        with pytest.raises(MachineError, match=r"but 10\.0 GB are available"):
            mode_of(planned, calibration, devices, None)
    else:
        assert mode_of(planned, calibration, devices, limit and limit * GB) == (
            needs_of(planned, CARDS // 2, devices=2),
            mode,
        )
    assert shares == pytest.approx(allowed)


@pytest.mark.parametrize(
    ("recipe", "sets", "said"),
    [
        ("kimi-k2.6-nvfp4-wafer", ["quantize.input_scale.backstop=all_experts"], "the backstop all_experts is not"),
    ],
)
def test_a_plan_promises_nothing_that_a_run_refuses(pico, halfbyte, recipe, sets, said):
    sets = [f"--set={setting}" for setting in (*sets, *["quantize.input_scale.min_tokens=8"] * bool(sets))]
    code, _, errors = halfbyte("plan", pico(), "-r", recipe, *sets, "--device", "cuda", "--no-measure")
    assert code == 2
    assert said in errors
