"""vLLM's own load generator against misbehaving endpoints: bounded, reported, never a crash or a speed."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from quiet_server import QuietServer

from halfbyte.bench.blocks import Arm, Plan, measure, run_block
from halfbyte.bench.records import open_records
from halfbyte.bench.report import make_report, sentences
from halfbyte.bench.server import inspect_server
from halfbyte.bench.summary import summarize
from halfbyte.bench.vllm_generator import VllmGenerator
from halfbyte.evidence.benchmark import LoadPoint
from halfbyte.serve.supervisor import descendants

TOKENIZER = Path(__file__).parents[2] / "models" / "kimi-mini"
POINT = LoadPoint(16, 5, 2)
WITHIN_S = 2.0
PACE_S = 0.01
COUNTED_IN_CHATS = 23  # tokens of any prompt with its template, by this server


class Handler(BaseHTTPRequestHandler):
    """A minimal OpenAI-compatible server; the fault is in the path: /hang/v1/completions."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or chunks wait for each other
    prompts: list = []  # noqa: RUF012 - shared on purpose
    spans: list = []  # noqa: RUF012 - when each request was being answered, and by which server
    slower = 1.0  # by which each request is slower than the one before

    def do_GET(self):
        if self.path.endswith("/v1/models"):
            body = json.dumps({"data": [{"id": "m", "root": "", "max_model_len": 512}]}).encode()
            self.send_response(200)
        else:
            body = b""
            self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.prompts.append(asked)
        fault, begin = self.path.split("/")[1], time.monotonic()
        try:
            self._answer(asked, fault)
        finally:
            Handler.spans.append((fault, begin, time.monotonic()))

    def _answer(self, asked, fault):
        if fault == "error":
            return self.send_error(500, "out of memory")
        if fault == "hang":
            return time.sleep(WITHIN_S + 3)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = asked["max_tokens" if "prompt" in asked else "max_completion_tokens"] - (fault == "short")
        for at in range(tokens):
            tired = Handler.slower ** len(Handler.prompts) if fault == "tires" else 1
            time.sleep(WITHIN_S if fault == "drip" else PACE_S * tired)
            part = {"text": "a"} if "prompt" in asked else {"delta": {"content": "a"}}
            self._send("data: nonsense\n\n" if fault == "garbage" else _chunk(choices=[part]))
            if fault == "close" and at == 1:
                self.close_connection = True
                return self.connection.close()
        counted = len(asked["prompt"]) if "prompt" in asked else COUNTED_IN_CHATS
        usage = {"prompt_tokens": counted, "completion_tokens": tokens}
        if fault == "recounts":
            usage["prompt_tokens"] += 1
        if fault != "nousage":
            self._send(_chunk(choices=[], usage=usage))
        self._send("data: [DONE]\n\n")
        return self.wfile.write(b"0\r\n\r\n")

    def _send(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, *_):
        pass

    def handle(self):
        with contextlib.suppress(OSError, ValueError):  # the client went away
            super().handle()


def _chunk(**fields) -> str:
    return f"data: {json.dumps(fields)}\n\n"


@pytest.fixture(scope="module")
def server():
    found = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    with VllmGenerator(tmp_path_factory.mktemp("generator") / "log") as found:
        yield found


@pytest.fixture
def block(server, generator):
    """Return a function that runs a block of four requests with a fault."""

    def run(fault: str, content: str = "random", chat: bool = False):
        Handler.prompts = []
        point = LoadPoint(POINT.prompt, POINT.output, POINT.concurrency, content, chat)
        arm = Arm("A", inspect_server(f"{server}/{fault}"))
        plan = Plan((arm,), (point,), 1, str(TOKENIZER), request_within_s=WITHIN_S, rounds=2)
        return run_block(plan, arm, point, 0, generator)

    return run


@pytest.mark.parametrize("content", ["random", "prose", "code", "json"])
def test_a_server_that_behaves(block, content):
    found = block("well", content)
    assert found.problem == ""
    assert len(found.requests) == 4
    seen = summarize([found], {})
    assert seen.tpot["p50"] >= 0.9 * PACE_S
    assert seen.failed == 0
    prompts = [asked["prompt"] for asked in Handler.prompts]
    assert [len(prompt) for prompt in prompts] == [16] * 4
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 4
    assert all(asked["ignore_eos"] and asked["stream"] and asked["max_tokens"] == 5 for asked in Handler.prompts)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error", "out of memory"),
        ("hang", "timed out after 2 s"),
        ("drip", "timed out after 2 s"),
        ("close", "ClientPayloadError"),
        ("short", "received 4 output tokens instead of 5"),
        ("recounts", "the server counted 17 tokens in a prompt of 16"),
        ("nousage", "does not report its output tokens"),
        ("garbage", "JSONDecodeError|Never received a valid chunk"),  # as chunks happen to arrive
    ],
)
def test_a_fault_is_told_in_words_and_within_its_time(block, fault, words):
    start = time.monotonic()
    found = block(fault)
    assert time.monotonic() - start < 60
    assert found.problem.startswith("4 of 4 requests failed: ")
    assert re.search(words, found.problem)
    seen = summarize([found], {})
    assert seen.error_rate == 1
    assert seen.tokens_per_second is None
    assert seen.ttft is None
    assert seen.no_claim_because


def test_a_chat_is_asked_with_a_text_and_counted_by_the_server(block):
    found = block("well", "prose", chat=True)
    assert found.problem == ""
    assert [request.prompt_tokens for request in found.requests] == [COUNTED_IN_CHATS] * 4
    assert [request.output_tokens for request in found.requests] == [POINT.output] * 4
    chats = [asked for asked in Handler.prompts if "messages" in asked]  # one request beside them counts tokens
    texts = [str(asked["messages"][0]["content"]) for asked in chats]
    assert len(set(texts)) == 4 and all(asked["ignore_eos"] for asked in chats)
    assert summarize([found], {}).tpot["p50"] >= 0.9 * PACE_S


def test_a_chat_that_fails_is_told_in_words(block):
    for fault, words in (("error", "out of memory"), ("short", "received 4 output tokens instead of 5")):
        assert words in block(fault, "random", chat=True).problem


def test_a_server_that_slows_down_is_measured_and_told_on(generator, server, tmp_path, monkeypatch):
    monkeypatch.setattr(Handler, "slower", 1.06)
    Handler.prompts = []
    arm = Arm("A", inspect_server(f"{server}/tires"))
    plan = Plan((arm,), (POINT,), 6, str(TOKENIZER), request_within_s=20, rounds=2)
    records = open_records(tmp_path, plan.settings())
    measure(plan, generator, records, lambda _: None)
    seen = summarize(records.blocks, {})
    assert seen.failed == 0 and seen.drift < -0.3
    said = [sentence for _, sentence in sentences(make_report(records.blocks, {}, design="abba", slo={}))]
    assert any("throughput changed by -" in sentence for sentence in said)


def test_two_servers_never_work_at_the_same_time(generator, server, tmp_path):
    Handler.spans = []
    arms = tuple(Arm(name, inspect_server(f"{server}/{fault}")) for name, fault in (("A", "well"), ("B", "fine")))
    plan = Plan(arms, (POINT,), 3, str(TOKENIZER), request_within_s=20, rounds=2)
    measure(plan, generator, open_records(tmp_path, plan.settings()), lambda _: None)
    one, other = ([span[1:] for span in Handler.spans if span[0] == fault] for fault in ("well", "fine"))
    assert len(one) == len(other) == 14, "three blocks of four, and a warm-up of two"
    assert all(end <= start or stop <= begin for begin, end in one for start, stop in other)


def test_a_server_that_is_gone(generator, server):
    arm = Arm("A", inspect_server(f"{server}/well"))
    gone = replace(arm, server=replace(arm.server, url="http://127.0.0.1:1"))
    plan = Plan((gone,), (POINT,), 1, str(TOKENIZER), request_within_s=WITHIN_S, rounds=2)
    found = run_block(plan, gone, POINT, 0, generator)
    assert "4 of 4 requests failed" in found.problem
    assert "Cannot connect" in found.problem


def test_ctrl_c_in_the_middle_leaves_no_process_and_the_same_command_goes_on(server, tmp_path):
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "halfbyte", "bench", f"{server}/well", "--tokenizer", str(TOKENIZER)]
    command += ["--shape", "16:5", "--concurrency", "2", "--blocks", "40", "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = folder / "bench.jsonl"
    until = time.monotonic() + 120
    while not lines.exists() or len(lines.read_text().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "blocks are kept" in said
    assert children
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    kept = len(lines.read_text().splitlines())
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{kept - 1} blocks are already measured" in done.stderr
    assert len(lines.read_text().splitlines()) == 41
    assert json.loads(done.stdout)["points"][0]["blocks"] == 40
