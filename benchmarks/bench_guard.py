"""Cost of the loop-stopping proxy: delay from server to client with and without it. Each runs in its own process.

python benchmarks/bench_guard.py [--write]     # half a minute; writes benchmarks/results/guard_202611.{json,md}

The server writes a chunk of a word, with the time in it, every 20 ms into each stream; the client takes the time again.
Clocks are the machine's monotonic one, which processes share.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from halfbyte.serve.loop_proxy.proxy import Guard

RESULTS = Path(__file__).parent / "results" / "guard_202611"
PAUSE_S, CHUNKS, STREAMS = 0.02, 200, (1, 16, 64)
WORDS = Path(__file__).read_text(encoding="utf-8").split()
ASKED = itertools.count()
HEAD = {"Content-Type": "text/event-stream"}


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers=HEAD)
    await response.prepare(request)
    first = 37 * next(ASKED)  # other words for each, so that not all are checked at the same moment
    start = time.monotonic()
    for at in range(CHUNKS):
        await asyncio.sleep(max(0.0, start + at * PAUSE_S - time.monotonic()))
        delta = {"content": f"{WORDS[(first + at * 7) % len(WORDS)]}{at} "}
        event = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "at": time.monotonic()}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def listen(runner: web.AppRunner) -> None:
    """Say the port on stdout and serve until we are ended."""
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def ask(url: str, streams: int) -> list[float]:
    """Return the delay of every chunk, in seconds."""
    delays: list[float] = []
    async with ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=120)) as session:

        async def one(number: int) -> None:
            await asyncio.sleep(number * PAUSE_S / streams)  # not all at the same moment
            async with session.post(f"{url}/v1/chat/completions", json={"stream": True}) as response:
                async for line in response.content:
                    now = time.monotonic()
                    if line.startswith(b"data: {"):
                        delays.append(now - json.loads(line[6:])["at"])

        await asyncio.gather(*(one(number) for number in range(streams)))
    assert len(delays) == streams * CHUNKS
    return delays


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(role: str, *words: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, __file__, "--role", role, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{int(process.stdout.readline())}"


def measured(url: str, streams: int, guard: int | None) -> dict[str, float]:
    before = 0.0 if guard is None else cpu_seconds(guard)
    client = [sys.executable, __file__, "--role", "client", url, str(streams)]
    found = json.loads(subprocess.run(client, capture_output=True, text=True, check=True).stdout)
    if guard is not None:
        found["guard_cpu_us_per_chunk"] = (cpu_seconds(guard) - before) * 1e6 / (streams * CHUNKS)
        found["guard_cpu_share"] = (cpu_seconds(guard) - before) / (CHUNKS * PAUSE_S)
    return found


def told(delays: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(delays, n=100)
    return {"median_us": statistics.median(delays) * 1e6, "p90_us": cuts[89] * 1e6, "p99_us": cuts[98] * 1e6}


def as_table(found: dict) -> str:
    lines = ["# What the guard costs", "", f"{found['chunks_per_second']:.0f} chunks a second in each stream; load "
             f"{found['load'][0]:.1f} before and {found['load'][1]:.1f} after, {found['cores']} cores.", "",
             "| streams | median, p90, p99 without, us | with the guard, us | added, median | guard: CPU per chunk |"
             " of a core |", "|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for row in found["rows"]:
        without, with_it = ([f"{row[side][key]:,.0f}" for key in ("median_us", "p90_us", "p99_us")]
                            for side in ("direct", "guarded"))  # fmt: skip
        guarded = row["guarded"]
        added = guarded["median_us"] - row["direct"]["median_us"]
        lines.append(f"| {row['streams']} | {' / '.join(without)} | {' / '.join(with_it)} | {added:,.0f} us |"
                     f" {guarded['guard_cpu_us_per_chunk']:.0f} us | {guarded['guard_cpu_share']:.0%} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def bench(*, write: bool) -> None:
    before = os.getloadavg()[0]
    server, behind = started("server")
    guard, front = started("guard", behind)
    try:
        rows = [
            {"streams": streams, "direct": measured(behind, streams, None),
             "guarded": measured(front, streams, guard.pid)}
            for streams in STREAMS
        ]  # fmt: skip
    finally:
        for process in (guard, server):
            process.kill()
            process.wait()
    load = (before, os.getloadavg()[0])
    found = {"chunks_per_second": 1 / PAUSE_S, "load": load, "cores": os.cpu_count(), "rows": rows}
    print(as_table(found))
    if write:
        RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(as_table(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--role", choices=("server", "guard", "client"), help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role is None:
        bench(write=asked.write)
    elif asked.role == "client":
        print(json.dumps(told(asyncio.run(ask(asked.words[0], int(asked.words[1]))))))
    elif asked.role == "guard":
        asyncio.run(listen(Guard(asked.words[0]).runner()))
    else:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", stream)
        asyncio.run(listen(web.AppRunner(app, access_log=None)))


if __name__ == "__main__":
    main()
