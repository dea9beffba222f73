"""Properties for any weights: packing is invertible, and formats preserve what they promise."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from halfbyte.formats.codec import decode, encode
from halfbyte.formats.reference import floats, int4, mxfp4, nvfp4

finite_bf16 = st.integers(0, 0x7F7F).flatmap(lambda m: st.sampled_from([m, m | 0x8000]))
moderate_bf16 = st.integers(0x0800, 0x7000).flatmap(lambda m: st.sampled_from([m, m | 0x8000, 0]))


def matrices(elements, columns=64):
    return st.integers(1, 4).flatmap(lambda n: arrays(np.uint16, (n, columns), elements=elements))


@given(arrays(np.int8, st.tuples(st.integers(1, 5), st.integers(1, 50)), elements=st.integers(-8, 7)))
def test_int4_unpack_inverts_pack(q):
    np.testing.assert_array_equal(int4.unpack(int4.pack(q), q.shape[1]), q)


@given(
    arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(1, 25).map(lambda k: 2 * k)), elements=st.integers(0, 15))
)
def test_nibbles_unpack_inverts_pack(code):
    packed = floats.pack_nibbles(code)
    np.testing.assert_array_equal(floats.unpack_nibbles(packed), code)
    assert (packed[:, 0] & 15 == code[:, 0]).all()  # low nibble = even column


@settings(max_examples=100)
@given(matrices(finite_bf16))
def test_mxfp4_is_a_fixed_point(w):
    """Once on the grid, always on the grid, but for the sign of zero (and away from the largest numbers, whose code 6
    overflows BF16)."""
    w = np.where((w & 0x7FFF) >= 0x7E00, 0x3F80, w).astype(np.uint16)
    for format in ("mxfp4", "mxfp4_ct"):
        once = decode(encode(w, format))
        again = decode(encode(once, format))
        np.testing.assert_array_equal(floats.bf16_to_f32(again), floats.bf16_to_f32(once))


@settings(max_examples=100)
@given(matrices(moderate_bf16))
def test_int4_on_kimis_grid_is_a_fixed_point(w):
    once = decode(encode(w, "int4"))
    np.testing.assert_array_equal(decode(encode(once, "int4")), once)


@settings(max_examples=100)
@given(matrices(finite_bf16))
def test_kernels_equal_the_reference_on_anything_finite(w):
    top = np.abs(floats.bf16_to_f32(w)).max()
    expected = {
        "nvfp4": nvfp4.encode_max(w, nvfp4.tensor_scale(top)),
        "nvfp4_ct": nvfp4.encode_compressed_tensors(w, nvfp4.global_scale(top)),
        "mxfp4": mxfp4.encode(w, keep_negative_zero=False),
        "mxfp4_ct": mxfp4.encode(w, keep_negative_zero=True),
        "int4": int4.encode_kimi(w),
    }
    for format, (codes, scale) in expected.items():
        first, second, *_ = encode(w, format).tensors.values()
        np.testing.assert_array_equal(second, scale, err_msg=format)
        np.testing.assert_array_equal(first, codes, err_msg=format)


@settings(max_examples=60, deadline=None)
@given(matrices(moderate_bf16, columns=32))
def test_the_sweep_never_loses_to_max(w):
    if not (w & 0x7FFF).any():
        return
    swept, plain = encode(w, "nvfp4", method="mse"), encode(w, "nvfp4", method="max")
    assert swept.quality.error <= plain.quality.error * (1 + 1e-5)
