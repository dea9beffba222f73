"""Check that a server returns complete and correctly aligned prompt log-probabilities.

Some servers silently ignore `echo`, so that all choices score the same, or shift the values by one token. The check
verifies the shape and, at three positions, that the top token equals one greedy step from there.
"""

from __future__ import annotations

from typing import Any

from halfbyte.endpoint.client import PATHS, Endpoint, EndpointError
from halfbyte.evaluate.tokens import ServerTokens

PROMPT = "Question: Anna has 12 apples and buys 30 more. How many apples does she have?\nAnswer: She has 12 + 30 = 42"
NEAR = 0.15  # tolerance between two computations of the same prompt, in nats
TIE = 0.01  # difference below which either of two tokens may be the top one, in nats
PLACES = (0.3, 0.6, 0.9)  # positions, as fractions of the prompt


def echo_problem(endpoint: Endpoint, model: str, tokens: ServerTokens) -> str | None:
    """Return the problem with the server's prompt log-probabilities, or None."""
    try:
        return _problem(endpoint, model, tokens)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"unreadable log-probabilities ({type(error).__name__}: {error})"


def _problem(endpoint: Endpoint, model: str, tokens: ServerTokens) -> str | None:
    ids = tokens.encode(PROMPT)
    try:
        echoed = _logprobs(endpoint, model, ids, echo=True)
    except EndpointError as error:
        return f"it rejects echo and logprobs ({error})"
    values: list[Any] = echoed.get("token_logprobs") or []
    best: list[Any] = echoed.get("top_logprobs") or []
    if len(values) != len(ids) + 1 or len(best) != len(values):
        return f"it returns {len(values)} log-probabilities for {len(ids)} prompt tokens and one output token"
    if values[0] is not None:
        return "the first token has a log-probability, so the values are misaligned"
    if any(value is None or not value <= 0 for value in values[1:]):
        return "some log-probabilities are missing or positive"
    for place in (int(share * len(ids)) for share in PLACES):
        problem = _one_step(endpoint, model, ids[:place], best[place])
        if problem:
            return f"token {place}: {problem}"
    return None


def _one_step(endpoint: Endpoint, model: str, prefix: list[int], best: Any) -> str | None:
    """Compare the top token after a prefix with one greedy step."""
    step = _logprobs(endpoint, model, prefix, echo=False)
    token, value = step["tokens"][0], step["token_logprobs"][0]
    highest = max(best.values()) if best else None
    if highest is None or abs(highest - value) > NEAR:
        return (
            f"the top token has {highest}, one greedy step gives {value}: the values are shifted or of another prompt"
        )
    if token in best or abs(highest - value) <= TIE:
        return None
    return f"the top token is one of {list(best)}, one greedy step gives {token!r}"


def _logprobs(endpoint: Endpoint, model: str, ids: list[int], *, echo: bool) -> dict[str, Any]:
    body = {"model": model, "prompt": [ids], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": echo}
    answer = endpoint.post(PATHS["completions"], body)
    try:
        return answer["choices"][0]["logprobs"] or {}
    except (LookupError, TypeError):
        return {}
