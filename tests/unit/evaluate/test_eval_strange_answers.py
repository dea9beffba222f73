"""Malformed answers: each costs at most one item, and never counts silently as wrong or crashes the run."""

import json

import pytest
from known_answers import LIMIT, knows, lines, saved

pytest.importorskip("lm_eval")
FIRST = 3  # items with the fault


def broken_items(server, change, suite_seed=1234):
    """Add a fault to the first items, but not to the preflight."""
    left = [FIRST]

    def breaks(body, answer):
        if body.get("seed") == suite_seed and left[0]:
            left[0] -= 1
            change(answer)

    server.breaks = breaks


def choice(**more):
    return lambda answer: answer["choices"][0].update(more)


@pytest.mark.parametrize("text", [5, ["a"], {"a": 1}, True])
def test_content_that_is_not_text_is_an_error_not_a_wrong_answer(fake, mini, tmp_path, text):
    url, server = fake
    knows(server)
    broken_items(server, choice(text=text))
    code, shown, said = mini(url)
    assert code == 1 and f"expected text, got {type(text).__name__}" in shown
    assert "run the same command to retry failed requests" in said
    assert saved(tmp_path / "out")["tasks"][0]["candidate"]["errors"] == FIRST
    assert mini(url)[0] == 0


@pytest.mark.parametrize("reason", [{"type": "stop"}, ["stop"], 7])
def test_an_invalid_finish_reason_is_kept_and_counts_as_truncated(fake, mini, tmp_path, reason):
    url, server = fake
    knows(server)
    broken_items(server, choice(finish_reason=reason))
    assert mini(url)[0] == 1
    assert {one["finish_reason"] for one in lines(tmp_path / "out")} == {"stop", json.dumps(reason)}
    assert saved(tmp_path / "out")["tasks"][0]["candidate"]["truncated"] == FIRST


@pytest.mark.parametrize("usage", ["none", [1], 7, {"prompt_tokens": "n/a", "completion_tokens": [1]}, {"x": 1}])
def test_invalid_token_counts_are_unknown(fake, mini, tmp_path, usage):
    url, server = fake
    knows(server)
    broken_items(server, lambda answer: answer.update(usage=usage))
    assert mini(url)[0] == 0
    assert sum(one["prompt_tokens"] is None for one in lines(tmp_path / "out")) == FIRST


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf"), 0.5])
def test_a_missing_log_likelihood_is_an_error(fake, mini, tmp_path, value):
    url, server = fake
    knows(server)

    def change(answer):
        answer["choices"][0]["logprobs"]["token_logprobs"][-2] = value

    broken_items(server, change)
    code, said, _ = mini(url, suite="mini-choices")
    assert code == 1 and "is not a valid log-probability" in said
    assert saved(tmp_path / "out")["tasks"][0]["candidate"]["errors"] >= 1


@pytest.mark.parametrize(
    "change",
    [
        choice(text=["a"]), choice(logprobs=[1]), choice(logprobs={"content": ["x"]}), choice(logprobs="x"),
        lambda answer: answer.update(usage="x"), lambda answer: answer.update(choices=["x"]),
    ],
)  # fmt: skip
def test_an_unreadable_preflight_answer_is_reported(fake, mini, change):
    url, server = fake
    server.breaks = lambda _, answer: change(answer)
    code, _, said = mini(url)
    assert code == 3 and "unreadable response" in said


@pytest.mark.parametrize("part, value", [("top_logprobs", "x"), ("token_logprobs", "x")])
def test_echoed_values_of_another_kind_are_refused(fake, mini, part, value):
    url, server = fake

    def breaks(body, answer):
        if body.get("echo"):
            told = answer["choices"][0]["logprobs"]
            told[part] = [None, *[value] * (len(told[part]) - 1)]

    server.breaks = breaks
    code, _, said = mini(url, suite="mini-choices")
    assert code == 1 and "unreadable log-probabilities" in said


@pytest.mark.parametrize(
    "models, code",
    [(["m"], 2), ([None], 2), ({"id": "m"}, 3), ([{"name": "m"}], 2), ([{"id": "m", "max_model_len": "long"}], 0)],
)
def test_a_strange_list_of_models(fake, mini, models, code):
    url, server = fake
    knows(server)
    server.models = models
    result, _, said = mini(url)
    assert result == code and ("lists no model" in said) == (code == 2)
    assert ("JSON without a list of models" in said) == (code == 3)
    assert "--model" not in said


def test_an_unreadable_journal_line_is_sent_again(fake, mini, tmp_path):
    url, server = fake
    knows(server)
    mini(url)
    file = tmp_path / "out" / "requests.jsonl"
    stored = [json.loads(line) for line in file.read_text().splitlines()]
    stored[1]["finish_reason"], stored[2]["prompt_tokens"] = {"type": "stop"}, "n/a"
    file.write_text("".join(json.dumps(one) + "\n" for one in stored))
    code, _, said = mini(url)
    assert code == 0 and "2 lines of" in said and len(server.items()) == 2 * LIMIT + 2
