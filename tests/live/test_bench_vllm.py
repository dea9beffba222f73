"""`halfbyte bench` on a real vLLM: a proxy that makes it 30 % slower is detected, and the server equals itself.

CPU speeds support no claim, which is tested too; the ratio and its interval are still reported.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from halfbyte.bench.records import read_records
from halfbyte.cli.main import run
from halfbyte.serve.ports import listening_process, next_free_port

pytestmark = [pytest.mark.live, pytest.mark.slow]  # three minutes: `make slow`

PROXY = Path(__file__).with_name("slow_proxy.py")
FACTOR = 1.3
BLOCKS = 12  # neighbours on a machine of CI disturb more than on one with GPUs
OUTPUT = 24


@pytest.fixture
def server(kimi_mini_server):
    return kimi_mini_server


@pytest.fixture
def slow(server):
    port = next_free_port()
    real = server.url.rpartition(":")[2]
    process = subprocess.Popen([sys.executable, str(PROXY), str(port), real, str(FACTOR)])
    while listening_process(port) is None:
        assert process.poll() is None
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def bench(url: str, against: str, folder: Path, capsys, *options: str) -> dict:
    shape = ["--shape", f"64:{OUTPUT}", "--concurrency", "1", "--blocks", str(BLOCKS), "--timeout", "60"]
    assert run(["bench", url, "--against", against, *shape, "-o", str(folder), "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_proxy_that_slows_it_by_30_percent_is_found(server, slow, tmp_path, capsys):
    found = bench(server.url, slow, tmp_path / "slow", capsys)
    node, user = (one["individual"] for one in found["comparisons"])
    assert node["interval"][0] > 1, found["comparisons"]
    assert node["interval"][0] < FACTOR < node["interval"][1] * 1.1
    assert user["ratio"] > 1
    assert node["headline"] is None
    assert found["headlines"] == []
    assert found["no_claim_because"] == "the server computes on a CPU"
    _, blocks = read_records(tmp_path / "slow" / "bench.jsonl")
    assert len(blocks) == 2 * BLOCKS
    for block in blocks:
        assert [request.output_tokens for request in block.requests] == [OUTPUT] * 4
        assert block.server["generated_tokens"] == 4 * OUTPUT, "the server has counted the same"


def test_the_server_equals_itself(server, tmp_path, capsys):
    found = bench(server.url, server.url, tmp_path / "same", capsys, "--content", "prose")
    for one in found["comparisons"]:
        low, high = one["simultaneous"]["interval"]
        assert low < 1 < high, one
    assert found["differences"] == []
    assert found["headlines"] == []
