"""The tokens of a text, from the server itself (`/tokenize`, which vLLM and SGLang have)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from halfbyte.errors import MachineError
from halfbyte.validate.endpoint import Endpoint, EndpointError
from halfbyte.validate.sending import Outcome, Sender

_PATH = "/tokenize"


class ServerTokens:
    """Tokens of texts as the server cuts them; each text is asked for once."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint, self._model = endpoint, model
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without any that mark its start."""
        if text not in self._known:
            self._known[text] = _ids(self._endpoint.post(_PATH, self._body(text)))
        return self._known[text]

    def count(self, prompt: Any) -> int:
        """Return how many tokens a prompt has: a text, lists of tokens, or the messages of a chat."""
        if isinstance(prompt, str):
            return len(self.encode(prompt))
        if prompt and isinstance(prompt[0], list):
            return len(prompt[0])
        try:
            return len(_ids(self._endpoint.post(_PATH, {"model": self._model, "messages": prompt})))
        except EndpointError:
            return 0  # a server that cannot count chats: what does not fit it refuses itself, and that is counted

    def fetch(self, texts: Iterable[str], sender: Sender) -> None:
        """Ask for many texts at once."""
        todo = [text for text in dict.fromkeys(texts) if text not in self._known]

        def keep(number: int, outcome: Outcome) -> None:
            if outcome.body is None:
                fix = "run the same command again; what is finished is kept"
                raise MachineError(f"the server does not cut a text: {outcome.error}", where=_PATH, fix=fix)
            self._known[todo[number]] = _ids(outcome.body)

        sender.send(_PATH, [self._body(text) for text in todo], keep)

    def _body(self, text: str) -> dict[str, Any]:
        return {"model": self._model, "prompt": text, "add_special_tokens": False}


def server_tokens(endpoint: Endpoint, model: str) -> ServerTokens | None:
    """Return the server's tokenizer, or None where it does not show it."""
    tokens = ServerTokens(endpoint, model)
    try:
        return tokens if tokens.encode("one two") else None
    except EndpointError:
        return None


def _ids(body: dict[str, Any]) -> list[int]:
    ids = body.get("tokens")
    if not isinstance(ids, list):
        raise EndpointError("an answer without tokens", again=False)
    return ids  # pyright: ignore[reportUnknownVariableType]
