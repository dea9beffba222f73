"""One request to an OpenAI-compatible server: JSON in, JSON out, and never longer than it may take."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

from halfbyte.errors import UsageError

KEY_VARIABLES = ("HALFBYTE_API_KEY", "OPENAI_API_KEY")  # the first that is set; never an option, never written down
ERROR_CHARACTERS = 300
_PIECE_NBYTES = 1 << 16

Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class EndpointError(Exception):
    """A request without a usable answer: why, and whether asking again can help."""

    def __init__(self, what: str, *, again: bool, status: int | None = None) -> None:
        super().__init__(what)
        self.again = again
        self.status = status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, without `/v1` and without a slash at its end."""

    url: str
    timeout_s: float = 600.0

    def get(self, path: str, timeout_s: float | None = None) -> Any:
        """Return what the server says under a path; text where it is not JSON."""
        raw = self._exchange(path, None, timeout_s or self.timeout_s)
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode("utf-8", "replace")

    def post(self, path: str, body: Any, timeout_s: float | None = None) -> dict[str, Any]:
        """Send JSON and return the JSON object that comes back."""
        raw = self._exchange(path, json.dumps(body).encode(), timeout_s or self.timeout_s)
        try:
            answer = json.loads(raw)
        except ValueError:
            raise EndpointError("the answer is not JSON", again=True) from None
        if not isinstance(answer, dict):
            raise EndpointError("the answer is not a JSON object", again=False)
        return cast("dict[str, Any]", answer)

    def _exchange(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        key = api_key()
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        end = time.monotonic() + timeout_s
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return _read_until(answer, end)
        except urllib.error.HTTPError as error:
            with error:
                text = _without_key(error.read(4096).decode("utf-8", "replace"))[:ERROR_CHARACTERS]
            again = error.code in {408, 409, 425, 429} or error.code >= http.client.INTERNAL_SERVER_ERROR
            raise EndpointError(f"HTTP {error.code}: {text}", again=again, status=error.code) from None
        except TimeoutError:
            raise EndpointError(f"no answer in {timeout_s:g} s", again=True) from None
        except urllib.error.URLError as error:
            late = isinstance(error.reason, TimeoutError)
            what = f"no answer in {timeout_s:g} s" if late else f"no connection: {error.reason}"
            raise EndpointError(what, again=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"the connection broke: {error or type(error).__name__}", again=True) from None


def _read_until(answer: Any, end: float) -> bytes:
    """Read a body to its end: a timeout of a socket starts again with every byte, so the clock is looked at as well."""
    pieces: list[bytes] = []
    while piece := answer.read1(_PIECE_NBYTES):
        pieces.append(piece)
        if time.monotonic() > end:
            raise TimeoutError
    return b"".join(pieces)  # a body that was cut is no JSON


def api_key() -> str:
    """Return the key for requests, from the environment only."""
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), "")


def _without_key(text: str) -> str:
    """Some servers repeat the key that they refuse."""
    key = api_key()
    return text.replace(key, "***") if key else text


def parse_url(url: str, timeout_s: float) -> Endpoint:
    """Return the endpoint at an address, with or without `/v1`."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        sound, parts = False, urlsplit("")
    if not sound or parts.query or parts.fragment:
        raise UsageError(f"'{url}' is no address of a server", where="URL", fix="give http://HOST:PORT")
    if parts.username or parts.password:
        fix = f"set {KEY_VARIABLES[0]} in the environment instead"
        raise UsageError("an address with a user or a password would be written into the results", where="URL", fix=fix)
    path = quote(parts.path.rstrip("/"), safe="/%~")
    for end in (*PATHS.values(), "/v1"):
        path = path.removesuffix(end)
    return Endpoint(f"{parts.scheme}://{parts.netloc}{path}", timeout_s)
