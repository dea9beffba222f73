"""One request to an OpenAI-compatible server: JSON in, JSON out, and never longer than it may take."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

from halfbyte.errors import UsageError
from halfbyte.validate.bounded_http import open_within

KEY_VARIABLES = ("HALFBYTE_API_KEY", "OPENAI_API_KEY")  # the first that is set; never an option, never written down
# What is shorter, or what people give to a server that wants none, is no secret, and stands in honest answers too.
SHORTEST_KEY = 8
PLACEHOLDERS = frozenset({"no-key-required", "not-needed", "not-required", "placeholder", "localhost", "undefined"})
ERROR_CHARACTERS = 300
ASK_AGAIN = frozenset({408, 409, 425, 429})  # refusals that time may heal
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

    def post_bytes(self, path: str, body: bytes, timeout_s: float | None = None) -> Any:
        """Send bytes as they are, be they JSON or not; return the JSON, or the text, that comes back."""
        raw = self._exchange(path, body, timeout_s or self.timeout_s)
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode("utf-8", "replace")

    def events(self, path: str, body: Any, timeout_s: float | None = None) -> Generator[bytes]:
        """Yield the data of each event of a stream, byte for byte; the last is `[DONE]` where the server says it.

        Closing the generator closes the connection, which is how a request is cancelled.
        """
        seconds = timeout_s or self.timeout_s
        end = time.monotonic() + seconds
        with self._opened(path, json.dumps(body).encode(), seconds) as answer:
            rest = b""
            for piece in _pieces(answer, end):
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line[5:].strip() for line in lines if line.startswith(b"data:"))
            if rest.startswith(b"data:"):
                yield rest[5:].strip()

    def _exchange(self, path: str, body: bytes | None, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        with self._opened(path, body, timeout_s) as answer:
            return b"".join(_pieces(answer, end))  # a body that was cut is no JSON

    @contextmanager
    def _opened(self, path: str, body: bytes | None, timeout_s: float) -> Generator[Any]:
        """Open an answer; whatever goes wrong with it, also while it is read, becomes our error."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        key = api_key()
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with open_within(request, timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                text = without_keys(_text_of(error))[:ERROR_CHARACTERS]
            again = error.code in ASK_AGAIN or error.code >= http.client.INTERNAL_SERVER_ERROR
            raise EndpointError(f"HTTP {error.code}: {text}", again=again, status=error.code) from None
        except TimeoutError:
            raise EndpointError(f"no answer in {timeout_s:g} s", again=True) from None
        except urllib.error.URLError as error:
            late = isinstance(error.reason, TimeoutError)
            what = f"no answer in {timeout_s:g} s" if late else f"no connection: {error.reason}"
            raise EndpointError(what, again=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"the connection broke: {error or type(error).__name__}", again=True) from None


def _text_of(error: urllib.error.HTTPError) -> str:
    """Return what a server says to its refusal; one that begins and does not end has said nothing."""
    try:
        return error.read(4096).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""


def _pieces(answer: Any, end: float) -> Iterator[bytes]:
    """Yield a body to its end; bytes that are there already do not wait, so the clock is looked at too."""
    while piece := answer.read1(_PIECE_NBYTES):
        if time.monotonic() > end:
            raise TimeoutError
        yield piece


def api_key() -> str:
    """Return the key for requests, from the environment only."""
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), "")


def without_keys(text: str) -> str:
    """Take the keys out of a text: some servers repeat the key that they refuse."""
    for name in KEY_VARIABLES:
        key = os.environ.get(name, "")
        if len(key) >= SHORTEST_KEY and key.lower() not in PLACEHOLDERS:
            text = text.replace(key, "***")
    return text


def values_without_keys(value: Any) -> Any:
    """Take the keys out of every text inside a value for JSON; numbers, names and the form stay as they are."""
    if isinstance(value, str):
        return without_keys(value)
    if isinstance(value, Mapping):
        return {name: values_without_keys(inner) for name, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [values_without_keys(inner) for inner in cast("list[Any]", value)]
    return value


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
