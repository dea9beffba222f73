"""A fake Hub for uploads: repositories in memory, and faults on demand.

Large files go through LFS in parts, as on the Hub. Received parts are kept; an object is complete when its parts have
its SHA-256. Received bytes are counted, so that tests can detect duplicate uploads.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from quiet_server import QuietServer

TOKEN = "hf_" + "ThisTokenIsOnlyForTests0123456789"
PART_NBYTES = 20_000


@dataclass
class Fault:
    """A fault, the requests it affects, and how often."""

    method: str
    path: str  # a regular expression
    what: str  # "status", "drop" before it is done, "lose" the answer, "slow", "hang"
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"error": "injected"}'


@dataclass
class Repo:
    private: bool
    gated: Any = False
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    lfs: set[str] = field(default_factory=set)  # names that are kept as LFS
    commits: list[tuple[str, str, list[str]]] = field(default_factory=list)  # branch, message, files


class FakeHub:
    """A server, its contents, and its requests."""

    def __init__(self, small_nbytes: int = 5_000) -> None:
        self.small_nbytes = small_nbytes
        self.repos: dict[str, Repo] = {}  # "models/org/name"
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.received: list[tuple[str, int]] = []  # oid, part: each body that arrived whole
        self.requests: list[tuple[str, str, bool]] = []  # method, path, whether the token was right
        self.faults: list[Fault] = []
        self.hanging = threading.Event()
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            fake = hub

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo: str, branch: str = "main", kind: str = "models") -> dict[str, bytes]:
        return self.repos[f"{kind}/{repo}"].branches[branch]

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


class _DroppedError(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    fake: FakeHub
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for each other

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def _serve(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        right = self.headers.get("authorization") == f"Bearer {TOKEN}"
        self.fake.requests.append((method, path, right))
        fault = self.fake.fault(method, path)
        try:
            if fault and fault.what == "drop":
                raise _DroppedError
            if fault and fault.what == "slow":
                time.sleep(0.5)
            body = self._body()
            if fault and fault.what == "hang":
                self.fake.hanging.set()
                time.sleep(600)
            if fault and fault.what == "status":
                return self._answer(fault.status, fault.body.encode(), fault.headers)
            status, answer, headers = self._act(method, path, body, right)
            if fault and fault.what == "lose":
                raise _DroppedError
            self._answer(status, json.dumps(answer).encode(), headers)
        except _DroppedError:
            self.close_connection = True
            self.connection.close()

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        data = self.rfile.read(wanted := int(self.headers.get("content-length") or 0))
        if len(data) < wanted:
            raise _DroppedError
        return data

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _act(self, method: str, path: str, body: bytes, right: bool) -> tuple[int, Any, dict[str, str]]:
        if path.startswith("/store/"):  # signed addresses: no token
            return self._store(path, body)
        if not right:
            return 401, {"error": "Invalid username or password."}, {}
        data = json.loads(body) if body and not path.startswith(("/api/models/", "/api/datasets/")) else {}
        if path == "/api/repos/create":
            return self._create(data)
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}, {}
        if batch := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self._batch(f"{batch[1] or 'models/'}{batch[2]}", data)
        found = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/([a-z]+)(?:/(.*))?)?", path)
        assert found, path
        repo = self.fake.repos.get(f"{found[1]}/{found[2]}")
        if repo is None:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        with self.fake.lock:
            return self._of_repo(method, repo, found[2], found[3], found[4] or "", body)

    def _create(self, data: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        name = f"{data['organization']}/{data['name']}"
        kind = f"{data.get('type', 'model')}s"
        prefix = "" if kind == "models" else f"{kind}/"
        answer = {"url": f"{self.fake.url}/{prefix}{name}", "name": name, "id": "1"}
        if f"{kind}/{name}" in self.fake.repos:
            return 409, {**answer, "error": "You already created this repo"}, {}
        private = data.get("visibility") == "private" or data.get("private") is True
        self.fake.repos[f"{kind}/{name}"] = Repo(private)
        return 200, answer, {}

    def _of_repo(
        self, method: str, repo: Repo, name: str, what: str | None, rest: str, body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        if what is None:
            return 200, {"id": name, "private": repo.private, "sha": "a" * 40, "siblings": []}, {}
        if what == "settings":
            repo.gated = json.loads(body)["gated"]
            return 200, {}, {}
        if what == "branch":
            if rest in repo.branches:
                return 409, {"error": "exists"}, {}
            repo.branches[rest] = dict(repo.branches["main"])
            return 200, {}, {}
        if (branch := repo.branches.get(rest)) is None:
            return 404, {"error": "no such revision"}, {"X-Error-Code": "RevisionNotFound"}
        if what == "tree":
            return 200, [_entry(path, data, path in repo.lfs) for path, data in sorted(branch.items())], {}
        if what == "preupload":
            return 200, {"files": [self._mode(file, repo, branch) for file in json.loads(body)["files"]]}, {}
        assert (method, what) == ("POST", "commit")
        return self._commit(repo, name, rest, branch, body)

    def _mode(self, file: dict[str, Any], repo: Repo, branch: dict[str, bytes]) -> dict[str, Any]:
        mode = "lfs" if file["size"] > self.fake.small_nbytes else "regular"
        there = branch.get(file["path"])
        oid = None if there is None else _oid(there, file["path"] in repo.lfs)
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def _commit(
        self, repo: Repo, name: str, rest: str, branch: dict[str, bytes], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        header, *operations = [json.loads(line) for line in body.splitlines()]
        names = []
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "lfsFile":
                if value["oid"] not in self.fake.objects:
                    return 400, {"error": f"no such object: {value['path']}"}, {}
                branch[value["path"]] = self.fake.objects[value["oid"]]
                repo.lfs.add(value["path"])
            else:
                branch[value["path"]] = base64.b64decode(value["content"])
            names.append(value["path"])
        repo.commits.append((rest, header["value"]["summary"], names))
        return 200, {"commitUrl": f"{self.fake.url}/{name}/commit/{'b' * 40}", "commitOid": "b" * 40}, {}

    def _batch(self, repo: str, data: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        assert repo in self.fake.repos
        objects = []
        for wanted in data["objects"]:
            oid, size = wanted["oid"], wanted["size"]
            answer = {"oid": oid, "size": size}
            if oid not in self.fake.objects:
                count = -(-size // PART_NBYTES)
                parts = {str(n): f"{self.fake.url}/store/{oid}/{n}?signature=s3cr3t" for n in range(1, count + 1)}
                header = {"chunk_size": str(PART_NBYTES), **parts}
                answer["actions"] = {"upload": {"href": f"{self.fake.url}/store/{oid}/complete", "header": header}}
            objects.append(answer)
        return 200, {"transfer": "multipart", "objects": objects}, {}

    def _store(self, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        _, _, oid, part = path.split("/")
        if part == "complete":
            data = b"".join(piece for _, piece in sorted(self.fake.parts.get(oid, {}).items()))
            if hashlib.sha256(data).hexdigest() != oid:
                return 400, {"error": "the parts have another hash"}, {}
            self.fake.objects[oid] = data
            return 200, {}, {}
        self.fake.parts.setdefault(oid, {})[int(part)] = body
        self.fake.received.append((oid, int(part)))
        return 200, {}, {"ETag": hashlib.md5(body).hexdigest()}


def _oid(data: bytes, lfs: bool) -> str:
    return hashlib.sha256(data).hexdigest() if lfs else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: str, data: bytes, lfs: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _oid(data, False)}
    if lfs:
        entry["lfs"] = {"oid": _oid(data, True), "size": len(data), "pointerSize": 130}
    return entry
