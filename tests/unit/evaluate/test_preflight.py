"""Requirements on an endpoint before its scores are valid."""

import pytest

from halfbyte.endpoint.client import Endpoint
from halfbyte.endpoint.identity import fingerprint, same_probes
from halfbyte.errors import CheckFailedError, MachineError, UsageError
from halfbyte.evaluate.parity import known_now, parity
from halfbyte.evaluate.preflight import PARITY_PROMPTS, preflight
from halfbyte.evaluate.suites import load_suite

MINI, GENERATIVE = load_suite("mini"), load_suite("mini-generative")
HOW = {"concurrency": 4, "lm_eval": "0.4.13"}


def levels(result):
    return {one.check: one.level for one in result.findings}


def test_a_good_server_passes_everything(fake):
    url, _ = fake
    result = preflight(Endpoint(url, 5), None, MINI)
    assert set(levels(result).values()) == {"good"}
    assert {*levels(result)} == {"stop", "greedy", "seed", "usage", "likelihoods"}
    assert result.prompt_tokens["completions"] == [len(text) for text in PARITY_PROMPTS]
    assert (result.identity.model, result.identity.max_context, result.identity.reported["version"]) == (
        "m",
        100_000,
        "1.0",
    )


@pytest.mark.parametrize(
    "echo, problem",
    [
        ("ignored", "it returns 1 log-probabilities for"),
        ("shifted", "the values are shifted"),
        ("no null", "the first token has a log-probability"),
    ],
)
def test_wrong_likelihoods_are_refused_and_the_letters_offered(fake, echo, problem):
    url, server = fake
    server.echo = echo
    with pytest.raises(CheckFailedError, match=problem) as error:
        preflight(Endpoint(url, 5), None, MINI)
    assert "--suite mini-generative" in error.value.fix
    preflight(Endpoint(url, 5), None, GENERATIVE)  # which needs none


def test_without_the_servers_tokens_likelihoods_are_refused(fake):
    url, server = fake
    server.no_tokenize = True
    with pytest.raises(CheckFailedError, match="it has no /tokenize endpoint"):
        preflight(Endpoint(url, 5), None, MINI)


def test_a_stop_text_that_is_ignored_is_refused(fake):
    url, server = fake
    server.ignores_stop = True
    with pytest.raises(CheckFailedError, match="the server ignores stop strings"):
        preflight(Endpoint(url, 5), None, GENERATIVE)


def test_an_unreachable_server_fails_the_preflight():
    with pytest.raises(MachineError, match="the server does not respond"):
        preflight(Endpoint("http://127.0.0.1:9", 5), None, MINI)


def test_one_of_several_models_must_be_named(fake):
    url, server = fake
    server.models = [{"id": "first"}, {"id": "second"}]
    with pytest.raises(UsageError, match="2 models") as error:
        preflight(Endpoint(url, 5), None, GENERATIVE)
    assert "first, second" in error.value.fix
    with pytest.raises(UsageError, match="no model 'secnd'") as error:
        preflight(Endpoint(url, 5), "secnd", GENERATIVE)
    assert "second" in error.value.fix
    assert preflight(Endpoint(url, 5), "second", GENERATIVE).identity.model == "second"


def test_the_only_model_of_the_reference_may_have_another_name(fake):
    url, _ = fake
    assert preflight(Endpoint(url, 5), "other", GENERATIVE, any_name=True).identity.model == "m"


def test_different_tokenization_is_refused(start_fake):
    (url_a, _), (url_b, b) = start_fake(), start_fake()
    b.extra_token = True  # a second start-of-text token
    ours, theirs = (preflight(Endpoint(url, 5), None, GENERATIVE) for url in (url_a, url_b))
    with pytest.raises(CheckFailedError, match="tokenize the same prompt differently"):
        parity(known_now(ours, HOW), known_now(theirs, HOW))


def test_every_difference_of_two_servers_is_reported(start_fake):
    (url_a, a), (url_b, b) = start_fake(), start_fake()
    a.models[0]["root"], b.models[0]["root"] = "/nvfp4", "/int4"  # that is what is compared
    same = parity(*(known_now(preflight(Endpoint(url, 5), None, GENERATIVE), HOW) for url in (url_a, url_b)))
    assert [one.level for one in same] == ["good"]
    b.version, b.models[0]["max_model_len"] = "1.1", 4096
    unlike = parity(*(known_now(preflight(Endpoint(url, 5), None, GENERATIVE), HOW) for url in (url_a, url_b)))
    assert [one.sentence.split(": ", 1)[1] for one in unlike] == [
        "max_model_len: 100000 against 4096",
        "version: 1.0 against 1.1",
    ]


def test_the_fingerprint_tolerates_noise_but_not_another_checkpoint(fake):
    url, server = fake
    first = preflight(Endpoint(url, 5), None, GENERATIVE)
    known = fingerprint([], first.identity, first.probes)
    again = preflight(Endpoint(url, 5), None, GENERATIVE)
    assert fingerprint([known], again.identity, again.probes) is known
    server.salt = "another "
    other = preflight(Endpoint(url, 5), None, GENERATIVE)
    assert fingerprint([known], other.identity, other.probes)["fingerprint"] != known["fingerprint"]


def test_log_probabilities_may_differ_by_noise_only():
    def probes(value):
        return [{"text": "Paris", "logprobs": [-0.5, value]}]

    assert same_probes(probes(-1.0), probes(-1.02))
    assert not same_probes(probes(-1.0), probes(-1.2))
    assert not same_probes(probes(-1.0), [{"text": "Rome", "logprobs": [-0.5, -1.0]}])
    assert not same_probes(probes(-1.0), [{"text": "Paris", "logprobs": [-0.5]}])
