"""What a pass takes of a device, counted from headers alone, and what is said where it does not fit.

It lies here because importing the pass imports the kernels, which this folder imports interpreted.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from halfbyte.cuda import memory
from halfbyte.cuda.passing import needs_of
from halfbyte.errors import MachineError
from halfbyte.forward.config import text_model
from halfbyte.pipeline import plan
from halfbyte.recipe import load_recipe
from halfbyte.source.example import example

GB = 10**9
CUDA = SimpleNamespace(type="cuda")


@pytest.fixture(scope="module")
def planned():
    """Kimi-K2.6 as published; no weight of it is here."""
    return plan(example("kimi-k2.6"), load_recipe("kimi-k2.6-nvfp4-nvidia"))


def tokens(planned, count):
    rows = SimpleNamespace(tokens=np.empty((count // 512, 512), np.int32))
    return SimpleNamespace(text=text_model(planned.checkpoint.config), rows=rows)


def free(monkeypatch, nbytes):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (nbytes, 141 * GB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


def test_a_layer_is_counted_to_the_byte(planned):
    experts = [one for one in planned.model.linears.values() if one.role == "routed_experts" and one.layer == 1]
    stored = sum(info.nbytes for one in experts for suffix, info in one.parts.items() if suffix != "weight_shape")
    need = needs_of(planned, None)
    assert need.layer == stored == 9_512_681_472
    assert need.tokens == 0
    assert need.total(2) - need.total(1) == stored


def test_all_tokens_of_the_cards_take_less_than_60_gb(planned):
    need = needs_of(planned, tokens(planned, 512 * 512))
    assert need.tokens > 3 * 512 * 512 * 7168 * 2
    assert 40 * GB < need.total(2) < 60 * GB


def test_what_fits_decides_how_many_layers_are_there(planned, monkeypatch):
    need = needs_of(planned, tokens(planned, 512 * 512))
    for layers in (2, 1):
        free(monkeypatch, need.total(layers))
        assert memory.layers_at_once(need, CUDA) == layers
    free(monkeypatch, need.total(1) - 1)
    with pytest.raises(MachineError, match=r"needs 40\.\d GB on the device.*99 % of the tokens"):
        memory.layers_at_once(need, CUDA)


def test_a_device_that_holds_no_layer_is_sent_to_the_cpu(planned, monkeypatch):
    need = needs_of(planned, None)
    free(monkeypatch, 8 * GB)
    with pytest.raises(MachineError, match="--device cpu"):
        memory.layers_at_once(need, CUDA)
