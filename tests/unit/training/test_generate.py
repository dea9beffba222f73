"""Answers generated with a cache equal those from reading the whole text for every token."""

import torch
from toy import toy_model
from training import generate
from training.model import Documents
from training.shape import TOY

NEW_TOKENS = 12


@torch.no_grad()
def read_again(model, prompt, new_tokens):
    """Return the greedy answer without a cache."""
    tokens = list(prompt)
    for _ in range(new_tokens):
        hidden, _ = model(torch.tensor(tokens), Documents.of(torch.tensor([0, len(tokens)]).int()))
        tokens.append(int(model.logits(hidden[-1]).argmax()))
        if tokens[-1] in generate.STOPS:
            break
    return tokens[len(prompt) :]


def prompts():
    torch.manual_seed(5)
    return [torch.randint(0, TOY.vocabulary - 64, (length,)).tolist() for length in (1, 30, 9, 30, 2)]


def test_a_cached_answer_is_the_answer():
    model = toy_model()
    expected = [read_again(model, prompt, NEW_TOKENS) for prompt in prompts()]
    assert len({tuple(answer) for answer in expected}) == len(expected)  # not one answer to everything
    assert generate.generate(model, prompts(), NEW_TOKENS) == expected


def test_prompts_of_a_batch_do_not_disturb_each_other():
    model = toy_model(1)
    together = generate.generate(model, prompts(), NEW_TOKENS)
    assert together == [generate.generate(model, [prompt], NEW_TOKENS)[0] for prompt in prompts()]


def test_an_answer_ends_with_the_stop_token():
    model = toy_model()
    wanted = generate.generate(model, prompts()[:2], NEW_TOKENS)
    stop = wanted[0][3]
    swapped = [generate.STOPS[0], stop]
    with torch.no_grad():  # the token that would come fourth is now the stop token
        for table in (model.lm_head, model.embed_tokens):
            table[swapped] = table[list(reversed(swapped))]
    found = generate.generate(model, prompts()[:2], NEW_TOKENS)
    first = wanted[0][: wanted[0].index(stop)]
    assert found[0] == [*first, generate.STOPS[0]]


def test_an_answer_stops_where_the_context_ends(monkeypatch):
    monkeypatch.setattr(generate, "CONTEXT", 33)
    found = generate.generate(toy_model(), prompts(), NEW_TOKENS)
    assert len([token for token in found[1] if token not in generate.STOPS]) <= 4
    assert len(found[0]) == NEW_TOKENS


def test_int4_experts_answer_as_what_is_stored_answers():
    from training import int4

    model = toy_model(2)
    model.int4 = True
    quantized = generate.generate(model, prompts(), NEW_TOKENS)
    model.int4 = False
    state = model.state_dict()
    for name in state:
        if ".mlp.experts." in name:
            state[name] = int4.stored(state[name]).float()
    model.load_state_dict(state)
    assert generate.generate(model, prompts(), NEW_TOKENS) == quantized


def test_temperature_is_each_prompts_own_and_the_seed_decides():
    model = toy_model()
    greedy = generate.generate(model, prompts(), NEW_TOKENS)
    heat = [0.0, 2.0, 0.0, 2.0, 2.0]
    first, again, other = (generate.generate(model, prompts(), NEW_TOKENS, heat, seed) for seed in (1, 1, 2))
    assert first == again
    assert [first[at] for at in (0, 2)] == [greedy[at] for at in (0, 2)] == [other[at] for at in (0, 2)]
    assert all(first[at] != greedy[at] for at in (1, 3, 4))
    assert first != other


def test_sampled_tokens_come_from_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]).expand(20_000, 4)
    drawn = generate._Choice([0.7] * 20_000, 3, torch.device("cpu"))(logits)
    assert torch.allclose(torch.bincount(drawn, minlength=4) / 20_000, (logits[0] / 0.7).softmax(-1), atol=0.01)
