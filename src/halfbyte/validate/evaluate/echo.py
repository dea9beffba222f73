"""Does a server give the log-probabilities of a prompt, whole and in their places?

Some servers ignore `echo` (every choice then scores the same), some shift the values by one token. Neither says so.
So the shape is checked, and at three places the best token must be what one greedy step from there gives.
"""

from __future__ import annotations

from typing import Any

from halfbyte.validate.endpoint import PATHS, Endpoint, EndpointError
from halfbyte.validate.evaluate.tokens import ServerTokens

PROMPT = "Question: Anna has 12 apples and buys 30 more. How many apples does she have?\nAnswer: She has 12 + 30 = 42"
NEAR = 0.15  # how far two computations of the same prompt may be apart (natural logarithm)
TIE = 0.01  # of two tokens as good as each other, either may be called the best
PLACES = (0.3, 0.6, 0.9)  # of the prompt


def echo_problem(endpoint: Endpoint, model: str, tokens: ServerTokens) -> str | None:
    """Return what is wrong with the log-probabilities of prompts, or None."""
    try:
        return _problem(endpoint, model, tokens)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"it gives log-probabilities that cannot be read ({type(error).__name__}: {error})"


def _problem(endpoint: Endpoint, model: str, tokens: ServerTokens) -> str | None:
    ids = tokens.encode(PROMPT)
    try:
        echoed = _logprobs(endpoint, model, ids, echo=True)
    except EndpointError as error:
        return f"it refuses echo and logprobs ({error})"
    values: list[Any] = echoed.get("token_logprobs") or []
    best: list[Any] = echoed.get("top_logprobs") or []
    if len(values) != len(ids) + 1 or len(best) != len(values):
        return f"it gives {len(values)} log-probabilities for a prompt of {len(ids)} tokens and one more"
    if values[0] is not None:
        return "the first token has a log-probability, so the values are not in their places"
    if any(value is None or not value <= 0 for value in values[1:]):
        return "some log-probabilities are missing or above 0"
    for place in (int(share * len(ids)) for share in PLACES):
        problem = _one_step(endpoint, model, ids[:place], best[place])
        if problem:
            return f"token {place}: {problem}"
    return None


def _one_step(endpoint: Endpoint, model: str, prefix: list[int], best: Any) -> str | None:
    """Compare the best token after a prefix with one greedy step from it."""
    step = _logprobs(endpoint, model, prefix, echo=False)
    token, value = step["tokens"][0], step["token_logprobs"][0]
    highest = max(best.values()) if best else None
    if highest is None or abs(highest - value) > NEAR:
        return (
            f"the best has {highest}, one greedy step from there {value}: the values are shifted or of another prompt"
        )
    if token in best or abs(highest - value) <= TIE:
        return None
    return f"the best is one of {list(best)}, one greedy step from there gives {token!r}"


def _logprobs(endpoint: Endpoint, model: str, ids: list[int], *, echo: bool) -> dict[str, Any]:
    body = {"model": model, "prompt": [ids], "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": echo}
    answer = endpoint.post(PATHS["completions"], body)
    try:
        return answer["choices"][0]["logprobs"] or {}
    except (LookupError, TypeError):
        return {}
