"""The small training model computes the same as transformers' own Kimi class; documents do not affect each other."""

import pytest
import torch
from toy import toy_checkpoint, toy_model
from training import restore, step
from training.model import Documents, Mini, Routes
from training.shape import CONTEXT, TOY

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

LENGTHS = (7, 1, 40)


def stream(lengths=LENGTHS, seed=0):
    torch.manual_seed(seed)
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return torch.randint(0, TOY.vocabulary, (sum(lengths),)), Documents.of(starts)


@torch.no_grad()
def logits(model, tokens, documents):
    return model.logits(model(tokens, documents)[0])


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A toy model in BF16, as written by halfbyte."""
    folder = tmp_path_factory.mktemp("model")
    quantize(toy_checkpoint(folder / "int4"), folder / "bf16", load_recipe("kimi-k2.6-bf16"))
    return folder / "bf16"


@pytest.fixture(scope="module")
def of_transformers(twin):
    """The same weights in transformers' class, without remote code."""
    from transformers import Kimi_K25ForConditionalGeneration

    model, info = Kimi_K25ForConditionalGeneration.from_pretrained(
        twin, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"] and not info["mismatched_keys"] and not info["unexpected_keys"]
    return model.eval()


@pytest.mark.parametrize("length", [3, 60, 1500])  # the last one is beyond the context that YaRN stretches
@torch.no_grad()
def test_logits_are_those_of_transformers(of_transformers, twin, length):
    ours = Mini(TOY, dtype=torch.float32)
    ours.load_state_dict(restore.state(twin))
    tokens, documents = stream((length,))
    theirs = of_transformers(input_ids=tokens[None]).logits[0]
    found = logits(ours, tokens, documents)
    assert theirs.std() > 0.5  # or nothing would be seen
    torch.testing.assert_close(found, theirs, rtol=2e-4, atol=2e-4)


def test_documents_do_not_see_each_other():
    model = toy_model()
    tokens, documents = stream()
    together = logits(model, tokens, documents)
    alone = [logits(model, part, Documents.of(torch.tensor([0, len(part)]).int())) for part in tokens.split(LENGTHS)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert documents.positions.tolist() == [at for length in LENGTHS for at in range(length)]


def test_nobody_sees_what_comes_after():
    model = toy_model()
    tokens, documents = stream((30,))
    changed = tokens.clone()
    changed[20:] = (changed[20:] + 1) % TOY.vocabulary
    before, after = logits(model, tokens, documents), logits(model, changed, documents)
    torch.testing.assert_close(before[:20], after[:20], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before[20:], after[20:], atol=1e-2)


def test_the_bias_moves_towards_experts_with_too_few_tokens():
    model = toy_model()
    router = model.layers[1].mlp.gate
    before = router.e_score_correction_bias.clone()
    load = torch.tensor([90, 10, 50, 50])
    worst = step.balance(model, [Routes(torch.empty(0), torch.empty(0), load)], rate=0.01)
    moved = router.e_score_correction_bias - before
    torch.testing.assert_close(moved, torch.tensor([-0.01, 0.01, 0.0, 0.0]), rtol=1e-4, atol=1e-6)
    assert worst == pytest.approx(1.8)


def test_the_bias_chooses_and_does_not_weigh():
    router = toy_model().layers[1].mlp.gate
    x = torch.randn(50, TOY.width) * 0.1
    plain = router(x)
    router.e_score_correction_bias += torch.tensor([100.0, 0, 0, 0])
    biased = router(x)
    assert (biased.experts == 0).any(-1).all() and biased.load[0] == len(x)
    assert not (plain.experts == 0).any(-1).all()
    assert (biased.weights <= biased.weights.sum(-1, keepdim=True)).all()
    torch.testing.assert_close(biased.weights.sum(-1), plain.weights.sum(-1))


def test_balancing_evens_out_the_load():
    model = toy_model()
    tokens, documents = stream((400,))
    with torch.no_grad():
        first = step.balance(model, model(tokens, documents)[1], 0.0)
        for _ in range(60):
            last = step.balance(model, model(tokens, documents)[1], 0.02)
    assert last < first
    assert last < 1.3


def test_a_few_steps_learn_one_batch():
    torch.manual_seed(0)
    model = Mini(TOY, dtype=torch.float32)
    learner = step.Learner(model, compiled=False)
    tokens, documents = stream((64, 64))
    batch = step.Batch(tokens, tokens.roll(-1), torch.ones(128, dtype=torch.bool), documents)
    losses = [float(learner.step(batch, 4e-3)[0]) for _ in range(12)]
    assert losses[-1] < losses[0] - 1


def test_the_context_is_what_the_config_says():
    assert len(toy_model().cos) == CONTEXT
