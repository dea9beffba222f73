"""Masks, hidden states, KL and agreement, compared with plain FP64 arithmetic."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from halfbyte.calibrate.token_rows import (
    Document,
    Rows,
    Share,
    packed_rows,
    padded_rows,
)
from halfbyte.compare.measures import Choices, by_position, difference, predict, predicting
from halfbyte.compare.tokens import answers
from halfbyte.errors import UsageError
from halfbyte.evidence.comparison import Positions


def _share(*lengths, rows, domain="a", first=10):
    documents = [
        Document(list(range(first + 100 * n, first + 100 * n + size)), domain) for n, size in enumerate(lengths)
    ]
    return Share("data", documents, rows)


def _pairs(rows, **how):
    result = predicting(rows, **how)
    tokens = rows.tokens.reshape(-1)
    return list(zip(tokens[result.at].tolist(), result.target.tolist(), strict=True)), result


def test_packed_documents_do_not_predict_across_nor_from_their_last_token():
    rows = packed_rows([_share(3, 4, 1, 2, rows=2)], 5, 0)
    pairs, result = _pairs(rows)
    # The second document is cut by the end of the row: 111 would predict 112, but stands in another row.
    assert pairs == [(10, 11), (11, 12), (110, 111), (112, 113), (310, 311)]
    assert result.numbers[result.document].tolist() == [0, 0, 1, 1, 3]  # the third has one token, and predicts nothing


def test_positions_count_from_where_a_text_begins_in_its_row():
    rows = packed_rows([_share(3, 4, 1, 2, rows=2)], 5, 0)
    assert predicting(rows).position.tolist() == [0, 1, 0, 0, 0]
    result = by_position(np.array([0, 1, 2, 3, 4, 7, 8, 0]), np.arange(8.0)).means()
    assert result == Positions((0, 1, 2, 4, 8), (2, 1, 2, 2, 1), (3.5, 1.0, 2.5, 4.5, 6.0))


def test_padding_counts_nowhere():
    rows = padded_rows([_share(2, 4, rows=2)], 4, 0)
    pairs, _ = _pairs(rows)
    assert pairs == [(10, 11), (110, 111), (111, 112), (112, 113)]
    short = packed_rows([_share(3, rows=1)], 8, 0)
    assert _pairs(short)[0] == [(10, 11), (11, 12)]


def test_only_scored_tokens_are_predicted():
    rows = packed_rows([_share(5, rows=1)], 5, 0)
    scored = np.array([[True, False, True, False, True]])
    assert _pairs(rows, scored=scored)[0] == [(11, 12), (13, 14)]


def test_each_document_has_its_domain():
    rows = packed_rows([_share(3, 2, rows=1), _share(5, rows=1, domain="b")], 5, 0)
    assert [rows.names[index] for index in predicting(rows).domains] == ["a", "a", "b"]


def test_hidden_states_are_compared_over_real_tokens():
    random = torch.Generator().manual_seed(0)
    a = torch.randn(3, 4, 8, generator=random)
    b = a + 0.1 * torch.randn(3, 4, 8, generator=random)
    real = torch.rand(3, 4, generator=random) > 0.3
    a[~real] = torch.nan
    result = difference(a, b, real, [slice(0, 2), slice(2, 3)], 2)
    x, y = a[real].double().numpy(), b[real].double().numpy()
    assert result.relative_error == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x), rel=1e-12)
    cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    assert result.mean_cosine == pytest.approx(cosines.mean(), rel=1e-12)


def test_equal_states_are_exactly_equal():
    a = torch.randn(2, 50, 33) * 1e3
    a[0, 0] = 0
    result = difference(a, a.clone(), torch.ones(2, 50, dtype=torch.bool), [slice(0, 2)], 1)
    assert (result.relative_error, result.mean_cosine) == (0.0, 1.0)


def test_routing_agreement_is_the_share_of_common_choices():
    mine, theirs = Choices(3, 4), Choices(3, 4)
    nothing = torch.zeros(0)
    for choices, chosen in ((mine, [(0, 1), (1, 2), (2, 3)]), (theirs, [(1, 0), (1, 3), (0, 1)])):
        for expert in range(4):
            tokens = torch.tensor([at for at, pair in enumerate(chosen) if expert in pair], dtype=torch.long)
            choices(expert, tokens, nothing, nothing, nothing, nothing)
    assert mine.agreement(theirs, torch.tensor([True, True, True])) == 3 / 6
    assert mine.agreement(theirs, torch.tensor([True, True, False])) == 3 / 4


class _Linear:
    def __init__(self, words):
        self._words = words

    def logits(self, h, *, precise):
        assert precise
        return h @ self._words


def test_kl_agreement_and_loss_are_those_of_plain_arithmetic():
    random = np.random.default_rng(0)
    rows = packed_rows([_share(40, 30, 30, rows=4, first=0)], 25, 0)
    rows = Rows(random.integers(0, 50, rows.tokens.shape, np.int32), *(getattr(rows, n) for n in Rows.__slots__[1:]))
    states = [torch.from_numpy(random.standard_normal((4, 25, 6)).astype(np.float32)) for _ in range(3)]
    heads = [_Linear(torch.from_numpy(random.standard_normal((6, 50)).astype(np.float32) * 2)) for _ in range(3)]
    tokens = predicting(rows)
    result = predict(states, heads, tokens, 50, 2)

    logits = [
        (state.view(-1, 6)[tokens.at] @ head._words).double().numpy() for state, head in zip(states, heads, strict=True)
    ]
    logp = [values - np.log(np.exp(values).sum(1, keepdims=True)) for values in logits]
    for at, second in enumerate(logp[1:]):
        kl = (np.exp(logp[0]) * (logp[0] - second)).sum(1)
        same = logp[0].argmax(1) == second.argmax(1)
        for document in range(len(tokens.numbers)):
            mine = tokens.document == document
            assert result[at].tokens[document] == mine.sum()
            assert result[at].kl[document] == pytest.approx(kl[mine].sum(), rel=1e-9)
            assert result[at].same[document] == same[mine].sum()
            losses = -second[np.arange(len(second)), tokens.target.numpy()]
            assert result[at].nll_second[document] == pytest.approx(losses[mine].sum(), rel=1e-9)
    assert (result[0].kl > 0.1).all()  # the other way round is another number
    back = predict(states[1::-1], heads[1::-1], tokens, 50, 1)
    assert not np.allclose(back[0].kl, result[0].kl, rtol=0.01)


SPECIAL = {"<|im_user|>": 1, "<|im_assistant|>": 2, "<|im_middle|>": 3, "<|im_end|>": 4, "<think>": 5, "</think>": 6}


def _answers(tokens, documents=None, special=SPECIAL):
    tokens = np.array(tokens, np.int32)
    documents = np.zeros_like(tokens) if documents is None else np.array(documents, np.int32)
    return answers(SimpleNamespace(tokens=tokens, documents=documents), SimpleNamespace(special=special))


def test_answers_start_after_the_generation_prompt_and_include_the_end_token():
    user = [1, 90, 3, 70, 71, 4]
    instant, thinking = [2, 91, 3, 5, 6, 80, 81, 4], [2, 91, 3, 5, 82, 6, 83, 4]
    plain = [2, 91, 3, 84, 4]
    result = _answers([user + instant + user + thinking + plain])[0]
    expected = [0] * 6 + [0, 0, 0, 0, 0, 1, 1, 1] + [0] * 6 + [0, 0, 0, 0, 1, 1, 1, 1] + [0, 0, 0, 1, 1]
    assert result.tolist() == [bool(value) for value in expected]


def test_answers_continue_in_the_next_row_but_not_in_the_next_document():
    result = _answers([[2, 3, 80], [81, 70, 70]], [[0, 0, 0], [0, 1, 1]])
    assert result.tolist() == [[False, False, True], [True, False, False]]


def test_data_without_answers_is_refused():
    with pytest.raises(UsageError, match="the data contains no answers"):
        _answers([[1, 70, 71, 4]])
    with pytest.raises(UsageError, match="im_assistant"):
        _answers([[1, 70]], special={})
