"""The loop-stopping proxy in front of a real streaming server: loops are stopped, everything else passes unchanged."""

import asyncio
import json
import statistics
import time
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("aiohttp")
from aiohttp import ClientError, ClientSession, web
from yarl import URL

from halfbyte.serve.loop_proxy.proxy import Guard

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DONE = b"data: [DONE]\n\n"


def chunk(piece=None, index=0, field="content", finish=None, **more) -> bytes:
    choice = {"index": index, "delta": {} if piece is None else {field: piece}, "finish_reason": finish}
    head = {"id": "c-1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    return b"data: " + json.dumps({**head, "choices": [choice], **more}, ensure_ascii=False).encode() + b"\n\n"


def text_chunk(piece, index=0, finish=None) -> bytes:
    choice = {"index": index, "text": piece, "finish_reason": finish, "logprobs": None}
    return b"data: " + json.dumps({"id": "t", "object": "text_completion", "choices": [choice]}).encode() + b"\n\n"


class Upstream:
    """Send scripted data, and record disconnected clients."""

    def __init__(self, pieces=(), *, endless=None, pause=0.0, status=200, kind="text/event-stream", body=None):
        self.pieces, self.endless, self.pause, self.status, self.kind, self.body = (
            pieces, endless, pause, status, kind, body,
        )  # fmt: skip
        self.sent, self.gone, self.requests = 0, asyncio.Event(), []

    async def answer(self, request):
        self.requests.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        headers = {"Content-Type": self.kind, "X-Request-Id": "r-9"}
        if self.body is not None:
            return web.Response(status=self.status, body=self.body, headers=headers)
        response = web.StreamResponse(status=self.status, headers=headers)
        try:
            await response.prepare(request)
            for piece in self.pieces:
                await response.write(piece)
                await asyncio.sleep(self.pause)
            while self.endless is not None and self.sent < 20000:
                await response.write(self.endless)
                self.sent += 1
                await asyncio.sleep(0.0005)
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        return response


@asynccontextmanager
async def guarded(upstream):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", upstream.answer)
    loops = []
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    async with (
        listening(runner) as behind,
        listening(Guard(behind, noticed=loops.append).runner()) as before,
        ClientSession() as session,
    ):
        yield before, session, loops


@asynccontextmanager
async def listening(runner):
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


async def ask(upstream, path=CHAT, **body):
    async with guarded(upstream) as (before, session, loops):
        body = {"stream": True, **body}
        async with session.post(before + path, json=body) as response:
            raw = await response.read()
            return response.status, response.headers, raw, loops


def events(raw: bytes) -> list:
    assert raw.endswith(DONE)
    return [json.loads(part.removeprefix(b"data: ")) for part in raw.removesuffix(DONE).split(b"\n\n") if part]


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_a_loop_ends_and_the_server_stops(field):
    async def run():
        upstream = Upstream([chunk("It began well. ", field=field)], endless=chunk("saliva ", field=field))
        status, _, raw, loops = await ask(upstream)
        await asyncio.wait_for(upstream.gone.wait(), 5)
        return status, raw, loops, upstream.sent

    status, raw, loops, sent = asyncio.run(run())
    found = events(raw)
    assert status == 200 and len(loops) == 1 and sent < 5000
    assert found[-1]["choices"][0]["finish_reason"] == "repetition"
    assert all(one["choices"][0]["finish_reason"] is None for one in found[:-1])
    assert (found[-1]["id"], found[-1]["model"]) == ("c-1", "m")
    text = "".join(one["choices"][0]["delta"][field] for one in found)
    assert text.startswith("It began well. saliva saliva ") and 300 <= len(text) <= 400


def test_a_loop_in_completions_ends():
    async def run():
        return await ask(Upstream(endless=text_chunk("felis-")), COMPLETIONS)

    found = events(asyncio.run(run())[2])
    assert found[-1]["choices"][0]["finish_reason"] == "repetition" and found[-1]["choices"][0]["text"] == "felis-"


def test_usage_is_sent_if_requested():
    async def run(**more):
        return await ask(Upstream(endless=chunk("saliva ", **more)), stream_options={"include_usage": True})

    counted = {"prompt_tokens": 5, "completion_tokens": 44, "total_tokens": 49}
    assert events(asyncio.run(run(usage=counted))[2])[-1]["usage"] == counted
    last = events(asyncio.run(run())[2])[-1]
    assert last["choices"] == [] and last["usage"]["estimated"] and last["usage"]["completion_tokens"] > 40


def clean_stream() -> bytes:
    words = " ".join(f"word{number} and über 猫{number}" for number in range(200))
    call = [{"index": 0, "id": "functions.f:0", "function": {"name": "f", "arguments": '{"a": "' + "x" * 400 + '"}'}}]
    parts = [chunk(words[at : at + 5]) for at in range(0, len(words), 5)]
    return b"".join([b": hello\n\n", *parts, chunk(call, field="tool_calls"), chunk(finish="tool_calls"), DONE])


@pytest.mark.parametrize("size", [1, 7, 64, 100000])
def test_healthy_text_and_tool_calls_pass_unchanged(size):
    """Also if pieces are cut inside a character."""
    raw = clean_stream()
    status, headers, got, loops = asyncio.run(ask(Upstream([raw[at : at + size] for at in range(0, len(raw), size)])))
    assert (status, got, loops) == (200, raw, [])
    assert headers["X-Request-Id"] == "r-9" and headers["Content-Type"] == "text/event-stream"


@pytest.mark.parametrize("size", [1, 5, 50])
def test_a_loop_is_detected_across_split_characters(size):
    raw = chunk("猫はかわいいです。") * 60
    _, _, got, loops = asyncio.run(ask(Upstream([raw[at : at + size] for at in range(0, len(raw), size)])))
    assert len(loops) == 1 and events(got)[-1]["choices"][0]["finish_reason"] == "repetition"
    assert "\ufffd" not in got.decode()


COPIED = "Then Anna opened the north door, counted the lamps behind it and wrote the sum into the book. "


def streamed(text: str, finish: str, last: str = "", field: str = "content") -> list[bytes]:
    pieces = [chunk(text[at : at + 7], field=field) for at in range(0, len(text), 7)]
    usage = b'data: {"id": "c-1", "choices": [], "usage": {"completion_tokens": 90}}\n\n'
    return [*pieces, chunk(last or None, field=field, finish=finish), usage, DONE]


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
@pytest.mark.parametrize("last", ["", "Anna opened"])
def test_a_choice_that_the_limit_cut_inside_a_loop_ends_with_repetition(field, last):
    """A client that continues after "length" would get more copies; the server's usage and end are forwarded."""
    pieces = streamed(COPIED * 4 + ("Then " if last else "Then Anna opened"), "length", last, field)
    _, _, raw, loops = asyncio.run(ask(Upstream(pieces), stream_options={"include_usage": True}))
    rows = events(raw)
    assert rows[-2]["choices"][0]["finish_reason"] == "repetition" and len(loops) == 1
    assert rows[-1]["usage"] == {"completion_tokens": 90} and raw.count(DONE) == 1
    assert raw.replace(b" ", b"") == b"".join(pieces).replace(b"length", b"repetition").replace(b" ", b"")


@pytest.mark.parametrize(("text", "finish"), [(COPIED * 4 + "Then Anna opened", "stop"), (COPIED * 3, "length")])
def test_a_finished_or_truncated_choice_without_a_loop_passes_unchanged(text, finish):
    pieces = streamed(text, finish)
    _, _, raw, loops = asyncio.run(ask(Upstream(pieces)))
    assert (raw, loops) == (b"".join(pieces), [])


def test_one_of_two_choices_loops_and_the_other_continues():
    good = [f"Number {n} is {n * n}, which is {'even' if n % 2 else 'odd'}. " for n in range(60)]
    pieces = [part for one in good for part in (chunk("saliva saliva ", 0), chunk(one, 1))]
    pieces += [chunk(index=0, finish="length"), chunk(index=1, finish="stop"), DONE]
    _, _, raw, loops = asyncio.run(ask(Upstream(pieces), n=2))
    rows = [choice for event in events(raw) for choice in event["choices"]]
    assert "".join(row["delta"].get("content", "") for row in rows if row["index"] == 1) == "".join(good)
    assert [row["finish_reason"] for row in rows if row["finish_reason"]] == ["repetition", "stop"] and len(loops) == 1


def test_both_choices_loop_and_the_server_stops():
    async def run():
        upstream = Upstream(endless=chunk("saliva ", 0) + chunk("hairs ", 1))
        answer = await ask(upstream, n=2)
        await asyncio.wait_for(upstream.gone.wait(), 5)
        return answer

    _, _, raw, loops = asyncio.run(run())
    ends = [choice for event in events(raw) for choice in event["choices"] if choice["finish_reason"]]
    assert [(end["index"], end["finish_reason"]) for end in ends] == [(0, "repetition"), (1, "repetition")]
    assert len(loops) == 2


def test_errors_other_paths_and_unstreamed_responses_pass_unchanged():
    async def run(upstream, method, path, **more):
        async with (
            guarded(upstream) as (before, session, _),
            session.request(method, URL(before + path, encoded=True), **more) as response,
        ):
            return response.status, response.headers, await response.read()

    refused = Upstream(status=400, kind="application/json", body=b'{"error": {"message": "no"}}')
    status, headers, raw = asyncio.run(
        run(refused, "POST", CHAT, json={"stream": True}, headers={"Authorization": "k"})
    )
    assert (status, raw) == (400, refused.body) and headers["Content-Length"] == str(len(raw))
    method, path, sent, body = refused.requests[0]
    assert (method, path, sent["Authorization"], json.loads(body)) == ("POST", CHAT, "k", {"stream": True})
    models = Upstream(kind="application/json", body=b'{"data": []}')
    assert asyncio.run(run(models, "GET", "/v1/models?a=%2Fb"))[2] == b'{"data": []}'
    assert models.requests[0][:2] == ("GET", "/v1/models?a=%2Fb")
    whole = Upstream(kind="application/json", body=json.dumps({"choices": [{"text": "saliva " * 200}]}).encode())
    assert asyncio.run(run(whole, "POST", COMPLETIONS, json={"prompt": "x"}))[2] == whole.body


def test_a_truncated_response_is_not_reported_as_complete():
    async def broken(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk("Half"))
        request.transport.abort()
        return response

    async def run():
        upstream = Upstream()
        upstream.answer = broken
        await ask(upstream)

    with pytest.raises(ClientError):
        asyncio.run(run())


def test_a_missing_server_is_a_json_error():
    async def run():
        async with (
            listening(Guard("http://127.0.0.1:9").runner()) as before,
            ClientSession() as session,
            session.post(before + CHAT, json={"stream": True}) as response,
        ):
            return response.status, await response.json()

    status, said = asyncio.run(run())
    assert status == 502 and "127.0.0.1:9" in said["error"]["message"]


def test_a_client_that_disconnects_cancels_the_request():
    async def run():
        upstream = Upstream(endless=b": nothing yet\n\n")
        async with guarded(upstream) as (before, session, _):
            response = await session.post(before + CHAT, json={"stream": True})
            await response.content.readany()
            response.close()
            await asyncio.wait_for(upstream.gone.wait(), 5)
            return upstream.sent

    assert asyncio.run(run()) < 10000


def test_a_client_that_disconnects_cancels_a_request_without_output():
    async def run():
        upstream = Upstream([b": soon\n\n"], pause=60)
        async with guarded(upstream) as (before, session, _):
            response = await session.post(before + CHAT, json={"stream": True})
            await response.content.readany()
            response.close()
            await asyncio.wait_for(upstream.gone.wait(), 5)

    asyncio.run(run())


def test_many_streams_at_once():
    async def run():
        words = [f"token{number} " for number in range(100)]
        pieces = [*map(chunk, words), DONE]
        upstream = Upstream(pieces, pause=0.002)
        async with guarded(upstream) as (before, session, loops):

            async def one():
                async with session.post(before + CHAT, json={"stream": True}) as response:
                    return await response.read()

            answers = await asyncio.gather(*(one() for _ in range(64)))
        return answers, b"".join(pieces), loops

    answers, wanted, loops = asyncio.run(run())
    assert answers == [wanted] * 64 and loops == []


def test_a_chunk_is_passed_on_at_once():
    """The delay that the proxy adds to one chunk, median of 200, on a busy machine too."""

    async def run():
        delays = []

        async def stamped(request):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for _ in range(200):
                await response.write(chunk(f"{time.perf_counter():.7f} "))
                await asyncio.sleep(0.002)
            await response.write(DONE)
            return response

        upstream = Upstream()
        upstream.answer = stamped
        async with (
            guarded(upstream) as (before, session, _),
            session.post(before + CHAT, json={"stream": True}) as response,
        ):
            async for line in response.content:
                if line.startswith(b"data: {"):
                    sent = float(json.loads(line[6:])["choices"][0]["delta"]["content"])
                    delays.append(time.perf_counter() - sent)
        return delays

    delays = asyncio.run(run())
    assert len(delays) == 200 and statistics.median(delays) < 0.05
    print(f"median {statistics.median(delays) * 1e6:.0f} microseconds")
