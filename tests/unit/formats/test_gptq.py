"""GPTQ NVFP4: the kernel's bytes equal the reference, and the reference matches its docstring."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from halfbyte.formats.cpu.kernels.gptq import compensate_rows
from halfbyte.formats.reference import floats, gptq, nvfp4, sweep
from halfbyte.formats.reference.gptq import Factors


def _inputs(seed: int, k: int, tokens: int = 4000) -> NDArray[np.float64]:
    """Tokens with correlated channels of different size, like hidden states."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(k // 4, k)) * np.exp(rng.normal(size=k))
    return rng.normal(size=(tokens, k // 4)) @ mix + 0.3 * rng.normal(size=(tokens, k))


def _weights(seed: int, n: int, k: int) -> NDArray[np.float64]:
    return floats.bf16_round(np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32) * 0.02).astype(float)


def _by_kernel(
    target: NDArray[np.float64], factors: Factors, scale_2: np.float32
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    n, k = target.shape
    packed, scale = np.empty((n, k // 2), np.uint8), np.empty((n, k // 16), np.uint8)
    compensate_rows(target, factors.order, factors.upper, scale_2, packed, scale)
    return packed, scale


def _decoded(packed: NDArray[np.uint8], scale: NDArray[np.uint8], scale_2: np.float32) -> NDArray[np.float64]:
    step = floats.E4M3_VALUES[scale] * scale_2
    return (floats.e2m1_decode(floats.unpack_nibbles(packed)) * floats.spread(step, 16)).astype(float)


def _loss(weight: NDArray[np.float64], decoded: NDArray[np.float64], hessian: NDArray[np.float64]) -> float:
    return float(np.einsum("nj,jk,nk->", weight - decoded, hessian, weight - decoded))


@pytest.mark.parametrize("k", [16, 96, 128, 144, 400, 1040])
def test_the_kernel_gives_the_references_bytes(k: int) -> None:
    # 96: less than a panel; 144, 400: a panel and a part; 1040: more columns after a panel than a tile.
    x = _inputs(k, k)
    factors = gptq.factor(x.T @ x / len(x))
    weight = _weights(k, 24, k)
    scale_2 = gptq.tensor_scale(np.float32(np.abs(weight).max()))
    expected = gptq.compensate(weight, factors, scale_2)
    found = _by_kernel(weight, factors, scale_2)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_rows_do_not_depend_on_each_other() -> None:
    x = _inputs(1, 256)
    factors = gptq.factor(x.T @ x)
    weight = _weights(1, 20, 256)
    whole = _by_kernel(weight, factors, np.float32(1e-4))
    for part in (slice(0, 7), slice(7, 20)):
        found = _by_kernel(weight[part], factors, np.float32(1e-4))
        np.testing.assert_array_equal(found[0], whole[0][part])
        np.testing.assert_array_equal(found[1], whole[1][part])


def test_ties_signs_zeros_and_the_ends_of_the_scales() -> None:
    # Uncorrelated inputs: nothing is compensated, and every weight lies where the test puts it.
    factors = Factors(np.arange(32), np.eye(32))
    halves = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5, -6])
    for size in (1.0, 0.0, 1e-6, 1e6):
        target = np.stack([np.concatenate([halves * size, np.zeros(16)]), np.concatenate([-halves, halves * size])])
        expected = gptq.compensate(target, factors, np.float32(1))
        found = _by_kernel(target, factors, np.float32(1))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        assert found[1].min() >= 1
        assert found[1].max() <= 126


def test_the_factor_is_of_the_inverse_in_the_order() -> None:
    x = _inputs(3, 64)
    hessian = x.T @ x / len(x)
    order, upper = gptq.factor(hessian)
    inverse = np.linalg.inv(gptq.damped(hessian)[np.ix_(order, order)])
    np.testing.assert_allclose(upper.T @ upper, inverse, rtol=1e-7, atol=1e-9 * inverse.max())
    assert not np.tril(upper, -1).any()
    blocks = order.reshape(-1, 16) // 16
    assert (blocks == blocks[:, :1]).all(), "a block's columns stay together: they share a scale"
    given = np.diag(hessian).reshape(-1, 16).sum(axis=1)[blocks[:, 0]]
    assert (np.diff(given) <= 0).all()


def test_each_column_moves_the_open_ones_to_the_best_place_that_is_left() -> None:
    """By the textbook: with the closed columns' errors fixed, minimize the loss over the open ones, each time again."""
    x = _inputs(4, 16)
    hessian = gptq.damped(x.T @ x / len(x))
    factors = gptq.factor(x.T @ x / len(x))
    weight = _weights(4, 6, 16)
    packed, scale = gptq.compensate(weight, factors, np.float32(1e-4))
    found = _decoded(packed, scale, np.float32(1e-4))
    step = (floats.E4M3_VALUES[scale] * np.float32(1e-4)).astype(float)
    for row in range(6):
        closed: list[int] = []
        error = np.zeros(16)
        for column in factors.order:
            open_ = [c for c in factors.order if c not in closed]
            best = -np.linalg.solve(hessian[np.ix_(open_, open_)], hessian[np.ix_(open_, closed)] @ error[closed])
            place = weight[row, column] - best[open_.index(column)] if closed else weight[row, column]
            value = (
                np.sign(place)
                * floats.E2M1_VALUES[floats.e2m1_magnitude(np.array([place / step[row, 0]], np.float32))[0]]
            )
            assert found[row, column] == pytest.approx(value * step[row, 0], rel=1e-6)
            error[column] = weight[row, column] - found[row, column]
            closed.append(int(column))


def test_the_scale_of_a_block_is_the_best_of_all_candidates() -> None:
    x = _inputs(5, 16)
    hessian = x.T @ x / len(x)
    factors = gptq.factor(hessian)
    weight = _weights(5, 4, 16)
    _, scale = gptq.compensate(weight, factors, np.float32(1e-4))
    only = np.zeros((126, 4))
    for code, row in itertools.product(range(1, 127), range(4)):
        left, loss = weight[row, factors.order].copy(), 0.0
        step = float(floats.E4M3_VALUES[code] * np.float32(1e-4))
        for j in range(16):
            grid = np.concatenate([floats.E2M1_VALUES, -floats.E2M1_VALUES]) * step
            error = (left[j] - grid[np.abs(grid - left[j]).argmin()]) / factors.upper[j, j]
            loss += error**2
            left[j + 1 :] -= error * factors.upper[j, j + 1 :]
        only[code - 1, row] = loss
    chosen = only[scale[:, 0].astype(int) - 1, range(4)]
    np.testing.assert_allclose(chosen, only.min(axis=0), rtol=1e-9)


def test_it_loses_much_less_than_the_mse_sweep_where_inputs_go_together() -> None:
    x, other = np.split(_inputs(6, 64, 8000), 2)
    hessian, held_out = x.T @ x / len(x), other.T @ other / len(other)
    weight = _weights(6, 16, 64)
    amax = np.float32(np.abs(weight).max())
    scale_2 = gptq.tensor_scale(amax)
    ours = _decoded(*gptq.compensate(weight, gptq.factor(hessian), scale_2), scale_2)
    bits = floats.f32_to_bf16(weight.astype(np.float32))
    plain_2, swept = nvfp4.tensor_scale(amax), sweep.block_scale_mse(bits, amax)
    nearest = _decoded(nvfp4.codes(bits, swept, plain_2), swept, plain_2)
    assert _loss(weight, ours, held_out) < 0.5 * _loss(weight, nearest, held_out)


def test_an_expert_that_saw_nothing_is_only_rounded() -> None:
    factors = gptq.factor(np.zeros((32, 32)))
    np.testing.assert_array_equal(factors.upper, np.eye(32))
    np.testing.assert_array_equal(factors.order, np.arange(32))
    packed, scale = gptq.compensate(np.zeros((2, 32)), factors, gptq.tensor_scale(np.float32(0)))
    assert not packed.any()
    assert (scale >= 1).all()
