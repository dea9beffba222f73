"""Comparison on the device and on the CPU: equal numbers where the arithmetic is the same.

It is in this folder because kernels decode the experts, and they are interpreted here.
"""

import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pico import write_pico

from halfbyte.calibrate.token_rows import Document, Share, packed_rows, padded_rows
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.compare import activations, models, stream
from halfbyte.compare import stream as compare_memory
from halfbyte.compare.models import open_planned_side, open_side
from halfbyte.compare.stream import Needs, compare, compare_many, needs, refuse_too_large
from halfbyte.engine.backends.cuda import backend as start
from halfbyte.engine.backends.cuda import experts as device_experts
from halfbyte.engine.backends.cuda import planned_experts
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.engine.planned_output import PlannedOutput, output_checkpoint, planned_output
from halfbyte.errors import MachineError, UsageError
from halfbyte.families.examples import example
from halfbyte.families.model import describe
from halfbyte.families.registry import text_model
from halfbyte.formats import emulated_activations
from halfbyte.recipe.load import load_recipe

GB = 10**9
SHAPE = {"layers": 2, "experts": 4, "hidden": 64, "expert_width": 32}
# Every way in which experts are stored; of the last one no stacks are made.
STORED = ("int4-k2.6", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct", "fp8-block-k2", "bf16", "fp8-channel")
DECODED = tuple(f"roles.{role}=bf16" for role in ("attention", "dense_mlp", "shared_experts"))
THERE = "cuda" if torch.cuda.is_available() else "cpu:0"


def rows(kind):
    random = np.random.default_rng(0)
    share = Share(
        "a", [Document(random.integers(0, 128, n).tolist(), "a") for n in (9, 30, 12, 20, 3, 40, 12, 5, 2)], 9
    )
    return packed_rows([share], 12, 0) if kind == "packed" else padded_rows([share], 12, 0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    for kind in STORED:
        write_pico(root / kind, kind, **SHAPE)
    quantize(root / "int4-k2.6", root / "made", load_recipe("kimi-k2.6-mxfp4-wafer"), threads=1, verify_source=False)
    return root


def compared(folders, names, device, kind="packed", first="int4-k2.6", **how):
    """Return the results of a device, without its name and time."""
    dtype = how.pop("dtype", torch.float32)
    with ExitStack() as stack:
        source = stack.enter_context(open_side(folders / first, dtype=dtype, device=device))
        others = [stack.enter_context(open_side(folders / name, dtype=dtype, device=device, **how)) for name in names]
        reports = [report.whole_record("all").as_json() for report in compare_many(rows(kind), source, others)]
    assert {report.pop("device") for report in reports} == {device}
    assert all(report.pop("seconds") > 0 for report in reports)
    return reports


def alike(ours, theirs):
    """Compare numbers: exact in the interpreter, approximate on a GPU, which adds in another order."""
    if THERE != "cuda":
        return ours == theirs
    pairs = zip(ours, theirs, strict=True)
    return all(a["total"]["kl"]["value"] == pytest.approx(b["total"]["kl"]["value"], rel=1e-3) for a, b in pairs)


def test_every_stored_format_gives_the_cpus_numbers(folders):
    ours, theirs = (compared(folders, STORED, device) for device in (THERE, "cpu"))
    assert alike(ours, theirs)
    assert ours[0]["total"]["kl"]["value"] == 0.0  # with itself
    assert all(report["total"]["kl"]["value"] > 0 for report in ours[1:])
    assert all(report["layers"][1]["routing_agreement"] is not None for report in ours)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("packed", {"activations": "as-served", "kv": "fp8"}),
        ("padded", {"dtype": torch.bfloat16}),
    ],
)
def test_what_is_emulated_gives_the_cpus_numbers(folders, kind, how):
    ours, theirs = (compared(folders, ["made"], device, kind, **how) for device in (THERE, "cpu"))
    assert alike(ours, theirs)
    assert ours != compared(folders, ["made"], THERE, kind)


def planned(folders, device, name, *, first="int4-k2.6", sets=(), kept=None, **how):
    """Return the results against the output of a recipe that is not written."""
    output = planned_output(folders / first, load_recipe(name, sets))
    if kept is not None:
        run_plan = plan(folders / first, load_recipe(name, sets), kept=kept)
        output = PlannedOutput(run_plan, output_checkpoint(run_plan), {})
    with (
        open_side(folders / first, device=device) as source,
        open_planned_side(output, device=device, **how) as other,
    ):
        report = compare(rows("packed"), source, other, by_layer=True)
        return {**report.record("all").as_json(), "device": "", "seconds": 0}, other.stored_nbytes


@pytest.mark.parametrize(
    ("name", "sets", "first", "device_encodes"),
    [
        ("kimi-k2.6-mxfp4-wafer", (), "int4-k2.6", True),
        ("kimi-k2.6-mxfp4a16", (), "bf16", True),
        ("kimi-k2.7-code-nvfp4-nvidia", (), "int4-k2.6", True),
        ("kimi-k2.7-code-nvfp4-nvidia", ("quantize.scales=mse",), "int4-k2.6", True),
        ("kimi-k2.6-nvfp4a16", DECODED, "fp8-block-k2", True),
        ("kimi-k2.6-fp8-reference", (), "int4-k2.6", False),
        ("kimi-k2.6-bf16", (), "int4-k2.6", False),
    ],
)
def test_a_recipe_gives_the_cpus_numbers(folders, monkeypatch, name, sets, first, device_encodes):
    """The kernels encode what the CPU encodes, and nothing else differs."""
    encoded = []
    real = planned_experts.LayerEncoder.groups
    monkeypatch.setattr(planned_experts.LayerEncoder, "groups", lambda self: encoded.append(self._format) or real(self))
    monkeypatch.setattr(planned_experts, "group_of", lambda stacks, slot: (3, slot))  # 4 experts: two groups
    how = {"first": first, "sets": sets, "kv": "fp8"}
    (ours, there), (theirs, here) = (planned(folders, device, name, **how) for device in (THERE, "cpu"))
    assert alike([ours], [theirs])
    assert bool(encoded) == device_encodes
    assert ours["total"]["kl"]["value"] > 0
    assert here == 0
    if device_encodes:  # a layer of the source and its encoded form
        with open_side(folders / first, device=THERE) as side:
            assert there > side.stored_nbytes > 0


@pytest.mark.parametrize("name", ["kimi-k2.6-mxfp4-wafer", "kimi-k2.6-bf16"])
def test_pruned_experts_have_the_numbers_of_the_output(folders, name):
    kept = {1: (1, 2, 3)}
    (ours, _), (theirs, _) = (planned(folders, device, name, kept=kept) for device in (THERE, "cpu"))
    assert alike([ours], [theirs])
    assert ours["total"]["kl"]["value"] > 0


def test_a_recipe_gives_the_numbers_of_its_output_on_the_device(folders):
    ours, _ = planned(folders, THERE, "kimi-k2.6-mxfp4-wafer", activations="as-served")
    (theirs,) = compared(folders, ["made"], THERE, activations="as-served")
    for key in ("total", "domains", "emulated"):
        assert ours[key] == theirs[key]
    assert [{**layer, "added_error": None} for layer in ours["layers"]] == [
        {**layer, "added_error": None} for layer in theirs["layers"]
    ]


def test_calibrated_scales_lie_where_they_are_divided_by(folders, monkeypatch):
    """By a number of the host, PyTorch multiplies with a rounded reciprocal on a GPU."""
    seen = []
    monkeypatch.setattr(emulated_activations, "nvfp4", lambda x, scale: seen.append(scale.device.type) or x)
    monkeypatch.setattr(models, "fp8", lambda x, scale: seen.append(scale.device.type) or x)
    checkpoint = open_checkpoint(folders / "nvfp4")
    with open_side(folders / "nvfp4") as side:
        elsewhere = replace(side, device="meta")
        served = activations.served_activations(elsewhere, checkpoint, describe(checkpoint))
        served.change(1)(0, "gate_up", torch.zeros(2, 64))
        scaled = models.cached_in_fp8(replace(elsewhere, tensors=lambda _: torch.tensor(0.5)), scaled=True)
        scaled.hook(0)("self_attn.latent", torch.zeros(2, 64))
    assert seen == ["meta", "meta"]


def test_experts_are_decoded_by_kernels_and_read_one_layer_ahead(folders, monkeypatch):
    decoded, read, taken = [], [], []
    decode, stage, take = device_experts.to_bf16, stream.Layers._stage, stream.Layers.take
    monkeypatch.setattr(device_experts, "to_bf16", lambda stack: decoded.append(stack.of.format) or decode(stack))
    monkeypatch.setattr(stream.Layers, "_stage", lambda self, side, at: read.append(at) or stage(self, side, at))
    monkeypatch.setattr(stream.Layers, "take", lambda self: taken.append(len(read)) or take(self))

    def settle(_):
        """Check that only the next layer is read while a layer runs."""
        end = time.monotonic() + 20
        while len(read) < min(len(taken) + 1, 4) and time.monotonic() < end:
            time.sleep(0.001)
        assert len(read) == min(len(taken) + 1, 4)

    monkeypatch.setattr(stream.Layers, "settle", settle)
    compared(folders, ["made"], THERE)
    assert set(decoded) == {"int4", "mxfp4"}
    assert read == [0, 0, 1, 1]
    assert len(taken) == 4


def test_no_gpu_is_said_before_anything_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="PyTorch detects no CUDA device"), open_side(tmp_path, device="cuda"):
        pass


def test_no_triton_is_said_before_anything_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "find_spec", lambda _: None)
    with pytest.raises(MachineError, match="Triton"), open_side(tmp_path, device="cpu:0"):
        pass


def test_sides_of_different_devices_are_refused(folders):
    with (
        open_side(folders / "bf16") as here,
        open_side(folders / "bf16", device=THERE) as there,
        pytest.raises(UsageError, match="different devices"),
    ):
        compare(rows("packed"), here, there)


def test_products_are_of_fp32_whatever_the_process_has_set(folders, monkeypatch):
    seen = []
    real = stream.Layers.take
    monkeypatch.setattr(
        stream.Layers, "take", lambda self: seen.append(torch.get_float32_matmul_precision()) or real(self)
    )
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        compared(folders, ["bf16"], "cpu", first="bf16")
        assert (set(seen), torch.get_float32_matmul_precision()) == ({"highest"}, "high")
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.fixture(scope="module")
def kimi():
    """Two models of Kimi-K2.6's published shape: INT4 and a slightly larger format."""
    text = text_model(example("kimi-k2.6").config)
    return [SimpleNamespace(model=text, dtype=torch.float32, stored_nbytes=size * GB) for size in (9, 10)]


def test_what_takes_memory_is_counted(kimi):
    small, large = needs((64, 512), 8, kimi), needs((128, 512), 8, kimi)
    assert small.row == large.row
    assert small.row >= 512 * 7168 * 4 * 4  # two hidden states, inputs and outputs of experts
    assert large.fixed - small.fixed < 5 * GB
    assert needs((128, 512), 8, [*kimi, kimi[0]]).row > large.row
    assert needs((128, 512), 8, kimi, by_layer=True).row - large.row == 512 * 7168 * 4  # the inputs of a layer
    assert needs((128, 512), 8, [*kimi, kimi[0]], by_layer=True).row - large.row > 3 * 512 * 7168 * 4
    bigger = [SimpleNamespace(model=s.model, dtype=s.dtype, stored_nbytes=2 * s.stored_nbytes) for s in kimi]
    assert needs((128, 512), 8, bigger).fixed - large.fixed == 19 * GB
    assert large.total(128) < 60 * GB


def test_what_does_not_fit_is_said_with_what_would(kimi, monkeypatch):
    with pytest.raises(MachineError, match=r"needs 12.0 GB of device memory, but only 9.0 GB are free") as error:
        refuse_too_large(Needs(GB, 2 * GB), 10, 9 * GB)
    assert error.value.fix == "use fewer rows (--samples 7), or --device cpu"
    refuse_too_large(Needs(GB, 2 * GB), 7, 9 * GB)
    with pytest.raises(MachineError) as error:
        refuse_too_large(Needs(GB, 2 * GB), 1, 2 * GB)
    assert error.value.fix == "use a GPU with more memory, or --device cpu"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(MachineError, match=r"but only 20.0 GB are free"):
        compare_memory.check_memory((128, 512), 8, kimi, SimpleNamespace(type="cuda"))
