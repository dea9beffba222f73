"""A small OpenAI-compatible server for faults that a real one does not show on demand.

A token is a character. Answers are looked up (`answers`: a part of the prompt -> the text); probabilities after a
prefix follow from a hash of the prefix, so that greedy steps and echoed log-probabilities agree unless configured
otherwise.
"""

import json
import threading
import time
import zlib
from collections import Counter
from http.server import BaseHTTPRequestHandler

import pytest
from known_answers import LIMIT, ROOT
from quiet_server import QuietServer

ANSWER_OF_PROBES = "one two three four five six"


class Fake:
    """Contents, faults and requests of the server."""

    def __init__(self) -> None:
        self.models = [{"id": "m", "root": "/checkpoint", "max_model_len": 100_000}]
        self.version = "1.0"
        self.answers: dict[str, str] = {}
        self.right_letters: dict[str, str] = {}  # a part of the prompt -> the letter that is likely after it
        self.fails: Counter[str] = Counter()  # a part of the prompt -> how often it gets a 500
        self.closes: Counter[str] = Counter()
        self.hangs: dict[str, float] = {}
        self.refuses: dict[str, int] = {}  # a part of the prompt -> a status
        self.nulls: set[str] = set()
        self.cut: set[str] = set()
        self.delay = 0.0
        self.echo = "right"  # or "ignored", "shifted", "no null"
        self.repeats_key = False  # in what it writes
        self.no_logprobs = False  # of answers; the echoed ones are `echo`
        self.refuses_logprobs = False
        self.weights = ""  # another checkpoint that writes the same texts
        self.changes: dict[int, dict[str, object]] = {}  # after so many items: what of all this is another
        self.started: str | None = None
        self.ignores_stop = self.no_tokenize = self.extra_token = False
        self.salt = ""  # another checkpoint under the same name
        self.breaks = None  # a function of a request and its answer, which it may change as it likes
        self.asked: list[dict] = []
        self.lock = threading.Lock()

    def items(self) -> list[dict]:
        """The requests for items: those with lm-eval's seed."""
        with self.lock:
            return [one for one in self.asked if one.get("seed") == 1234]

    def best(self, prefix: str) -> tuple[str, float]:
        value = zlib.crc32((self.salt + prefix).encode())
        return chr(97 + value % 26), -0.1 - (value % 1000) / 300

    def logprobs(self, prefix: str, text: str) -> float:
        letter = next((right for part, right in self.right_letters.items() if part in prefix), None)
        if letter is not None and prefix.endswith("Answer: "):
            return -0.1 if text == letter else -3.0
        token, value = self.best(prefix)
        return value if token == text else -9.0


def prompt_of(body: dict) -> str:
    if "messages" in body:
        return "".join(one["content"] for one in body["messages"])
    prompt = body["prompt"]
    if isinstance(prompt, list):
        return "".join(map(chr, prompt[0]))
    return prompt


def once(counts: Counter, prompt: str) -> bool:
    part = next((part for part, left in counts.items() if part in prompt and left > 0), None)
    if part is None:
        return False
    counts[part] -= 1
    return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def fake(self) -> Fake:
        return self.server.fake

    def log_message(self, *_):
        pass

    def reply(self, value, status=200):
        self.reply_text(json.dumps(value), status)

    def reply_text(self, text, status=200):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/metrics" and self.fake.started:
            return self.reply_text(f"process_start_time_seconds {self.fake.started}\n")
        known = {"/v1/models": {"data": self.fake.models}, "/version": {"version": self.fake.version}}
        return self.reply(known.get(self.path, {}), 200 if self.path in known else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.reply({}, 404) if self.fake.no_tokenize else self.reply({"tokens": self.tokens(body)})
        fake, prompt = self.fake, prompt_of(body)
        with fake.lock:
            fake.asked.append(body)
            items = sum(one.get("seed") == 1234 for one in fake.asked)
            for name, value in fake.changes.pop(items, {}).items():
                setattr(fake, name, value)
            failing, closing = once(fake.fails, prompt), once(fake.closes, prompt)
        time.sleep(fake.delay + next((s for part, s in fake.hangs.items() if part in prompt), 0))
        if closing:
            return self.connection.close()
        status = next((status for part, status in fake.refuses.items() if part in prompt), 500 if failing else 0)
        if fake.refuses_logprobs and body.get("logprobs"):
            status = 400
        if status:
            return self.reply({"error": f"not now, {self.headers.get('Authorization')}"}, status)
        answer = self.answer(body, prompt)
        if fake.breaks:
            fake.breaks(body, answer)
        return self.reply(answer)

    def tokens(self, body):
        return list(map(ord, body.get("prompt") or prompt_of(body)))

    def answer(self, body, prompt):
        fake = self.fake
        usage = {"prompt_tokens": len(prompt) + fake.extra_token, "completion_tokens": 1}
        if body.get("logprobs") and (body.get("echo") or body["max_tokens"] == 1):
            return {"choices": [self.scored(prompt, body.get("echo", False))], "usage": usage}
        text, finish = self.written(body, prompt)
        usage["completion_tokens"] = len(text)
        logprobs = self.of_answer(body, text)
        if "messages" in body:
            content = None if any(part in prompt for part in fake.nulls) else text
            choice = {"message": {"content": content}}
        else:
            choice = {"text": text}
        choice |= {"index": 0, "finish_reason": finish, "logprobs": logprobs}
        return {"choices": [choice], "usage": usage}

    def of_answer(self, body, text):
        if not body.get("logprobs") or self.fake.no_logprobs:
            return None
        values = [-(zlib.crc32(f"{self.fake.weights}{place}".encode()) % 1000) / 300 for place in range(len(text))]
        if "messages" in body:
            return {"content": [{"token": token, "logprob": v} for token, v in zip(text, values, strict=True)]}
        return {"tokens": list(text), "token_logprobs": values, "top_logprobs": None}

    def written(self, body, prompt):
        fake = self.fake
        text = next((text for part, text in fake.answers.items() if part in prompt), fake.salt + ANSWER_OF_PROBES)
        if body.get("temperature"):
            text += f" drawn with {body.get('seed')}"
        finish = "length" if any(part in prompt for part in fake.cut) else "stop"
        if fake.repeats_key:
            text += f" {self.headers.get('Authorization')}"
        for stop in [] if fake.ignores_stop else body.get("stop") or []:
            text = text.split(stop)[0]
        return text, finish

    def scored(self, prompt, echo):
        fake = self.fake
        whole = prompt + fake.best(prompt)[0]
        values = [None, *(fake.logprobs(whole[:place], whole[place]) for place in range(1, len(whole)))]
        best = [
            None,
            *(dict([fake.best(whole[:place]), (whole[place], values[place])]) for place in range(1, len(whole))),
        ]
        if not echo or fake.echo == "ignored":
            whole, values, best = whole[-1:], values[-1:], best[-1:]
        elif fake.echo == "shifted":
            values, best = [None, *values[2:], -1.0], [None, *best[2:], {"x": -1.0}]
        elif fake.echo == "no null":
            values = [-1.0, *values[1:]]
        logprobs = {"tokens": list(whole), "token_logprobs": values, "top_logprobs": best}
        return {"index": 0, "text": whole, "finish_reason": "length", "logprobs": logprobs}


@pytest.fixture
def start_fake():
    """Return a function that starts a server and returns its address and state."""
    servers = []

    def start() -> tuple[str, Fake]:
        server = QuietServer(("127.0.0.1", 0), Handler)
        server.fake = Fake()
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", server.fake

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def fake(start_fake):
    return start_fake()


@pytest.fixture
def mini(halfbyte, tmp_path):
    """Return a function that evaluates with one of kimi-mini's suites."""

    def run(*argv, suite="mini-generative", out="out"):
        return halfbyte("eval", *argv, "--suite", suite, "--data-dir", ROOT, "--limit", LIMIT, "-o", tmp_path / out)

    return run
