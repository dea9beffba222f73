"""Send one short prompt through either API, for the preflight and the fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halfbyte.endpoint.client import PATHS, Api, Endpoint, EndpointError


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply: its text (None without content), finish reason, prompt tokens and log-probabilities."""

    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Asker:
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
