"""One short question in either form, and its answer in one form: for the pre-flight and the fingerprint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halfbyte.validate.endpoint import PATHS, Api, Endpoint, EndpointError


@dataclass(frozen=True, slots=True)
class Said:
    """What came back: the text (None if there was no content), why it ended, and the tokens of the prompt."""

    text: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Asker:
    """Whom to ask, and in which form."""

    endpoint: Endpoint
    model: str
    api: Api

    def ask(self, prompt: str, *, max_tokens: int = 16, **options: Any) -> Said:
        """Ask one question, greedily unless the options say otherwise."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": 0, **options}
        body |= {"prompt": prompt} if self.api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
        answer = self.endpoint.post(PATHS[self.api], body)
        try:
            return _said(answer, self.api)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EndpointError(
                f"an answer that cannot be read: {type(error).__name__}: {error}", again=False
            ) from None

    def ask_with_logprobs(self, prompt: str, *, max_tokens: int) -> Said:
        """Ask one question, greedily, with the log-probabilities of the answer where the server gives them."""
        try:
            return self.ask(prompt, max_tokens=max_tokens, logprobs=1 if self.api == "completions" else True)
        except EndpointError as error:
            if error.status is None or error.again:
                raise
            return self.ask(prompt, max_tokens=max_tokens)  # some servers refuse the option


def _said(answer: dict[str, Any], api: Api) -> Said:
    choice = answer["choices"][0]
    text = choice["text"] if api == "completions" else choice["message"]["content"]
    if not (text is None or isinstance(text, str)):
        raise TypeError(f"a text was asked for, and a {type(text).__name__} came")
    usage: dict[str, Any] = answer.get("usage") or {}
    return Said(text, choice.get("finish_reason"), usage.get("prompt_tokens"), _logprobs(choice.get("logprobs") or {}))


def _logprobs(told: dict[str, Any]) -> tuple[float, ...]:
    """Return the values: a completion has a list of them, a chat has them in its list of tokens."""
    of_chat: list[dict[str, Any]] = told.get("content") or []
    values: list[float | None] = told.get("token_logprobs") or [one.get("logprob") for one in of_chat]
    return tuple(float(value) for value in values if value is not None)
