"""The public REAP code's weights, computed by hand."""

import math

import pytest
import torch

from halfbyte.calibrate.routing import softmax_weights

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0], [5.0, -100.0, 5.0, 90.0]])
CHOSEN = torch.tensor([[3, 1], [0, 1]])


def test_they_are_a_softmax_over_all_divided_by_its_sum_over_the_chosen():
    found = softmax_weights(LOGITS, CHOSEN)
    assert (found.dtype, found.shape) == (torch.float32, (2, 2))
    both = math.e**3 + math.e
    assert found[0].tolist() == pytest.approx([math.e**3 / both, math.e / both], rel=1e-6)


def test_none_is_below_epsilon():
    """exp(-105) of what the other has; the other is not made smaller for it."""
    assert softmax_weights(LOGITS, CHOSEN)[1].tolist() == [1.0, 2.0**-23]


def test_logits_of_any_dtype_are_taken_in_fp32():
    assert softmax_weights(LOGITS.double(), CHOSEN).dtype == torch.float32
