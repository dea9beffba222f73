"""A fake Hub for downloads: listings, ranges of files, and faults on demand.

A commit is a folder. Requests and bytes sent per file are recorded, so that tests can check what was fetched how often.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from quiet_server import QuietServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
REPO = "org/name"
CHUNK_NBYTES = 1 << 14


@dataclass
class Fault:
    """A fault, the affected files, and how often."""

    path: str  # a regular expression
    what: str  # status, cut, wrong, rangeless, longer, shifted, slow, hang
    times: int = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    after_nbytes: int = 0  # of the body, before it is cut or hangs
    from_byte: int = 0  # only for requests that begin there or later
    least_nbytes: int = 0  # only for requests of so much
    skip: int = 0  # let so many of them through first: headers of small shards are read with all that follows
    seconds: float = 0.0  # before each chunk


class RangeHub:
    """A server, its commits, and its requests."""

    def __init__(self, folder: Path) -> None:
        self.commits = {COMMIT: folder}
        self.branches = {"main": COMMIT}
        self.refused = {"gated": (403, "GatedRepo"), "nobody": (404, "RepoNotFound"), "broken": (500, "")}
        self.faults: list[Fault] = []
        self.asked: list[tuple[str, int, int]] = []  # path, begin, end
        self.sent: Counter[str] = Counter()  # bytes of each file
        self.statuses: list[int] = []
        self.hanging = threading.Event()
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            fake = hub

        self.server = QuietServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def forget(self) -> None:
        self.asked.clear()
        self.sent.clear()

    def fault(self, path: str, begin: int = 0, nbytes: int = 0) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                meant = begin >= fault.from_byte and nbytes >= fault.least_nbytes
                if fault.times > 0 and meant and re.search(fault.path, path):
                    if fault.skip:
                        fault.skip -= 1
                        return None
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    fake: RangeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            return self.info(path.removeprefix("/api/models/"))
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        folder = self.fake.commits.get(found[2]) if found else None
        if folder is None or not (folder / found[3]).is_file():
            return self.refuse(404, "EntryNotFound")
        return self.file(folder / found[3], found[3])

    def info(self, path: str) -> None:
        repo, _, revision = path.partition("/revision/")
        owner = repo.partition("/")[0]
        fault = self.fake.fault("/api/")
        if fault:
            return self.refuse(fault.status, "", fault.headers)
        if owner in self.fake.refused:
            return self.refuse(*self.fake.refused[owner])
        commit = self.fake.branches.get(revision or "main", revision)
        if commit not in self.fake.commits:
            return self.refuse(404, "RevisionNotFound")
        folder = self.fake.commits[commit]
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        if owner == "empty":
            files = [file for file in files if ".safetensors" not in file.name]
        siblings = [_sibling(file, folder) for file in files]
        return self.send(200, json.dumps({"id": repo, "sha": commit, "siblings": siblings}).encode())

    def file(self, path: Path, name: str) -> None:
        raw = path.read_bytes()
        begin, end = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
        fault = self.fake.fault(name, begin, end + 1 - begin)
        what = fault.what if fault else ""
        with self.fake.lock:
            self.fake.asked.append((name, begin, end + 1))
        if what == "status":
            return self.refuse(fault.status, "", fault.headers)
        if what == "wrong":
            at = begin + (end - begin) // 2
            raw = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        if what == "rangeless" or self.path.startswith("/rangeless/"):
            return self.send(200, raw, name=name, fault=fault)
        total = len(raw) + (1 if what == "longer" else 0)
        first = begin + (1 if what == "shifted" else 0)
        headers = {"Content-Range": f"bytes {first}-{end}/{total}"}
        return self.send(206, raw[first : end + 1], headers, name=name, fault=fault)

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send(status, b"", {**(headers or {}), "X-Error-Code": code})

    def send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        name: str = "",
        fault: Fault | None = None,
    ) -> None:
        self.fake.statuses.append(status)
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        for at in range(0, len(body), CHUNK_NBYTES):
            chunk = body[at : at + CHUNK_NBYTES]
            if fault and fault.what == "cut" and at >= fault.after_nbytes:
                self.close_connection = True
                self.connection.close()
                return
            if fault and fault.what == "hang" and at >= fault.after_nbytes:
                self.wfile.flush()
                self.fake.hanging.set()
                time.sleep(600)
            if fault and fault.seconds:
                time.sleep(fault.seconds)
            self.wfile.write(chunk)
            with self.fake.lock:
                self.fake.sent[name] += len(chunk)


def _sibling(file: Path, folder: Path) -> dict[str, Any]:
    data = file.read_bytes()
    found: dict[str, Any] = {"rfilename": file.relative_to(folder).as_posix(), "size": len(data)}
    found["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if file.suffix == ".safetensors":
        found["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
    return found


def speak_to(hub: RangeHub, monkeypatch: Any) -> None:
    """Point huggingface_hub at this server, with short timeouts."""
    from huggingface_hub import constants

    from halfbyte.checkpoint.remote import download as downloads

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(downloads, "BACKOFF", replace(downloads.BACKOFF, first_wait_s=0.01))
