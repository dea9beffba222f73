"""The estimate of temporary memory in a layer, compared with the live tensors of a run on the CPU.

Widths are those of a sixteenth of Kimi-K2.6, except that values are as wide as keys: other widths the CPU's attention
would convert to FP32. Memory inside kernels is not visible here; the estimate has a reserve for it in attention.
"""

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer

from halfbyte.calibrate.token_rows import Rows
from halfbyte.engine.backends.cuda.placement import _Widths
from halfbyte.families.kimi_k25.geometry import Geometry, text_config
from halfbyte.families.registry import text_model
from halfbyte.forward.experts import run_experts
from halfbyte.forward.positions import attention_inputs
from halfbyte.forward.run import run_layer

SMALL = Geometry(layers=2, experts=24, active_experts=2, width=448, dense_width=1152, expert_width=128, heads=4,
                 q_rank=96, kv_rank=32, value_width=192, vocabulary=64, prefix="")  # fmt: skip
ROWS, LENGTH = 8, 256
TOKENS = ROWS * LENGTH
STATES = TOKENS * SMALL.width * 2
WIDTHS = _Widths.of(text_config(SMALL))
SHAPES = ((SMALL.expert_width, SMALL.width), (SMALL.expert_width, SMALL.width), (SMALL.width, SMALL.expert_width))


class Live(TorchDispatchMode):
    """Track the peak bytes of tensors created in its context."""

    def __init__(self):
        super().__init__()
        self._held, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        made = func(*args, **(kwargs or {}))
        self._held = {key: found for key, found in self._held.items() if not found[0].expired()}
        for leaf in tree_leaves(made):
            if torch.is_tensor(leaf) and leaf.untyped_storage()._cdata not in known:
                storage = leaf.untyped_storage()
                self._held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, sum(nbytes for _, nbytes in self._held.values()))
        return made


def matrices():
    return tuple(torch.randn(shape).bfloat16() for shape in SHAPES)


@pytest.mark.parametrize("index", [0, 1], ids=["dense", "MoE"])
def test_a_chunk(index):
    """Everything that is counted is live, except for the copies of q, k and v that a kernel may make."""
    torch.manual_seed(0)
    text = text_model(text_config(SMALL))
    with torch.device("meta"):
        shapes = {
            name: tensor.shape for name, tensor in DeepseekV3DecoderLayer(text.config, index).state_dict().items()
        }
    tensors = {f"model.layers.{index}.{name}": torch.randn(shape) / 20 for name, shape in shapes.items()}
    layer = text.decoder_layer(index, tensors)
    positions = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    real, documents = np.ones((ROWS, LENGTH), bool), np.zeros((ROWS, LENGTH), np.int32)
    rows = Rows(positions, real, positions, documents, documents.astype(np.int16), ("news",), False)
    hidden, expert = torch.randn(ROWS, LENGTH, SMALL.width).bfloat16(), matrices()
    with Live() as live:
        run_layer(layer, hidden, lambda chunk: attention_inputs(text, rows, chunk), [slice(0, ROWS)], lambda _: expert,
                  add=lambda *_: None, most=64)  # fmt: skip
    copies = TOKENS * SMALL.heads * (2 * (SMALL.nope_width + SMALL.rope_width) + SMALL.value_width) * 2
    counted = TOKENS * WIDTHS.chunk() + index * STATES  # a MoE layer has what its experts are given, too
    assert 0.95 * (counted - copies) < live.most <= counted - copies


@pytest.mark.parametrize("most", [64, 256])
def test_a_piece_of_an_expert(most):
    """One expert has every token: a piece of them, the piece before, and the sums; padding would take more."""
    torch.manual_seed(0)
    others = torch.arange(TOKENS) % (SMALL.experts - 1) + 1
    indices = torch.stack([torch.zeros(TOKENS, dtype=torch.long), others], dim=1)
    x, expert = torch.randn(TOKENS, SMALL.width).bfloat16(), matrices()
    with Live() as live:
        run_experts(x, indices, torch.rand(TOKENS, 2), lambda _: expert, add=lambda *_: None, most=most)
    counted = STATES + most * WIDTHS.expert_piece()
    assert STATES + most * WIDTHS.expert_piece() / 2 < live.most <= counted
