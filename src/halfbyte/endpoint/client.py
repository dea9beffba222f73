"""Client for OpenAI-compatible servers: JSON requests with a deadline for the whole exchange, and single prompts.

The deadline includes headers, error bodies and chunk sizes. A socket timeout restarts with every byte received; here
each read waits only for the time left.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

from halfbyte.errors import UsageError


class _Reading(io.RawIOBase):
    """Raw reader of a connection that raises TimeoutError after a deadline in time.monotonic seconds."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end
        self._bytes = cast("io.RawIOBase", connection.makefile("rb", buffering=0))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return cast("int | None", self._bytes.readinto(buffer))

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Source:
    """Socket stand-in for HTTPResponse, which only calls `makefile`."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self._connection, self._end))


class _Bounded(http.client.HTTPConnection):
    """A connection whose timeout is a deadline for the whole exchange."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        end = time.monotonic() + cast("float", self.timeout)

        def response(connection: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(cast("socket.socket", _Source(connection, end)), *args, **options)

        self.response_class = cast("type[http.client.HTTPResponse]", response)


class _BoundedTls(_Bounded, http.client.HTTPSConnection):
    """A bounded connection with TLS."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Bounded, req)


class _Tls(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedTls, req)


def open_within(request: urllib.request.Request, seconds: float) -> Any:
    """Send a request; raise TimeoutError if connecting and reading the whole response take longer than `seconds`."""
    return urllib.request.build_opener(_Plain, _Tls).open(request, timeout=seconds)


KEY_VARIABLES = ("HALFBYTE_API_KEY", "OPENAI_API_KEY")  # the first one set is used; keys are never options or stored
# Shorter values and placeholders for servers without authentication are not secrets and occur in ordinary answers.
SHORTEST_KEY = 8
PLACEHOLDERS = frozenset({"no-key-required", "not-needed", "not-required", "placeholder", "localhost", "undefined"})
ERROR_CHARACTERS = 300
ASK_AGAIN = frozenset({408, 409, 425, 429})  # client error statuses worth a retry
_PIECE_NBYTES = 1 << 16
_SHOWN_CHARACTERS = 60  # of a response that is not JSON
_HTML = re.compile(r"\s*<(?:!doctype\s+html|html|head|body|\?xml|!--)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title", re.IGNORECASE | re.DOTALL)

Api = Literal["completions", "chat"]
PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class EndpointError(Exception):
    """A failed request; `again` is whether a retry can succeed."""

    def __init__(self, what: str, *, again: bool, status: int | None = None) -> None:
        super().__init__(what)
        self.again = again
        self.status = status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's base URL, without `/v1` and without a trailing slash."""

    url: str
    timeout_s: float = 600.0

    def get(self, path: str, timeout_s: float | None = None) -> Any:
        """Return the response to GET: parsed JSON, or text if it is not JSON."""
        raw = self._exchange(path, None, timeout_s or self.timeout_s)
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode("utf-8", "replace")

    def post(self, path: str, body: Any, timeout_s: float | None = None) -> dict[str, Any]:
        """Post JSON and return the JSON object in the response."""
        raw = self._exchange(path, json.dumps(body).encode(), timeout_s or self.timeout_s)
        try:
            answer = json.loads(raw)
        except ValueError:
            raise EndpointError("the response is not JSON", again=True) from None
        if not isinstance(answer, dict):
            raise EndpointError("the response is not a JSON object", again=False)
        return cast("dict[str, Any]", answer)

    def post_bytes(self, path: str, body: bytes, timeout_s: float | None = None) -> Any:
        """Post raw bytes, valid JSON or not; return the response as JSON, or as text if it is not JSON."""
        raw = self._exchange(path, body, timeout_s or self.timeout_s)
        try:
            return json.loads(raw)
        except ValueError:
            return raw.decode("utf-8", "replace")

    def events(self, path: str, body: Any, timeout_s: float | None = None) -> Generator[bytes]:
        """Yield the data of each server-sent event as raw bytes, including `[DONE]` if the server sends it.

        Closing the generator closes the connection and so cancels the request.
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
            return b"".join(_pieces(answer, end))  # a truncated body fails to parse as JSON

    @contextmanager
    def _opened(self, path: str, body: bytes | None, timeout_s: float) -> Generator[Any]:
        """Open a response; any failure while opening or reading it raises EndpointError."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        key = api_key()
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with open_within(request, timeout_s) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                page = without_keys(_text_of(error))
            text = described_page(page) if is_html(page) else page[:ERROR_CHARACTERS]
            again = error.code in ASK_AGAIN or error.code >= http.client.INTERNAL_SERVER_ERROR
            raise EndpointError(f"HTTP {error.code}: {text}", again=again, status=error.code) from None
        except TimeoutError:
            raise EndpointError(f"no answer in {timeout_s:g} s", again=True) from None
        except urllib.error.URLError as error:
            late = isinstance(error.reason, TimeoutError)
            what = f"no answer in {timeout_s:g} s" if late else f"cannot connect: {error.reason}"
            raise EndpointError(what, again=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(f"the connection broke: {error or type(error).__name__}", again=True) from None


def _text_of(error: urllib.error.HTTPError) -> str:
    """Return the start of an error response's body; empty if it cannot be read."""
    try:
        return error.read(4096).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""


def is_html(text: str) -> bool:
    """Return whether a text is an HTML page."""
    return _HTML.match(text) is not None


def described_page(text: str) -> str:
    """Describe a response that is not JSON in one line: by the title of an HTML page, or by the start of its text."""
    if not is_html(text):
        start = " ".join(without_keys(text)[:ERROR_CHARACTERS].split())
        return f"the text {start[:_SHOWN_CHARACTERS]!r}" if start else "an empty response"
    title = _TITLE.search(text)
    words = " ".join(without_keys(title[1]).split())[:_SHOWN_CHARACTERS] if title else ""
    return f"an HTML page, {words!r}" if words else "an HTML page"


def _pieces(answer: Any, end: float) -> Iterator[bytes]:
    """Yield a body in pieces until the deadline; buffered bytes bypass the socket's deadline, so check it here too."""
    while piece := answer.read1(_PIECE_NBYTES):
        if time.monotonic() > end:
            raise TimeoutError
        yield piece


def api_key() -> str:
    """Return the API key from the environment, or an empty string."""
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), "")


def without_keys(text: str) -> str:
    """Redact API keys in a text: some servers echo a rejected key."""
    for name in KEY_VARIABLES:
        key = os.environ.get(name, "")
        if len(key) >= SHORTEST_KEY and key.lower() not in PLACEHOLDERS:
            text = text.replace(key, "***")
    return text


def values_without_keys(value: Any) -> Any:
    """Redact API keys in every string of a JSON value; keys of objects stay unchanged."""
    if isinstance(value, str):
        return without_keys(value)
    if isinstance(value, Mapping):
        return {name: values_without_keys(inner) for name, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [values_without_keys(inner) for inner in cast("list[Any]", value)]
    return value


def parse_url(url: str, timeout_s: float) -> Endpoint:
    """Return the endpoint for a URL, with or without `/v1`."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        valid = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # unbalanced brackets, or a port that is not a number
        valid, parts = False, urlsplit("")
    if not valid or parts.query or parts.fragment:
        raise UsageError(f"'{url}' is not a valid server URL", where="URL", fix="use http://HOST:PORT")
    if parts.username or parts.password:
        fix = f"set {KEY_VARIABLES[0]} in the environment instead"
        raise UsageError("a URL with a user or password would be written into the results", where="URL", fix=fix)
    path = quote(parts.path.rstrip("/"), safe="/%~")
    for end in (*PATHS.values(), "/v1"):
        path = path.removesuffix(end)
    return Endpoint(f"{parts.scheme}://{parts.netloc}{path}", timeout_s)


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: its text (None without content), finish reason, prompt tokens and log-probabilities."""

    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """An endpoint with a model and an API."""

    endpoint: Endpoint
    model: str
    api: Api

    def ask(self, prompt: str, *, max_tokens: int = 16, **options: Any) -> Reply:
        """Send one prompt. Decode greedily unless the options say otherwise."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, **options}
        body |= {"prompt": prompt} if self.api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
        answer = self.endpoint.post(PATHS[self.api], body)
        try:
            return _reply(answer, self.api)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EndpointError(f"unreadable response: {type(error).__name__}: {error}", again=False) from None

    def ask_with_logprobs(self, prompt: str, *, max_tokens: int) -> Reply:
        """Send one prompt, and return log-probabilities if the server supports them."""
        try:
            return self.ask(prompt, max_tokens=max_tokens, logprobs=1 if self.api == "completions" else True)
        except EndpointError as error:
            if error.status is None or error.again:
                raise
            return self.ask(prompt, max_tokens=max_tokens)  # some servers reject the option


def _reply(answer: dict[str, Any], api: Api) -> Reply:
    choice = answer["choices"][0]
    text = choice["text"] if api == "completions" else choice["message"]["content"]
    if not (text is None or isinstance(text, str)):
        raise TypeError(f"expected text, got {type(text).__name__}")
    usage: dict[str, Any] = answer.get("usage") or {}
    return Reply(text, choice.get("finish_reason"), usage.get("prompt_tokens"), _logprobs(choice.get("logprobs") or {}))


def _logprobs(logprobs: dict[str, Any]) -> tuple[float, ...]:
    """Return the values from a completion's list or a chat's list of tokens."""
    of_chat: list[dict[str, Any]] = logprobs.get("content") or []
    values: list[float | None] = logprobs.get("token_logprobs") or [token.get("logprob") for token in of_chat]
    return tuple(float(value) for value in values if value is not None)
