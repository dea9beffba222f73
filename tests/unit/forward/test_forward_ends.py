"""Embedding and head: only used rows, FP32 logits, independence of chunks, and no heavy imports."""

import os
import subprocess
import sys

import pytest
import torch
from test_text_config import plain

from halfbyte.errors import CheckpointError
from halfbyte.families.registry import text_model
from halfbyte.forward.embedding_and_head import Head, embed
from halfbyte.machine.library_settings import ONEDNN_ISA, limit_onednn

BF16 = torch.bfloat16
MODEL = text_model(plain() | {"hidden_size": 64, "vocab_size": 300})


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return {"model.norm.weight": torch.rand(64).to(BF16), "lm_head.weight": torch.randn(300, 64).to(BF16)}


def test_precise_logits_are_not_rounded_to_bf16(tensors):
    head, h = Head(MODEL, tensors), torch.randn(40, 64).to(BF16)
    rounded, precise = head.logits(h), head.logits(h, precise=True)
    assert torch.equal(rounded, rounded.to(BF16).float())
    assert not torch.equal(precise, precise.to(BF16).float())
    exact = head._norm(h).double() @ tensors["lm_head.weight"].double().T
    torch.testing.assert_close(precise.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rounded, precise, rtol=2**-8, atol=2**-8)


def test_a_tied_head_is_the_embedding(tensors):
    tied = text_model(plain() | {"hidden_size": 64, "vocab_size": 300, "tie_word_embeddings": True})
    named = {"model.norm.weight": tensors["model.norm.weight"], "model.embed_tokens.weight": tensors["lm_head.weight"]}
    h = torch.randn(20, 64).to(BF16)
    assert torch.equal(Head(tied, named).logits(h), Head(MODEL, tensors).logits(h))


def test_a_missing_head_is_named(tensors):
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        Head(MODEL, {"model.norm.weight": tensors["model.norm.weight"]})


def test_the_embedding_is_looked_up_in_the_dtype_asked_for(tensors):
    tokens = torch.tensor([[1, 299], [7, 7]])
    for dtype in (BF16, torch.float32):
        found = embed(tokens, tensors["lm_head.weight"], dtype)
        assert found.dtype == dtype
        assert torch.equal(found, tensors["lm_head.weight"][tokens].to(dtype))


def test_importing_sets_no_variable_and_a_text_model_limits_onednn():
    code = "import os, halfbyte.cli.main, halfbyte.forward.run, halfbyte.engine.backends.cuda.backend\n"
    code += "from halfbyte.families.registry import text_model\n"
    code += "names = ('ONEDNN_MAX_CPU_ISA', 'ONEDNN_PRIMITIVE_CACHE_CAPACITY', 'PYTORCH_ALLOC_CONF')\n"
    code += "print(*(os.environ.get(name) for name in names))\n"
    code += f"text_model({plain()!r})\n"
    code += "print(*(os.environ.get(name) for name in names))"
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("ONEDNN_", "PYTORCH_"))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=bare)
    assert done.stdout.splitlines() == ["None None None", "AVX512_CORE_BF16 64 None"]


def test_a_variable_that_the_user_set_stays(monkeypatch):
    monkeypatch.setenv(ONEDNN_ISA, "AVX2")
    limit_onednn()
    assert os.environ[ONEDNN_ISA] == "AVX2"
