"""One request and many: bounded in time and attempts, failures counted, no keys in stored data."""

import threading
import time

import pytest

from halfbyte.endpoint import sending
from halfbyte.endpoint.client import Endpoint, EndpointError, parse_url
from halfbyte.endpoint.sending import Sender
from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.retry import Backoff


def bodies(*prompts):
    return [{"model": "m", "prompt": prompt, "max_tokens": 8, "seed": 1234} for prompt in prompts]


def send(url, prompts, *, timeout_s=5.0, concurrency=4):
    result = {}
    Sender(Endpoint(url, timeout_s), concurrency, Backoff(3, 0.01)).send(
        "/v1/completions", bodies(*prompts), lambda number, outcome: result.update({number: outcome})
    )
    return [result[number] for number in range(len(prompts))]


@pytest.mark.parametrize("given", ["h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/chat/completions"])
def test_urls_may_end_in_v1_or_an_api_path(given):
    assert parse_url(given, 1).url == "http://h:1"


def test_a_path_of_any_letters_is_sent_as_bytes():
    assert parse_url("http://h:1/größe/v1", 5).url == "http://h:1/gr%C3%B6%C3%9Fe"
    assert parse_url("http://h:1/a%20b", 5).url == "http://h:1/a%20b"


def test_a_path_before_v1_is_kept():
    assert parse_url("https://h/team/v1/", 1).url == "https://h/team"


@pytest.mark.parametrize(
    "given", ["", "ftp://h", "file:///etc/passwd", "http://", "http://user:secret@h", "http://[::1", "http://h:port",
              "http://h:99999", "http://h:1?x=1", "http://h:1#x"]
)  # fmt: skip
def test_invalid_urls_and_urls_with_secrets_are_refused(given):
    with pytest.raises(UsageError):
        parse_url(given, 1)


def test_each_outcome_has_its_index(fake):
    url, server = fake
    server.answers = {f"item{number}": f"answer{number}" for number in range(30)}
    result = send(url, [f"item{number}" for number in range(9)])
    assert [one.body["choices"][0]["text"] for one in result] == [f"answer{number}" for number in range(9)]
    assert {one.attempts for one in result} == {1}


def test_transient_errors_are_retried(fake):
    url, server = fake
    server.fails["twice"], server.closes["closed"] = 2, 1
    twice, closed, fine = send(url, ["twice", "closed", "fine"])
    assert [one.error for one in (twice, closed, fine)] == [None] * 3
    assert [one.attempts for one in (twice, closed, fine)] == [3, 2, 1]


def test_a_request_that_keeps_failing_is_an_error_and_others_continue(fake):
    url, server = fake
    server.fails["bad"] = 99
    result = send(url, ["bad", *(f"good{number}" for number in range(8))])
    assert "HTTP 500" in result[0].error and result[0].attempts == 3
    assert all(one.error is None for one in result[1:])


def test_a_client_error_is_not_retried(fake):
    url, server = fake
    server.refuses["long"] = 400
    (result,) = send(url, ["long"])
    assert "HTTP 400" in result.error and result.attempts == 1


def test_a_hung_server_is_bounded_by_the_timeout(fake):
    url, server = fake
    server.hangs["slow"] = 30
    start = time.monotonic()
    slow, fine = send(url, ["slow", "fine"], timeout_s=0.3)
    assert slow.error == "no answer in 0.3 s" and fine.error is None
    assert time.monotonic() - start < 10


def test_a_server_that_drips_bytes_is_bounded_as_well():
    import socket

    listener = socket.create_server(("127.0.0.1", 0))

    def drip():
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            try:
                peer.sendall(b" ")
            except OSError:
                return
            time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(EndpointError, match="no answer"):
        Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", 1.0).post("/", {})
    assert time.monotonic() - start < 5


def test_a_truncated_body_is_retried():
    import socket

    listener = socket.create_server(("127.0.0.1", 0))

    def cut():
        peer, _ = listener.accept()
        peer.recv(65536)
        peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [')
        peer.close()

    threading.Thread(target=cut, daemon=True).start()
    with pytest.raises(EndpointError) as error:
        Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", 5.0).post("/", {})
    assert error.value.again


def test_an_unreachable_server_ends_the_run_at_once():
    start = time.monotonic()
    with pytest.raises(MachineError, match="the endpoint no longer responds") as error:
        send("http://127.0.0.1:9", [f"item{number}" for number in range(100)])
    assert "run the same command again" in error.value.fix
    assert time.monotonic() - start < 10


def test_a_server_that_only_fails_ends_the_run(fake):
    url, server = fake
    server.refuses["item"] = 400
    with pytest.raises(MachineError, match="the endpoint no longer responds"):
        send(url, [f"item{number}" for number in range(3 * sending.GIVE_UP_AFTER)], concurrency=1)
    assert len(server.items()) < 2 * sending.GIVE_UP_AFTER


def test_the_api_key_is_sent_and_never_reported(fake, monkeypatch):
    url, server = fake
    monkeypatch.setenv("HALFBYTE_API_KEY", "sk-very-secret")
    server.refuses["item"] = 401
    (result,) = send(url, ["item"])
    assert "Bearer ***" in result.error  # the server repeated it
    assert "secret" not in result.error
