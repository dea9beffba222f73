"""Blocks without errors that support no claim: other users, wrong token counts, or no streaming."""

import pytest

from halfbyte.bench.records import Block, Request
from halfbyte.bench.report import SAME_SERVER, make_report, sentences
from halfbyte.bench.summary import doubt_of
from halfbyte.evidence.benchmark import BenchServer, LoadPoint

POINT = LoadPoint(64, 100, 4)


def block(arm="A", turn=0, made=1000.0, tpot=0.01, seconds=10.0, error=""):
    request = Request(0.0, 0.5, 0.5 + 99 * tpot, (), 64, 100, error)
    server = {"generated_tokens": made, "no_claim_because": ""}
    return Block(arm, POINT, turn, seconds, (request,) * 10, server=server)


def turns(**of_a):
    """Six turns: A is twice as fast, and both vary like real servers."""
    return [
        block(arm, turn, seconds=(5 if arm == "A" else 10) * (1 + 0.01 * ((turn * 7 + (arm == "B")) % 5)), **more)
        for turn in range(6)
        for arm, more in (("A", of_a), ("B", {}))
    ]


@pytest.mark.parametrize("made", [None, 1000.0, 1016.0, 984.0, 1020.0])
def test_an_agreeing_or_missing_counter_raises_no_doubt(made):
    assert doubt_of(block(made=made)) == ""


def test_load_from_other_clients_prevents_the_claim():
    assert make_report(turns(), {}, design="abba", slo={}).headlines, "without a doubt there is a claim"
    for made, why in ((1200.0, "other clients used the server"), (500.0, "the server's counter shows 500 tokens")):
        result = make_report(turns(made=made), {}, design="abba", slo={})
        assert result.headlines == ()
        assert any(why in sentence for _, sentence in sentences(result))


def test_a_buffered_response_raises_a_doubt():
    assert "10 of 10 responses arrived all at once" in doubt_of(block(tpot=1e-6))
    assert "10 of 10 responses arrived all at once" in doubt_of(block(tpot=0.0))
    assert doubt_of(block(tpot=1e-3)) == ""
    assert make_report(turns(tpot=1e-6), {}, design="abba", slo={}).headlines == ()


def test_a_failed_block_is_an_error_not_a_doubt():
    assert doubt_of(block(made=5000.0, error="HTTP 500")) == ""


@pytest.mark.parametrize(("url", "started", "same"), [("http://a", 1.0, True), ("http://b", 1.0, True),
                                                      ("http://b", 2.0, False), ("http://b", None, False)])  # fmt: skip
def test_one_server_under_two_names_is_reported(url, started, same):
    a, b = (
        BenchServer(
            url=at,
            model="m",
            root="/m",
            context=512,
            version="1",
            device="gpu",
            emulated=False,
            local=False,
            kv_tokens=None,
            started=since,
            settings={},
            boot=None,
            no_claim_because="",
        )
        for at, since in (("http://a", None if started is None else 1.0), (url, started))
    )
    result = make_report([], {"A": a, "B": b}, design="abba", slo={})
    assert result.same_server == same
    assert any(SAME_SERVER in sentence for _, sentence in sentences(result)) == same
