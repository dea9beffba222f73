"""Invalid input is rejected by name, with one error, before a kernel runs."""

import dataclasses

import numpy as np
import pytest
from encode_arguments import encode_arguments

from halfbyte.errors import TensorError, UsageError
from halfbyte.formats.codec import decode, encode
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.reference import floats, int4
from halfbyte.formats.registry import FORMATS

RNG = np.random.default_rng(20260802)
METHODS = [(name, method) for name, row in FORMATS.items() for method in row.encodes]


def bf16(values):
    return floats.f32_to_bf16(np.asarray(values, np.float32))


ORDINARY = bf16(RNG.standard_normal((16, 128)) * 0.02)
POWERS = bf16(2.0 ** RNG.integers(-4, 3, (16, 64)).astype(np.float32))
INT4_GRID = int4.decode(*int4.encode_kimi(bf16(RNG.standard_normal((24, 256)) * 0.03)))

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64", ">u2", ">f4"]


@pytest.mark.parametrize("format", [name for name, row in FORMATS.items() if row.encodes])
def test_stored_tensors_of_any_other_dtype_are_refused_or_the_same_bits(format):
    """Kernels index memory by dtype: a wrong one must be rejected earlier."""
    made = encode(POWERS, format)
    whole = decode(made)
    for suffix, tensor in made.tensors.items():
        for dtype in DTYPES:
            if (format, suffix, dtype) == ("fp8_channel", "weight_scale", "float32"):
                continue  # some writers store these scales in F32, so it is read as values
            for other in (as_dtype(tensor, dtype), *([tensor.view(dtype)] if same_size(tensor, dtype) else [])):
                changed = dataclasses.replace(made, tensors={**made.tensors, suffix: other})
                try:
                    found = decode(changed)
                except TensorError as error:
                    assert suffix in str(error)
                    continue
                np.testing.assert_array_equal(found, whole, err_msg=f"{suffix} {dtype}")


def as_dtype(tensor, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        return tensor.astype(dtype)


def same_size(tensor, dtype):
    return tensor.ndim and tensor.dtype.itemsize == np.dtype(dtype).itemsize and np.dtype(dtype).isnative


@pytest.mark.parametrize("format", [name for name, row in FORMATS.items() if row.encodes])
def test_what_pytorch_holds_can_be_decoded(format):
    made = encode(INT4_GRID, format)
    read_back = Encoded(format, made.shape, made.to_torch())
    np.testing.assert_array_equal(decode(read_back), decode(made))


@pytest.mark.parametrize(("format", "method"), METHODS)
@pytest.mark.parametrize("pattern", [0x0001, 0x0080, 0x0400, 0x0600, 0x7E00, 0x7F7F])
def test_uniform_tensors_of_any_size_are_decodable_or_refused(format, method, pattern):
    w = np.full((1, 32), pattern, np.uint16)
    try:
        made = encode(w, format, **encode_arguments(method, 32))
    except TensorError as error:
        assert (format, method) in [("nvfp4_ct", "max"), ("nvfp4_ct", "mse")]
        assert "overflows FP32" in str(error)
        return
    decode(made)
    assert not np.isnan(made.quality.sqnr_db)


def test_choices_that_a_format_does_not_read_are_refused():
    w = POWERS
    for arguments in ({"amax": 8.0}, {"division": "reciprocal"}, {"group": 64}):
        with pytest.raises(UsageError, match=f"'{next(iter(arguments))}' does not apply to mxfp4"):
            encode(w, "mxfp4", **arguments)
    for threads in (0, -1, "2"):
        with pytest.raises(UsageError, match="invalid threads"):
            encode(w, "mxfp4", threads=threads)


def test_gptq_and_factors_belong_together():
    factors = encode_arguments("gptq", 64)["factors"]
    for arguments in ({"method": "gptq"}, {"method": "mse", "factors": factors}):
        with pytest.raises(UsageError, match="method 'gptq' requires factors, and factors require that method"):
            encode(POWERS, "nvfp4", **arguments)
    with pytest.raises(UsageError, match="factors have 64 columns, but the linear has 128"):
        encode(ORDINARY, "nvfp4", method="gptq", factors=factors)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_tensor_scales_that_are_no_scales_are_refused(wrong):
    for format in ("nvfp4", "nvfp4_ct"):
        made = encode(POWERS, format)
        suffix = FORMATS[format].tensors[2].suffix
        bad = {**made.tensors, suffix: np.full(made.tensors[suffix].shape, wrong, np.float32)}
        with pytest.raises(TensorError, match=f"{suffix} is .* not one positive number"):
            decode(dataclasses.replace(made, tensors=bad))


def test_weight_shape_that_contradicts_the_shape_is_refused():
    made = encode(POWERS, "int4")
    bad = {**made.tensors, "weight_shape": np.int64([64, 16])}
    with pytest.raises(TensorError, match=r"weight_shape says \[64, 16\], not \[16, 64\]"):
        decode(dataclasses.replace(made, tensors=bad))


@pytest.mark.parametrize("bad", [0x7F80, 0xFF80, 0x7FC0])
@pytest.mark.parametrize("format", [name for name, row in FORMATS.items() if row.encodes])
def test_infinities_and_nan_are_refused_by_name(format, bad):
    w = ORDINARY.copy()
    w[7, 3] = bad
    kind = "NaN" if bad == 0x7FC0 else "an infinity"
    with pytest.raises(TensorError, match=f"the weights contain {kind}.*experts.7.up_proj"):
        encode(w, format, name="experts.7.up_proj")


def test_int4_scales_that_are_not_finite_are_refused():
    stored = encode(POWERS, "int4")
    for bad, what in ((0x7F80, "scales contain an infinity"), (0x7F7F, "weights contain an infinity")):
        scale = stored.tensors["weight_scale"].copy()
        scale[3, 1] = bad
        broken = dataclasses.replace(stored, tensors={**stored.tensors, "weight_scale": scale})
        with pytest.raises(TensorError, match=what):
            encode(broken, "mxfp4", name="experts.0.down_proj")


@pytest.mark.parametrize(
    ("format", "k"), [("nvfp4", 24), ("nvfp4_ct", 8), ("mxfp4", 48), ("mxfp4_ct", 16), ("int4", 40)]
)
def test_partial_blocks_are_refused(format, k):
    with pytest.raises(TensorError, match=f"K = {k} is not a multiple.*gate_proj.*keep this tensor in BF16"):
        encode(bf16(np.ones((4, k))), format, name="gate_proj")


@pytest.mark.parametrize("shape", [(0, 32), (4, 0), (32,), (2, 2, 32)])
def test_what_is_not_a_matrix_is_refused(shape):
    with pytest.raises(TensorError, match="is not a matrix"):
        encode(np.zeros(shape, np.uint16), "nvfp4")


def test_wrong_words_get_the_right_one():
    w = POWERS
    with pytest.raises(UsageError, match=r"unknown format 'nvpf4'; fix: did you mean 'nvfp4'\?"):
        encode(w, "nvpf4")
    with pytest.raises(UsageError, match=r"unknown method 'msee' for nvfp4; fix: did you mean 'mse'\?"):
        encode(w, "nvfp4", method="msee")
    with pytest.raises(UsageError, match="reads fp8_block but does not write it"):
        encode(w, "fp8_block")
    with pytest.raises(UsageError, match="unsupported INT4 group size 16"):
        encode(w, "int4", group=16)
    with pytest.raises(UsageError, match="unknown division 'cuda'"):
        encode(w, "nvfp4", division="cuda")
    with pytest.raises(TensorError, match="float64 weights are not supported"):
        encode(np.zeros((2, 32)), "nvfp4")


@pytest.mark.parametrize("wrong", [2.0**-10, 4.0001, -8.0, -0.0, 1e39, float("nan"), float("inf")])
def test_a_shared_amax_below_the_tensors_own_is_refused(wrong):
    with pytest.raises(TensorError, match="is not a BF16 magnitude at or above"):
        encode(POWERS, "nvfp4", amax=wrong)


def test_stored_tensors_that_do_not_fit_are_refused():
    w = POWERS
    for format in ("int4", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct", "fp8_channel"):
        made = encode(w, format)
        for suffix, tensor in made.tensors.items():
            without = {key: value for key, value in made.tensors.items() if key != suffix}
            with pytest.raises(TensorError, match=f"{format} requires {suffix}"):
                decode(dataclasses.replace(made, tensors=without))
            if tensor.ndim == 2:
                short = {**made.tensors, suffix: tensor[:-1]}
                with pytest.raises(TensorError, match=f"{suffix}"):
                    decode(dataclasses.replace(made, tensors=short))


@pytest.mark.parametrize(("format", "nan"), [("nvfp4", 0x7F), ("nvfp4", 0xFF), ("mxfp4", 0xFF)])
def test_nan_block_scales_are_refused(format, nan):
    made = encode(POWERS, format)
    scale = made.tensors["weight_scale"].copy()
    scale[2, 1] = nan
    with pytest.raises(TensorError, match=r"weight_scale is NaN at \(2, 1\)"):
        decode(dataclasses.replace(made, tensors={**made.tensors, "weight_scale": scale}))
