"""The loop-stopping proxy with unusual clients and servers: compressed bodies, several prompts, odd chunks."""

import asyncio
import gzip
import json

import pytest

pytest.importorskip("aiohttp")
from aiohttp import web
from test_guard import CHAT, COMPLETIONS, DONE, chunk, guarded, text_chunk

JSON = {"Content-Type": "application/json"}


async def exchange(raw: bytes, path=CHAT, asked=None, *, sent=None, headers=None, told=None, first_s=5.0):
    """Return the received bytes, the loops, and the request body; `told` are additional response headers."""
    got: dict[str, bytes] = {}
    read = asyncio.Event()

    async def answer(request):
        got["body"] = await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(told or {})})
        await response.prepare(request)
        await response.write(raw[: len(raw) // 2])
        await asyncio.wait_for(read.wait(), first_s)  # the client must see the first half before the second is sent
        await response.write(raw[len(raw) // 2 :])
        return response

    upstream = type("Upstream", (), {"answer": staticmethod(answer)})
    body = json.dumps({"stream": True, **(asked or {})}).encode() if sent is None else sent
    async with (
        guarded(upstream) as (before, session, loops),
        session.post(before + path, data=body, headers=JSON | (headers or {})) as response,
    ):
        if "Content-Encoding" in (told or {}):
            await response.content.readany()
        read.set()
        return await response.read(), loops, got.get("body")


def run(*given, **named):
    return asyncio.run(exchange(*given, **named))


def test_a_loop_of_one_prompt_does_not_end_the_others():
    two = b"".join(text_chunk("saliva ", 0) + text_chunk(f"word {n}, ", 1) for n in range(200))
    raw = two + text_chunk("The end.", 1, "stop") + DONE
    for prompt in (["one", "two"], [[1, 2], [3]]):
        said, loops, _ = run(raw, COMPLETIONS, {"prompt": prompt})
        assert len(loops) == 1 and b"The end." in said
    for prompt in ("one", [1, 2, 3], ["one"]):
        said, loops, _ = run(raw, COMPLETIONS, {"prompt": prompt})
        assert len(loops) == 1 and b"The end." not in said  # no second choice was requested


@pytest.mark.parametrize("choice", [{}, {"index": 0, "finish_reason": ""}], ids=["no index", "an empty reason"])
def test_a_loop_is_found_in_chunks_of_other_forms(choice):
    one = {"choices": [{**choice, "delta": {"content": "saliva "}}]}
    raw = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for _ in range(300)) + DONE
    said, loops, _ = run(raw)
    assert len(loops) == 1 and len(said) < len(raw) / 2
    assert json.loads(said.split(b"\n\n")[-3].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "repetition"


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"choices":[{"index":[1],"delta":{}}]}', b'{"choices":[null,5,{"index":{}}]}', b"NaN"],
    ids=["deep", "list", "null", "nan"],
)
def test_unparsable_chunks_pass_unchanged(data):
    raw = b"data: " + data + b"\n\n" + chunk("word") + DONE
    assert run(raw)[0] == raw


def test_a_compressed_request_is_decompressed():
    body = json.dumps({"stream": True, "messages": []}).encode()
    said, _, got = run(chunk("word") + DONE, sent=gzip.compress(body), headers={"Content-Encoding": "gzip"})
    assert got == body and said.endswith(DONE)


def test_a_compressed_response_is_passed_on_at_once():
    """It cannot be inspected; as an event stream it would wait for an empty line that compressed bytes do not have."""
    raw = b"".join(chunk(f"word {n * n} ") for n in range(200)) + DONE
    assert run(gzip.compress(raw), told={"Content-Encoding": "gzip"}, first_s=3.0)[0].endswith(DONE)
