"""Wrong scales that engines accept silently: each is rejected with the module's name."""

import pytest
import torch

from halfbyte.errors import CheckpointError
from halfbyte.serve.vllm_plugin.packed_tensors import refuse_different_scales, refuse_invalid_scales

E4M3 = torch.float8_e4m3fn


def nvfp4(**changes):
    return {
        "weight": torch.full((4, 16), 0x21, dtype=torch.uint8),
        "weight_scale": torch.ones(4, 2).to(E4M3),
        "weight_scale_2": torch.tensor(0.01),
        "input_scale": torch.tensor(0.02),
    } | changes


def one_wrong(value, dtype):
    scale = torch.ones(4, 2)
    scale[2, 1] = value
    return scale.to(dtype)


FINE = {
    "nvfp4": nvfp4(),
    "mxfp4": {"weight": torch.ones(4, 16, dtype=torch.uint8), "weight_scale": torch.zeros(4, 1, dtype=torch.uint8)},
    "int4": {"weight_packed": torch.ones(4, 8, dtype=torch.int32), "weight_scale": torch.ones(4, 2).bfloat16()},
    "fp8_channel": {"weight": torch.ones(4, 16).to(E4M3), "weight_scale": torch.ones(4, 1).bfloat16()},
    "fp8_block": {"weight": torch.ones(4, 16).to(E4M3), "weight_scale_inv": torch.ones(1, 1)},
}


@pytest.mark.parametrize("format", FINE)
def test_good_scales_pass(format):
    refuse_invalid_scales("m", format, FINE[format])


def test_a_zero_scale_above_zeros_is_a_block_of_zeros():
    packed = torch.full((4, 16), 0x21, dtype=torch.uint8)
    packed[2, 8:] = 0x80  # zero, and minus zero
    refuse_invalid_scales("m", "nvfp4", nvfp4(weight=packed, weight_scale=one_wrong(0, E4M3)))
    words = torch.ones(4, 8, dtype=torch.int32)
    words[2, 4:] = -0x77777778
    refuse_invalid_scales("m", "int4", {"weight_packed": words, "weight_scale": one_wrong(0, torch.bfloat16)})


NAN, INFINITY = float("nan"), float("inf")
SENSELESS = [
    *(("nvfp4", nvfp4(weight_scale_2=torch.tensor(v)), "weight_scale_2") for v in (0.0, -1.0, NAN, INFINITY)),
    *(("nvfp4", nvfp4(input_scale=torch.tensor(v)), "input_scale") for v in (0.0, -1.0, NAN, INFINITY)),
    *(("nvfp4", nvfp4(weight_scale=one_wrong(v, E4M3)), "weight_scale") for v in (0.0, -1.0, NAN)),
    *(
        ("nvfp4_ct", {"weight_packed": FINE["mxfp4"]["weight"], "weight_global_scale": torch.tensor(v)}, "global_scale")
        for v in (0.0, -1.0, NAN, INFINITY)
    ),
    ("mxfp4", FINE["mxfp4"] | {"weight_scale": torch.full((4, 1), 255, dtype=torch.uint8)}, "weight_scale"),
    *(
        ("int4", FINE["int4"] | {"weight_scale": one_wrong(v, torch.bfloat16)}, "weight_scale")
        for v in (0.0, -1.0, NAN, INFINITY)
    ),
    *(
        ("fp8_block", FINE["fp8_block"] | {"weight_scale_inv": torch.tensor([[v]])}, "weight_scale_inv")
        for v in (0.0, -1.0, NAN, INFINITY)
    ),
    *(
        ("fp8_channel", FINE["fp8_channel"] | {"weight_scale": torch.full((4, 1), v)}, "weight_scale")
        for v in (0.0, -1.0, NAN, INFINITY)
    ),
]


@pytest.mark.parametrize(("format", "tensors", "suffix"), SENSELESS)
def test_invalid_scales_are_refused(format, tensors, suffix):
    with pytest.raises(CheckpointError, match=suffix) as caught:
        refuse_invalid_scales("layers.1.mlp.experts.7.up_proj", format, tensors)
    assert "layers.1.mlp.experts.7.up_proj" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_different_scales_are_refused_where_engines_use_one():
    same, other = torch.tensor(0.25), torch.tensor(0.25) * (1 + 2**-20)
    refuse_different_scales("m", "input_scale", {"gate_proj": same, "up_proj": same.clone()})
    refuse_different_scales("m", "input_scale", {"down_proj": same})
    with pytest.raises(CheckpointError, match="input_scale of gate_proj and up_proj differ") as caught:
        refuse_different_scales("layers.1.mlp.experts.7", "input_scale", {"gate_proj": same, "up_proj": other})
    assert "layers.1.mlp.experts.7" in str(caught.value)
