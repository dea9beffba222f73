"""The loop-stopping proxy in front of a real vLLM: a looping pruned kimi-mini is stopped, and the engine stops
computing.

Twelve of 32 experts are kept, as in tests/golden/degeneracy, and the end of a turn is ignored: the model then repeats
itself until the context is full, mostly with the end-of-turn token, which is made visible here (a server removes
special tokens from the text, and the proxy sees only text). The engine's metrics page shows what it computed.
"""

import asyncio
import json
import re
import time
import urllib.request

import pytest
from served_variants import prune_at_random

from halfbyte.degeneracy.loop_test import open_prompts

pytest.importorskip("aiohttp")
pytestmark = [pytest.mark.live, pytest.mark.slow]

KEEP, ROOM = 12, 2048
PROMPTS = [list(open_prompts())[at] for at in (2, 3, 5)]
OPTIONS = ["--served-model-name", "mini", "--max-model-len", str(ROOM), "--max-num-seqs", "2", "--enforce-eager",
           "--limit-mm-per-prompt", '{"image": 0, "video": 0, "vision_chunk": 0}']  # fmt: skip


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    return prune_at_random(tmp_path_factory.mktemp("pruned"), KEEP, seed=1)


def computed(url: str) -> float:
    """Return how many tokens the engine has generated since it started."""
    page = urllib.request.urlopen(f"{url}/metrics", timeout=20).read().decode()
    return sum(map(float, re.findall(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)", page, re.MULTILINE)))


async def streamed(url: str, prompt: str) -> tuple[str, str, dict]:
    """Return the text, the finish reason, and the usage."""
    from aiohttp import ClientSession

    body = {"model": "mini", "messages": [{"role": "user", "content": prompt}], "temperature": 0, "stream": True,
            "max_tokens": ROOM - 200, "ignore_eos": True, "skip_special_tokens": False,
            "stream_options": {"include_usage": True}, "chat_template_kwargs": {"thinking": False}}  # fmt: skip
    async with ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        raw = await response.read()
    assert response.status == 200 and raw.endswith(b"data: [DONE]\n\n"), raw[-500:]
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"], events[-1]["usage"]


async def guarded(url: str) -> list[tuple[str, str, dict, float]]:
    from aiohttp import web

    from halfbyte.serve.loop_proxy.proxy import Guard

    runner = Guard(url).runner()
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    found = []
    try:
        for prompt in PROMPTS:
            before = await asyncio.to_thread(computed, url)
            answer = await streamed(f"http://127.0.0.1:{port}", prompt)
            await asyncio.sleep(2)  # an engine that is not stopped would continue to generate
            after = await asyncio.to_thread(computed, url)
            found.append((*answer, after - before))
    finally:
        await runner.cleanup()
    return found


def test_a_loop_is_ended_and_the_engine_stops(pruned, start_vllm, cpu_options):
    with start_vllm(pruned, *OPTIONS, *cpu_options) as server:
        started = time.monotonic()
        answers = asyncio.run(guarded(server.url))
        print(f"{time.monotonic() - started:.0f} s")
    for text, reason, usage, tokens in answers:
        print(f"{reason}: {len(text)} characters, {tokens:.0f} tokens computed, usage {usage}: {text[-80:]!r}")
    looped = [(usage, tokens) for _, reason, usage, tokens in answers if reason == "repetition"]
    assert looped, "none of the texts loops"
    assert all(tokens < 0.7 * (ROOM - 200) for _, tokens in looped)
    assert all(abs(usage["completion_tokens"] - tokens) <= 20 for usage, tokens in looped)
