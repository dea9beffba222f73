"""Device names, the work of each of several devices, and rejected values."""

import numpy as np
import pytest

from halfbyte.calibrate.token_rows import Rows
from halfbyte.engine.backends.cuda.placement import (
    FULL,
    LEAN,
    expert_shares,
    most_rows,
    needs_of,
    planned_tokens,
    refuse_too_many,
    row_shares,
)
from halfbyte.engine.device_plan import on_device
from halfbyte.engine.pipeline import plan
from halfbyte.errors import MachineError, UsageError
from halfbyte.families.examples import example
from halfbyte.machine.device_option import TWICE, device_kind, device_names
from halfbyte.recipe.load import load_recipe

RECIPE = "kimi-k2.6-nvfp4-nvidia"


@pytest.mark.parametrize(
    ("text", "names", "kind"),
    [
        ("cpu", ["cpu"], "cpu"),
        ("cuda", ["cuda"], "cuda"),
        ("cuda:1", ["cuda:1"], "cuda"),
        ("cuda:0,cuda:1", ["cuda:0", "cuda:1"], "cuda x2"),
        ("cuda:3, cuda:0,cuda:12", ["cuda:3", "cuda:0", "cuda:12"], "cuda x3"),
    ],
)
def test_names_and_kinds(text, names, kind):
    assert device_names(text) == names
    assert device_kind(text) == kind


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu", "invalid device 'gpu'"),
        ("", "invalid device ''"),
        ("cuda:", "invalid device 'cuda:'"),
        ("cuda:01", "invalid device 'cuda:01'"),
        ("cuda:0,", "invalid device ''"),
        ("cuda,cuda:1", "'cuda' needs a GPU number in a list of devices"),
        ("cuda:0,cpu:0", "GPUs cannot be combined with the CPU"),
        ("cuda:1,cuda:0,cuda:1", "cuda:1 is listed twice"),
    ],
)
def test_invalid_device_names_are_refused(text, says, halfbyte, tmp_path):
    with pytest.raises(UsageError, match=says):
        device_names(text)
    code, _, errors = halfbyte("quantize", tmp_path, tmp_path / "out", "-r", RECIPE, "--device", text)
    assert code == 2
    assert says in " ".join(errors.split())


def test_a_gpu_may_be_listed_twice_with_the_test_variable(monkeypatch):
    monkeypatch.setenv(TWICE, "1")
    assert device_kind("cuda:0,cuda:0") == "cuda x2"


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("cuda:0,cuda:1", "runs on the first GPU only"),
        ("cuda:1", "runs on the first GPU only"),
        ("cpu:0", "is not a valid device"),
    ],
)
def test_compare_takes_a_single_device(halfbyte, tmp_path, device, says):
    code, _, errors = halfbyte("compare", tmp_path, tmp_path, "--device", device)
    assert code == 2
    assert says in errors


def test_a_missing_gpu_is_named_in_the_error(monkeypatch):
    torch = pytest.importorskip("torch")
    from halfbyte.engine.backends.cuda.backend import check_machine, devices_of

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_machine(*devices_of("cuda:0,cuda:1"))
    with pytest.raises(MachineError, match="cuda:2 does not exist: PyTorch detects 2 GPUs"):
        check_machine(*devices_of("cuda:0,cuda:2"))


@pytest.mark.parametrize("rows", [64, 130, 512, 1000])
@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_rows_are_split_between_parts(rows, devices):
    shares = row_shares(rows, devices)
    assert [row for share in shares for row in range(rows)[share]] == list(range(rows))
    assert all(share.start % 64 == 0 for share in shares)
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) == most_rows(rows, devices)
    parts = [-(-length // 64) for length in lengths]
    assert max(parts) - min(parts) <= 1
    if min(lengths) == 0:
        with pytest.raises(UsageError, match=f"{rows} rows of tokens cannot be split over {devices} GPUs"):
            refuse_too_many(rows, devices)
    else:
        refuse_too_many(rows, devices)


def test_too_many_devices_are_refused_with_the_possible_number():
    with pytest.raises(UsageError) as caught:
        refuse_too_many(130, 8)
    assert caught.value.fix == "use 3 of the GPUs, or --samples 512"
    refuse_too_many(1, 1)


@pytest.mark.parametrize(("experts", "lengths"), [(384, [128, 128, 128]), (4, [1, 1, 2]), (2, [0, 1, 1])])
def test_experts_are_split_in_order(experts, lengths):
    shares = expert_shares(experts, 3)
    assert [expert for share in shares for expert in range(experts)[share]] == list(range(experts))
    assert [share.stop - share.start for share in shares] == lengths


def test_selected_rows_slice_every_array():
    tokens = np.arange(12, dtype=np.int32).reshape(4, 3)
    domains = tokens.astype(np.int16)
    rows = Rows(tokens, tokens > 1, tokens + 1, tokens + 2, domains, ("a",), left_padded=True)
    part = rows.select(slice(2, 4))
    for name in ("tokens", "real", "positions", "documents", "domains"):
        np.testing.assert_array_equal(getattr(part, name), getattr(rows, name)[2:])
    assert (part.names, part.left_padded) == (rows.names, rows.left_padded)


def test_memory_plan_of_each_of_several_gpus():
    """By hand: half the tokens and half the output, but all experts of a layer."""
    planned = plan(example("kimi-k2.6"), load_recipe(RECIPE))
    assert planned_tokens(planned, 2) == 256 * 512
    assert planned_tokens(planned, 3) == 192 * 512
    one, two = needs_of(planned, 512 * 512), needs_of(planned, 256 * 512, devices=2)
    assert (two.layer, two.others) == (one.layer, one.others)
    assert (2 * two.output, 2 * two.states, 2 * two.routed) == (one.output, one.states, one.routed)
    assert (two.group, two.forward, two.experts) == (one.group, one.forward, one.experts)
    for mode in (FULL, LEAN):
        assert two.total(mode) < one.total(mode)
    both, alone = on_device(planned, None, None, 2), on_device(planned, None, None)
    assert both.needs == two
    assert both.time.waits["GPU"] == pytest.approx(alone.time.waits["GPU"] / 2)
    assert both.time.waits["host"] == alone.time.waits["host"]
    assert "assumed: 2 GPUs divide forward and encoding" in both.time.basis()
    assert "not measured" not in alone.time.basis()


def test_plan_prints_the_memory_of_each_gpu(halfbyte):
    arguments = ("plan", "--example", "kimi-k2.6", "-r", RECIPE, "--no-measure", "--device", "cuda:0,cuda:1")
    code, printed, hint = halfbyte(*arguments)
    assert code == 0
    assert "each of 2 GPUs, full" in printed
    assert "with 131,072 tokens" in printed
    assert "--device cuda:0,cuda:1" in printed + hint
    code, _, errors = halfbyte(*arguments[:-1], ",".join(f"cuda:{at}" for at in range(9)))
    assert code == 2
    assert "512 rows of tokens cannot be split over 9 GPUs" in errors
