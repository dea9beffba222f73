"""Tokenize text with the server's tokenizer (`/tokenize` of vLLM and SGLang)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from halfbyte.endpoint.client import Endpoint, EndpointError
from halfbyte.endpoint.sending import Outcome, Sender
from halfbyte.errors import MachineError

_PATH = "/tokenize"


class ServerTokens:
    """The server's tokenizer, with a cache."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        if text not in self._known:
            self._known[text] = _ids(self._endpoint.post(_PATH, self._body(text)))
        return self._known[text]

    def count(self, prompt: Any) -> int:
        """Return the number of tokens of a prompt: a text, lists of tokens, or chat messages."""
        if isinstance(prompt, str):
            return len(self.encode(prompt))
        if prompt and isinstance(prompt[0], list):
            return len(prompt[0])
        try:
            return len(_ids(self._endpoint.post(_PATH, {"model": self._model, "messages": prompt})))
        except EndpointError:
            return 0  # the server cannot tokenize chats; it rejects prompts that do not fit

    def fetch(self, texts: Iterable[str], sender: Sender) -> None:
        """Tokenize many texts concurrently."""
        todo = [text for text in dict.fromkeys(texts) if text not in self._known]

        def keep(number: int, outcome: Outcome) -> None:
            if outcome.body is None:
                fix = "run the same command again to resume"
                raise MachineError(f"the server cannot tokenize a text: {outcome.error}", where=_PATH, fix=fix)
            self._known[todo[number]] = _ids(outcome.body)

        sender.send(_PATH, [self._body(text) for text in todo], keep)

    def _body(self, text: str) -> dict[str, Any]:
        return {"model": self._model, "prompt": text, "add_special_tokens": False}


def server_tokens(endpoint: Endpoint, model: str) -> ServerTokens | None:
    """Return the server's tokenizer, or None if it has no such endpoint."""
    tokens = ServerTokens(endpoint, model)
    try:
        return tokens if tokens.encode("one two") else None
    except EndpointError:
        return None


def _ids(body: dict[str, Any]) -> list[int]:
    ids = body.get("tokens")
    if not isinstance(ids, list):
        raise EndpointError("response without tokens", again=False)
    return ids  # pyright: ignore[reportUnknownVariableType]
