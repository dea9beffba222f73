"""Output and arithmetic of `audit --engine vllm`, without vLLM; tests/vllm uses the real one."""

import pytest
import torch

from halfbyte.audit import vllm_check, vllm_load
from halfbyte.audit.vllm_check import findings
from halfbyte.audit.vllm_load import Writes, box_of, uncovered
from halfbyte.errors import MachineError

CLEAN = {
    "stage": "done",
    "error": None,
    "parameters": {"a": ["torch.uint8", [2]], "b.k_scale": ["torch.float32", []]},
    "tensors": 3,
    "dropped": [],
    "missing": [],
    "twice": [],
    "doubtful": [],
    "defaulted": ["b.k_scale"],
    "unused_kv_scales": [],
}


def meta(*shape, dtype=torch.uint8):
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_view_is_a_box_of_its_parameter():
    whole = meta(4, 6, 8)
    assert box_of(whole[2].narrow(0, 3, 3), whole) == ((2, 3), (3, 6), (0, 8))
    assert box_of(whole[3].narrow(1, 2, 4), whole) == ((3, 4), (0, 6), (2, 6))
    assert box_of(whole[1, 5, 7], whole) == ((1, 2), (5, 6), (7, 8))
    column = meta(4, 6, 1)  # strides 6, 1, 1
    assert box_of(column[2].narrow(0, 3, 3), column) == ((2, 3), (3, 6), (0, 1))


def test_a_view_that_is_no_box_is_no_guess():
    with pytest.raises(AssertionError, match="is not a box"):
        box_of(meta(4, 6).view(24)[::5], meta(4, 6))


def test_what_is_left_out_or_written_twice_is_named():
    first, second = ((0, 1), (0, 2), (0, 8)), ((0, 1), (2, 4), (0, 8))
    assert uncovered((1, 4, 8), [first, second]) == ([], [])
    assert uncovered((1, 4, 8), [first]) == (["[:, 2:4, :]"], [])
    assert uncovered((1, 4, 8), [first, first, second]) == ([], ["[:, 0:2, :]"])
    assert uncovered((3,), [((1, 2),)]) == (["[0]", "[2]"], [])
    assert uncovered((), []) == (["[]"], [])
    assert uncovered((), [(), ()]) == ([], ["[]"])


def test_writes_are_recorded_with_the_tensor_that_was_loaded():
    parameter = meta(2, 4)
    writes = Writes({"p": parameter})
    with writes:
        writes.current = "right"
        parameter.data[0].copy_(meta(4))
        writes.current = "of another type"
        parameter.data[1].copy_(meta(4, dtype=torch.bfloat16))
        writes.current = "too short"
        parameter.data[1].copy_(meta(1))
        writes.current = "elsewhere"
        meta(4).copy_(meta(4))
        writes.current = "nothing"
        parameter.data[2:].fill_(0)
    assert writes.used == {"right", "of another type", "too short"}
    assert writes.boxes == {"p": [((0, 1), (0, 4)), ((1, 2), (0, 4)), ((1, 2), (0, 4))]}
    assert [line.partition(":")[0] for line in writes.doubtful] == ["of another type", "too short"]


def test_whole_numbers_may_become_wider_and_floats_may_not_become_fp8():
    assert vllm_load.same_numbers(torch.int32, torch.int64)
    assert vllm_load.same_numbers(torch.bfloat16, torch.float32)
    assert not vllm_load.same_numbers(torch.int64, torch.int32)
    assert not vllm_load.same_numbers(torch.bfloat16, torch.float8_e4m3fn)
    assert not vllm_load.same_numbers(torch.uint8, torch.bfloat16)


def test_a_clean_load_passes():
    (finding,) = findings(CLEAN, "0.32.0")
    assert finding.level == "good"
    assert finding.text == "vLLM 0.32.0 loads 3 tensors and fills 1 parameter"


@pytest.mark.parametrize("kind", ["dropped", "missing", "twice", "doubtful"])
def test_whatever_is_wrong_fails(kind):
    (finding,) = findings({**CLEAN, kind: ["layers.1.w13_weight[7]", "another"]}, "0.32.0")
    assert finding.level == "bad"
    assert finding.text.startswith("2 ")
    assert finding.examples == ("layers.1.w13_weight[7]", "another")


def test_what_vllm_raises_is_shown_with_the_tensor():
    refused = {"stage": "load", "error": "KeyError: 'x'\nmore", "tensor": "layers.1.y"}
    (finding,) = findings(refused, "0.32.0")
    assert finding.level == "bad"
    assert finding.text == "vLLM fails at layers.1.y: KeyError: 'x'"


def test_unused_scales_of_the_kv_cache_are_a_note():
    assert [finding.level for finding in findings({**CLEAN, "unused_kv_scales": ["k"]}, "0.32.0")] == ["good", "note"]


def test_without_vllm_it_says_what_to_install(monkeypatch, pico, halfbyte):
    def absent(_):
        raise vllm_check.PackageNotFoundError("vllm")

    monkeypatch.setattr(vllm_check, "version", absent)
    with pytest.raises(MachineError, match="not installed"):
        vllm_check.vllm_version()
    code, _, said = halfbyte("audit", pico(), "--engine", "vllm")
    assert code == 3
    assert "make vllm" in said
