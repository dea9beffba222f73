"""Servers that hang in various ways: a request never exceeds its deadline, however slowly data arrives."""

import threading
import time

import pytest
from hung_proxy import HANGS, HungProxy
from scripted_server import Said, ScriptedServer

from halfbyte.bench import server as bench_server
from halfbyte.endpoint.client import Endpoint, EndpointError

WITHIN_S = 0.6
AT_MOST_S = 10.0  # on a busy machine; an unbounded read would last as long as the test waits
FAULT = "an endpoint that {}"


@pytest.fixture
def upstream():
    server = ScriptedServer(lambda _: Said("fine"))
    yield server.url
    server.close()


def ended(ask) -> str:
    """Return the error of a request that must respect its deadline; otherwise fail without hanging."""
    result = []

    def run():
        try:
            ask()
        except EndpointError as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    start = time.monotonic()
    thread.start()
    thread.join(AT_MOST_S)
    assert result, f"still waiting after {AT_MOST_S:g} s"
    assert time.monotonic() - start >= WITHIN_S * 0.9 or result[0].status == 503
    return str(result[0])


@pytest.mark.parametrize("how", HANGS)
def test_a_request_ends_in_time_and_the_next_one_is_answered(upstream, tally, how):
    proxy = HungProxy(upstream, how)
    endpoint, body = Endpoint(proxy.url, WITHIN_S), {"messages": [], "model": "m"}
    asks = {
        "whole": lambda: endpoint.post("/v1/chat/completions", body),
        "streamed": lambda: list(endpoint.events("/v1/chat/completions", {**body, "stream": True})),
    }
    for ask in asks.values():
        with tally.one(FAULT.format(how)):
            said = ended(ask)
            assert said == ("HTTP 503: " if "error" in how else f"no answer in {WITHIN_S:g} s")
    assert proxy.hung == 2
    proxy.heal()
    assert endpoint.post("/v1/chat/completions", body)["choices"][0]["message"]["content"] == "fine"
    proxy.close()


def test_a_slow_metrics_page_is_given_up(monkeypatch, upstream, tally):
    """`bench` reads a server's pages before and after each block."""
    monkeypatch.setattr(bench_server, "ANSWERS_WITHIN_S", WITHIN_S)
    for how in ("drips its headers", "drips its body", "drips the size of a chunk"):
        monkeypatch.setattr("hung_proxy._Handler.do_GET", drips(how))
        proxy = HungProxy(upstream, how)
        result = []
        with tally.one(f"a page that {how}"):
            thread = threading.Thread(target=lambda u=proxy.url, f=result: f.append(bench_server.fetch(u)), daemon=True)
            thread.start()
            thread.join(AT_MOST_S)
            assert result == [None]
        proxy.close()


def drips(how):
    def do_GET(self):  # noqa: N802 - http.server's name
        first, drops = HANGS[how]
        self.wfile.write(first)
        while True:
            time.sleep(0.1)
            self.wfile.write(drops)

    return do_GET
