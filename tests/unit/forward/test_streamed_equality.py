"""Layer-by-layer forward equals transformers' complete model bit for bit, padding included."""

import pytest
import torch
from pico import write_pico
from resident import left_padded, packed, read_small, resident, run_resident, streamed

BF16, FP32 = torch.bfloat16, torch.float32
WORDS = 128
# K2.5-class (INT4, wrapped), K2-Thinking (INT4), K2 (FP8 blocks, attention too), DeepSeek-V3 (BF16; groups of experts),
# and a K2.5-class one that was quantized to NVFP4, shared experts and dense layer too.
KINDS = ("int4-k2.6", "int4-k2-thinking", "fp8-block-k2", "bf16", "nvfp4")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    known = {}

    def read(kind):
        if kind not in known:
            small = read_small(write_pico(tmp_path_factory.mktemp("forward") / kind, kind, experts=16))
            text = small.config.get("text_config", small.config)
            text["num_experts_per_tok"] = 4
            if kind == "bf16":
                text["n_group"], text["topk_group"] = 4, 2
            known[kind] = small
        return known[kind]

    return read


def assert_same(found, expected):
    for layer, (ours, theirs) in enumerate(zip(found[0], expected[0], strict=True)):
        assert torch.equal(ours, theirs), f"layer {layer}: {(ours != theirs).sum()} of {ours.numel()} differ"
    assert found[1].dtype == FP32
    assert torch.equal(found[1], expected[1])


def padded_inputs(rows):
    return {"input_ids": torch.from_numpy(rows.tokens).long(), "attention_mask": torch.from_numpy(rows.real).long()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("kind", KINDS)
def test_padded_rows_equal_the_resident_model(checkpoints, kind, dtype, attention):
    small, rows = checkpoints(kind), left_padded(5, 48, WORDS)
    expected = run_resident(resident(small, dtype, attention), **padded_inputs(rows))
    assert expected[1].abs().max() > 1, "nothing happens in this model"
    assert_same(streamed(small, rows, dtype, attention=attention), expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("kind", ["int4-k2.6", "bf16"])
def test_packed_rows_equal_the_resident_model(checkpoints, kind, dtype, attention):
    small, rows = checkpoints(kind), packed([[20, 28], [48], [16, 16, 16]], WORDS)
    inputs = {
        "input_ids": torch.from_numpy(rows.tokens).long(),
        "position_ids": torch.from_numpy(rows.positions).long(),
    }
    expected = run_resident(resident(small, dtype, attention), **inputs)
    assert_same(streamed(small, rows, dtype, attention=attention), expected)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_the_resident_model_in_batches_gives_the_same(checkpoints, dtype):
    """ModelOpt calibrates batch by batch; experts here see all batches at once."""
    small, rows = checkpoints("int4-k2.6"), left_padded(8, 48, WORDS)
    model, inputs = resident(small, dtype), padded_inputs(rows)
    batches = [run_resident(model, **{key: value[i : i + 4] for key, value in inputs.items()}) for i in (0, 4)]
    states = [torch.cat(parts) for parts in zip(*(batch[0] for batch in batches), strict=True)]
    logits = torch.cat([batch[1] for batch in batches])
    found = streamed(small, rows, dtype, chunk=4)
    if dtype == BF16:
        assert_same(found, (states, logits))
    else:  # FP32 products of a few rows are added up in another order than those of many
        torch.testing.assert_close(found[1], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_threads_and_chunks_change_nothing(checkpoints, dtype):
    small, rows = checkpoints("int4-k2.6"), left_padded(6, 48, WORDS)
    expected = streamed(small, rows, dtype, chunk=6)
    for chunk in (1, 2, 4):
        for threads in (1, 2, 3):
            assert_same(streamed(small, rows, dtype, chunk=chunk, threads=threads), expected)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_packed_document_is_what_it_is_alone(checkpoints, dtype):
    small, together = checkpoints("int4-k2.6"), packed([[20, 28]], WORDS)
    _, logits = streamed(small, together, dtype)
    for start, stop in ((0, 20), (20, 48)):
        alone = packed([[stop - start]], WORDS)
        alone.tokens = together.tokens[:, start:stop]
        _, expected = streamed(small, alone, dtype)
        torch.testing.assert_close(logits[:, start:stop], expected, rtol=1e-5, atol=1e-5 if dtype == FP32 else 0)


def test_a_document_does_not_see_the_other(checkpoints):
    small, rows = checkpoints("int4-k2.6"), packed([[20, 28]], WORDS)
    _, before = streamed(small, rows, BF16)
    rows.tokens[:, :20] = (rows.tokens[:, :20] + 1) % WORDS
    _, after = streamed(small, rows, BF16)
    assert torch.equal(before[:, 20:], after[:, 20:])
    assert not torch.equal(before[:, :20], after[:, :20])
