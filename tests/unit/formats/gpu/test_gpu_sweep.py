"""The sweep of block scales on the GPU equals the CPU codec and exact integers, for every block."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from halfbyte.errors import TensorError
from halfbyte.formats.codec import amax, decode, encode
from halfbyte.formats.encoded import Encoded, Quality
from halfbyte.formats.gpu import sweep
from halfbyte.formats.gpu.sweep import _FP32_TO_HALVES, _reciprocal_of, _square_of_distance
from halfbyte.formats.reference import floats, int4
from halfbyte.formats.reference.sweep import block_scale_mse

RNG = np.random.default_rng(20261115)
SHAPE = (6, 384)  # 144 blocks: no multiple of a tile


def bf16(values):
    return floats.f32_to_bf16(np.asarray(values, np.float32))


def gaussian(shape=SHAPE, size=0.02):
    return bf16(RNG.standard_normal(shape) * size)


def small_blocks():
    """Blocks up to 2^24 below the tensor's largest weight: E4M3's subnormals, and blocks that round to 0."""
    exponents = np.repeat(RNG.integers(-24, 1, (SHAPE[0], SHAPE[1] // 16)), 16, axis=1)
    return bf16(RNG.standard_normal(SHAPE) * 2.0**exponents)


def mixed():
    """Zero blocks, -0.0, subnormals, an outlier, and ordinary weights together."""
    w = gaussian()
    w[0, :48] = 0
    w[1, :64] = 0x8000
    w[2, :48] = RNG.integers(1, 128, 48)
    w[3, 5] = bf16([3e4])[0]
    w[5] = bf16(RNG.standard_normal(SHAPE[1]) * 10.0 ** RNG.integers(-12, 3, SHAPE[1]))
    return w


MATRICES = {
    "gaussian": gaussian(),
    "mixed": mixed(),
    "zero": np.zeros(SHAPE, np.uint16),
    "small blocks": small_blocks(),
    "powers of two": bf16(2.0 ** RNG.integers(-6, 3, SHAPE)),
    "40 binades": bf16(RNG.standard_normal(SHAPE) * 2.0 ** RNG.integers(-40, 3, SHAPE)),
    "huge": bf16(RNG.standard_normal(SHAPE) * 2.0 ** RNG.integers(90, 125, SHAPE)),
    "subnormal": RNG.integers(0, 300, SHAPE).astype(np.uint16),
}


# Blocks with several scales of exactly the same loss, where rounded sums prefer a larger one: amax, {weights: winner}.
FP32_IS_WRONG = (
    (1.40625, {"3EAB3DC30000000000003D433DC33E923E743DC33D433DC33E123D433E433D43": 114}),
    (1.3984375, {"3EF13F533E713DF13DF13E713E713F353EB53F353DF13E713EB5000000000000": 119}),
)
FP64_IS_WRONG = (
    1.40625,
    {
        "3D303DB03D303E9A3DB03DB0347F3D303DB03D303E043D303D303E843D300000": 107,
        "3D1D3D1D3E1D3E893D1D3D9D3DEC3E1D34B93D1D3D9D00003E1D000000003E44": 106,
        "3DF33E733D733DF33E733D733E363D733E733DF333E73D733ED53DF33E733DF3": 111,
        "3E7A3D483E963E7A3E7A3E7A3E7A3D483E7A33913E483E163E483E7A3E163EAF": 111,
        "3E5233793D8C3E523E5200003E0C3D8C3E8C3E0C3EAF3E8C00003E523E520000": 108,
    },
)


def kernel_of_distances():
    """Decorate the kernel here, because Triton's interpreter is enabled only during tests."""

    @triton.jit
    def distances(target_ptr, step_ptr, out_ptr, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)
        step = tl.load(step_ptr + at)
        square = _square_of_distance(tl.load(target_ptr + at), step, _reciprocal_of(step), _FP32_TO_HALVES)
        tl.store(out_ptr + at, square)

    return distances


@pytest.fixture(autouse=True)
def larger_tiles(monkeypatch, device):
    """Use larger tiles: the interpreter takes the same time for small and large ones."""
    if device.type == "cpu":
        monkeypatch.setattr(sweep, "_TILE", 512)
        monkeypatch.setattr(sweep, "_CLOSE_TILE", 512)


def stacked(arrays, device):
    """Stack into one tensor; BF16 patterns become BF16."""
    stack = np.stack(arrays)
    tensor = torch.from_numpy(stack.view(np.int16) if stack.dtype == np.uint16 else stack).to(device)
    return tensor.view(torch.bfloat16) if stack.dtype == np.uint16 else tensor


def swept_bf16(matrices, tops, device):
    weight, largest = stacked(matrices, device), torch.tensor(tops, dtype=torch.float32, device=device)
    swept = sweep.sweep_bf16(weight, largest)
    undecided = sweep.settle_bf16(swept, weight, largest)
    return swept.scale.cpu().numpy(), undecided


def swept_int4(sources, tops, device):
    packed = stacked([source.tensors["weight_packed"] for source in sources], device)
    scale = stacked([source.tensors["weight_scale"] for source in sources], device)
    largest = torch.tensor(tops, dtype=torch.float32, device=device)
    swept = sweep.sweep_int4(packed, scale, largest)
    undecided = sweep.settle_int4(swept, packed, scale, largest)
    return swept.scale.cpu().numpy(), undecided


def on_cpu(source, top=None):
    return encode(source, "nvfp4", method="mse", amax=top).tensors["weight_scale"]


def from_codes(q, scale):
    shape = np.array(q.shape, np.int32)
    tensors = {"weight_packed": int4.pack(q.astype(np.int8)), "weight_scale": scale, "weight_shape": shape}
    return Encoded("int4", q.shape, tensors, Quality(q.size, 0, 0, 0, 0))


def test_bf16_stack_equals_the_cpu(device):
    """One launch, an amax for each expert, from 2^-133 to 2^127."""
    matrices = list(MATRICES.values())
    made, _ = swept_bf16(matrices, [amax(w) for w in matrices], device)
    for name, w, scale in zip(MATRICES, matrices, made, strict=True):
        np.testing.assert_array_equal(scale, on_cpu(w), err_msg=name)


@pytest.mark.parametrize(
    ("group", "names"),
    [(32, ("gaussian", "mixed", "small blocks", "40 binades", "subnormal")), (64, ("mixed",)), (128, ("gaussian",))],
)
def test_int4_stack_equals_the_cpu(device, group, names):
    sources = [encode(MATRICES[name], "int4", group=group) for name in names]
    made, _ = swept_int4(sources, [amax(source) for source in sources], device)
    for name, source, scale in zip(names, sources, made, strict=True):
        np.testing.assert_array_equal(scale, on_cpu(source), err_msg=name)


@pytest.mark.parametrize("largest_exponent", [6, 127, 249])
def test_int4_equals_the_cpu_for_all_magnitudes_and_scales(device, largest_exponent):
    """Codes down to -8, both signs of the scale, blocks of few distinct codes, scales 15 binades apart."""
    q = RNG.integers(-8, 8, (24, 256))
    q[:8] = np.sign(q[:8]) * RNG.integers(1, 9, (8, 1))
    q[8:16] //= 2
    exponent = np.maximum(largest_exponent - RNG.integers(0, 16, (24, 1)), 0)
    scale = (RNG.integers(0, 1 << 16, (24, 8)) & 0x807F) | (exponent << 7)
    source = from_codes(np.clip(q, -8, 7), scale.astype(np.uint16))
    made, _ = swept_int4([source], [amax(source)], device)
    np.testing.assert_array_equal(made[0], on_cpu(source))


def test_a_zero_group_may_have_any_scale(device):
    q = np.zeros((2, 64), np.int8)
    q[1, 32:] = RNG.integers(-7, 8, 32)
    source = from_codes(q, np.array([[0x7F7F, 0], [0x7F00, 0x3C12]], np.uint16))
    top = float(np.abs(floats.bf16_to_f32(decode(source))).max())
    made, _ = swept_int4([source], [top], device)
    np.testing.assert_array_equal(made[0], block_scale_mse(decode(source), np.float32(top)))


@pytest.mark.parametrize("top", [1.5, 2.0**100])
def test_under_a_shared_amax(device, top):
    source = encode(gaussian((4, 64)), "int4")
    expected = block_scale_mse(decode(source), np.float32(top))
    np.testing.assert_array_equal(swept_int4([source], [top], device)[0][0], expected)
    np.testing.assert_array_equal(swept_bf16([decode(source)], [top], device)[0][0], expected)


def test_some_experts_at_a_time(device, monkeypatch):
    monkeypatch.setattr(sweep, "_BLOCKS_AT_ONCE", 300)  # two experts of 144 blocks
    sources = [encode(gaussian(), "int4") for _ in range(3)]
    made, _ = swept_int4(sources, [amax(source) for source in sources], device)
    np.testing.assert_array_equal(made, [on_cpu(source) for source in sources])


@pytest.mark.parametrize("listed", [1, 1 << 16])
def test_what_fp64_cannot_decide_is_decided_in_integers(device, monkeypatch, listed):
    """Weights 60 binades apart exceed any FP64 sum. A list that is too short is handled too."""
    monkeypatch.setattr(sweep, "_UNDECIDED_LISTED", listed)
    monkeypatch.setattr(sweep, "_BLOCKS_AT_ONCE", 1)  # one expert at a time
    w = [bf16(RNG.standard_normal((4, 128)) * 2.0 ** RNG.integers(-60, 3, (4, 128))) for _ in range(2)]
    made, undecided = swept_bf16(w, [amax(one) for one in w], device)
    assert undecided > 1
    for one, scale in zip(w, made, strict=True):
        np.testing.assert_array_equal(scale, block_scale_mse(one, np.float32(amax(one))))


def test_true_ties_go_to_fp64_and_no_further(device, monkeypatch):
    """A third of all INT4 blocks has two scales of equal loss; few of them are close, and none is left to the host."""
    monkeypatch.setattr(sweep, "_TILE", 4096)
    weight = np.random.default_rng(1).standard_normal((32, 2048), np.float32)
    source = encode(weight, "int4")
    packed, scale = (stacked([source.tensors[name]], device) for name in ("weight_packed", "weight_scale"))
    swept = sweep.sweep_int4(packed, scale, torch.tensor([amax(source)], device=device))
    assert 0 < int(swept.close.sum()) < swept.scale.numel() // 50
    assert int(swept.count) == 0


def test_ties_that_rounded_sums_decide_wrongly(device):
    """FP64 decides ties of FP32, and integers those of FP64."""
    for (top, winners), left in ((FP32_IS_WRONG[0], 0), (FP32_IS_WRONG[1], 0), (FP64_IS_WRONG, 5)):
        weights = np.frombuffer(bytes.fromhex("".join(winners)), ">u2").astype(np.uint16).reshape(-1, 16)
        made, undecided = swept_bf16([weights], [top], device)
        assert made.ravel().tolist() == list(winners.values())
        assert undecided == left


def test_distances_on_grid_points_and_thresholds(device):
    """For every mantissa of v and g; on powers of two and halfway between two codes rounding is most difficult."""
    steps = (np.arange(8, 16)[:, None] / 8 * (np.arange(128, 256) / 128)).ravel()
    target = (np.arange(0, 8, 0.25)[:, None] * steps).astype(np.float32).ravel()
    step = np.tile(steps, 32).astype(np.float32)
    out = torch.empty(step.size, device=device)
    arguments = (torch.from_numpy(target).to(device), torch.from_numpy(step).to(device), out, step.size)
    kernel_of_distances()[(1,)](*arguments)
    grid = floats.E2M1_VALUES.astype(np.float64)[:, None] * step
    np.testing.assert_array_equal(out.cpu().numpy(), ((target - grid) ** 2).min(axis=0).astype(np.float32))


def test_what_does_not_fit_is_refused(device):
    weight, top = torch.zeros(2, 4, 32, dtype=torch.bfloat16, device=device), torch.ones(2, device=device)
    for bad_weight, bad_top in ((weight, top[:1]), (weight[:, :, :24].contiguous(), top), (weight[..., ::2], top)):
        with pytest.raises(TensorError):
            sweep.sweep_bf16(bad_weight, bad_top)
