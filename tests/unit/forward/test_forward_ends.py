"""Embedding and head: only the rows in use, FP32 logits, chunks that change nothing; and nothing heavy is imported."""

import os
import subprocess
import sys

import pytest
import torch
from test_text_config import plain

from halfbyte.errors import CheckpointError
from halfbyte.forward import INSTRUCTIONS
from halfbyte.forward.config import text_model
from halfbyte.forward.ends import TOKENS, Head, embed

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


@pytest.mark.parametrize("precise", [False, True])
def test_chunks_change_nothing(tensors, precise):
    head, h = Head(MODEL, tensors), torch.randn(2 * TOKENS + 100, 64).to(BF16)
    assert torch.equal(torch.cat(list(head.in_chunks(h, precise=precise))), head.logits(h, precise=precise))


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


def test_the_package_alone_imports_nothing_heavy_and_chooses_the_instructions():
    code = (
        "import os, sys, halfbyte.cli, halfbyte.forward as f; print('torch' in sys.modules, os.environ[f.INSTRUCTIONS])"
    )
    bare = {key: value for key, value in os.environ.items() if key != INSTRUCTIONS}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=bare)
    assert done.stdout.split() == ["False", "AVX512_CORE_BF16"]
