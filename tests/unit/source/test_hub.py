"""Checkpoints on the Hub, against a small server that answers as the Hub does."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from quiet_server import QuietServer

from halfbyte.source.checkpoint import open_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import json, os, sys
from halfbyte.errors import HalfbyteError
from halfbyte.source import hub
from halfbyte.source.hub import open_hub
hub._FIRST_NBYTES = int(os.environ.get("FIRST_NBYTES", hub._FIRST_NBYTES))
answers = []
for address in sys.argv[1:]:
    try:
        found = open_hub(address)
        answers.append({"tensors": {n: [t.dtype, t.shape, t.shard, t.begin, t.end] for n, t in found.tensors.items()}})
    except HalfbyteError as error:
        answers.append({"error": [type(error).__name__, error.what, error.fix]})
print(json.dumps(answers))
"""


class Hub(BaseHTTPRequestHandler):
    folder: Path
    sent_nbytes = 0

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            return self.info(path.removeprefix("/api/models/"))
        owner, _, rest = path.removeprefix("/").partition("/")
        return self.file(owner, rest.partition(f"/resolve/{COMMIT}/")[2])

    def info(self, path):
        if path.startswith("gated/"):
            return self.refuse(403, "GatedRepo")
        if path.startswith("nobody/"):
            return self.refuse(404, "RepoNotFound")
        if "/revision/" in path and not path.endswith(COMMIT):
            return self.refuse(404, "RevisionNotFound")
        if path.startswith("broken/"):
            return self.refuse(500, "")
        files = sorted(file for file in self.folder.rglob("*") if file.is_file())
        if path.startswith("empty/"):
            files = [file for file in files if ".safetensors" not in file.name]
        siblings = [{"rfilename": str(f.relative_to(self.folder)), "size": f.stat().st_size} for f in files]
        return self.send(200, json.dumps({"id": "org/name", "sha": COMMIT, "siblings": siblings}).encode())

    def file(self, owner, name):
        raw = (self.folder / name).read_bytes()
        begin, end = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
        if owner == "rangeless":
            return self.send(200, raw)
        return self.send(206, raw[begin : end + 1])

    def refuse(self, status, code):
        self.send(status, b"", {"X-Error-Code": code})

    def send(self, status, body, headers=None):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        type(self).sent_nbytes += len(body)
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(pico):
    handler = type("Handler", (Hub,), {"folder": pico("spread")})
    with QuietServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(endpoint: str, *addresses: str, **variables: str) -> list[dict]:
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment |= {"HF_ENDPOINT": endpoint, "NO_PROXY": "*", "HF_HUB_DISABLE_TELEMETRY": "1", **variables}
    command = [sys.executable, "-c", PROGRAM, *addresses]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_the_hub_holds_is_what_the_folder_holds(hub):
    addresses = ["hf://org/name", f"hf://org/name@{COMMIT}", "hf://rangeless/name"]
    answers = ask(f"http://127.0.0.1:{hub.server_port}", *addresses)
    local = open_checkpoint(hub.RequestHandlerClass.folder).tensors
    expected = {name: [t.dtype, list(t.shape), t.shard, t.begin, t.end] for name, t in local.items()}
    assert [answer.get("tensors") for answer in answers] == [expected] * 3


def test_only_headers_travel_and_long_ones_in_two_parts(hub):
    folder = hub.RequestHandlerClass.folder
    (answer,) = ask(f"http://127.0.0.1:{hub.server_port}", "hf://org/name", FIRST_NBYTES="64")
    assert answer["tensors"].keys() == open_checkpoint(folder).tensors.keys()
    headers_nbytes = sum(info.begin for info in first_tensors(folder))
    files_nbytes = sum((folder / name).stat().st_size for name in ("config.json", "model.safetensors.index.json"))
    assert headers_nbytes <= hub.RequestHandlerClass.sent_nbytes - files_nbytes <= headers_nbytes + 2000


def first_tensors(folder):
    tensors = open_checkpoint(folder).tensors.values()
    return [
        min((t for t in tensors if t.shard == shard), key=lambda t: t.begin) for shard in {t.shard for t in tensors}
    ]


def test_what_the_hub_refuses_is_said_in_our_words(hub):
    addresses = ["hf://gated/name", "hf://nobody/name", "hf://org/name@typo", "hf://broken/name", "hf://a/b/c/d"]
    answers = ask(f"http://127.0.0.1:{hub.server_port}", *addresses, "hf://empty/name")
    said = [answer["error"][:2] for answer in answers]
    assert said == [
        ["CheckpointError", "the repository is gated, and you have no access"],
        ["CheckpointError", "there is no such repository, or it is private"],
        ["CheckpointError", "the repository has no such revision"],
        ["CheckpointError", "the Hub answered with status 500"],
        ["UsageError", "'a/b/c/d' is no name of a repository"],
        ["CheckpointError", "there are no safetensors in this repository"],
    ]
    assert "HF_TOKEN" in answers[0]["error"][2]
    assert all(fix for _, _, fix in (answer["error"] for answer in answers))


def test_without_a_network():
    closed = "http://127.0.0.1:9"
    for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
        (answer,) = ask(closed, "hf://org/name", **variables)
        kind, what, fix = answer["error"]
        assert kind == "MachineError"
        assert what.startswith("the Hub cannot be reached: ")
        assert "give its folder" in fix
