"""Check an endpoint before the evaluation, so that a misconfigured server fails at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from halfbyte.endpoint.client import PATHS, Api, Endpoint, EndpointError, ModelEndpoint, Reply
from halfbyte.endpoint.identity import Identity, identify, is_identifiable, probe
from halfbyte.endpoint.sending import Outcome, Sender
from halfbyte.errors import CheckFailedError, MachineError
from halfbyte.evaluate.suites import Suite
from halfbyte.evidence.evaluation import FingerprintReply, Side
from halfbyte.evidence.record import decoded
from halfbyte.ui.console import Level

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


# Check that a server returns complete and correctly aligned prompt log-probabilities.
#
# Some servers silently ignore `echo`, so that all choices score the same, or shift the values by one token. The check
# verifies the shape and, at three positions, that the top token equals one greedy step from there.

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


# Spaces, digits, capitals, code, other scripts and a multi-codepoint emoji, where tokenizers and templates differ.
PARITY_PROMPTS = (
    "Hello",
    "I'm sure they don't, WE'LL see",
    "12345678901234567890 3.14159 1,000,000",
    "def f(x):\n\treturn  x  **  2\n\n\n",
    "Größe naïve œuvre Ångström",
    "今天天气很好, 東京タワー, 안녕하세요",
    "Привет, мир! שלום עולם مرحبا",
    "👩‍👩‍👧‍👦 ¥ € U+2011: a\u2011b",
    "   leading and trailing   ",
    "<|im_end|> is a name in a text",
)
_COUNTING = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"
_TALKING = (_COUNTING, "Question: Anna has 12 apples and buys 30 more. How many has she?\nAnswer:", "Tell me a story.")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    sentence: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """The facts about an endpoint before the first item."""

    endpoint: Endpoint
    identity: Identity
    findings: list[Finding]
    prompt_tokens: dict[str, list[int | None]]  # by API
    probes: list[dict[str, Any]]
    tokens: ServerTokens | None

    def side(self, fingerprint: str) -> Side:
        """Return the side for eval.json."""
        return Side(
            url=self.identity.url,
            model=self.identity.model,
            max_context=self.identity.max_context,
            reported=self.identity.reported,
            prompt_tokens={api: tuple(counts) for api, counts in self.prompt_tokens.items()},
            fingerprint_replies=tuple(decoded(FingerprintReply, reply) for reply in self.probes),
            checks=tuple({"check": row.check, "level": row.level, "sentence": row.sentence} for row in self.findings),
            fingerprint=fingerprint,
        )


def preflight(endpoint: Endpoint, model: str | None, suite: Suite, *, any_name: bool = False) -> Preflight:
    """Check an endpoint for a suite. Raise if its scores would be meaningless."""
    identity = identify(endpoint, model, any_name=any_name)
    tokens = server_tokens(endpoint, identity.model)
    findings: list[Finding] = []
    prompt_tokens: dict[str, list[int | None]] = {}
    probes: list[dict[str, Any]] = []
    try:
        for api in forms(suite):
            asker = ModelEndpoint(endpoint, identity.model, api)
            prompt_tokens[api] = [asker.ask(text, max_tokens=1).prompt_tokens for text in PARITY_PROMPTS]
            findings += [_stop(asker), _repeats(asker), _seed(asker), _usage(prompt_tokens[api], api)]
            probes += probe(asker)
        findings += _likelihoods(endpoint, identity, suite, tokens)
    except EndpointError as error:
        fix = "send a request with curl, and check the server's log"
        raise MachineError(
            f"the endpoint does not answer a short prompt: {error}", where=endpoint.url, fix=fix
        ) from None
    if not is_identifiable(identity, probes):
        what = (
            "the server reports neither log-probabilities nor its start time, so another checkpoint at this address "
            "could not be detected; resuming an earlier run requires --same-server"
        )
        findings.append(Finding("fingerprint", "note", what))
    if identity.max_context is None or tokens is None:
        what = "the server does not report its context length or tokenizer, so prompts that are too long fail as errors"
        findings.append(Finding("context", "note", what))
    return Preflight(endpoint, identity, findings, prompt_tokens, probes, tokens)


def forms(suite: Suite) -> list[Api]:
    """Return the APIs that a suite uses, in the order of the checks."""
    both: list[Api] = ["completions", "chat"]
    return [api for api in both if api in suite.apis]


def _stop(asker: ModelEndpoint) -> Finding:
    """Check that output ends before a stop string."""
    for prompt in _TALKING:
        text = asker.ask(prompt, max_tokens=24).text or ""
        word = text[len(text) // 2 :][:2]
        if word.strip():
            stopped = asker.ask(prompt, max_tokens=24, stop=[word])
            if word not in (stopped.text or ""):
                return Finding("stop", "good", f"{asker.api}: output ends before a stop string")
            what = f"{asker.api}: the server ignores stop strings: {stopped.text!r} contains {word!r}"
            raise CheckFailedError(what, where=asker.endpoint.url, fix="use a server that supports `stop`")
    return Finding("stop", "note", f"{asker.api}: all outputs were too short to test a stop string")


def _repeats(asker: ModelEndpoint) -> Finding:
    texts = {asker.ask(_COUNTING, max_tokens=24).text for _ in range(3)}
    if len(texts) == 1:
        return Finding("greedy", "good", f"{asker.api}: greedy decoding is deterministic")
    return Finding("greedy", "note", f"{asker.api}: greedy decoding gave {len(texts)} different outputs: it has noise")


def _seed(asker: ModelEndpoint) -> Finding:
    def sampled(seed: int) -> Reply:
        return asker.ask(_COUNTING, max_tokens=24, temperature=1.0, seed=seed)

    if sampled(7).text == sampled(7).text:
        return Finding("seed", "good", f"{asker.api}: sampling with a seed is reproducible")
    return Finding("seed", "note", f"{asker.api}: sampling with a seed is not reproducible; the suites do not sample")


def _usage(counts: list[int | None], api: str) -> Finding:
    if None in counts:
        return Finding("usage", "note", f"{api}: the server does not report prompt tokens")
    return Finding("usage", "good", f"{api}: the server reports prompt tokens")


def _likelihoods(endpoint: Endpoint, identity: Identity, suite: Suite, tokens: ServerTokens | None) -> list[Finding]:
    """Check prompt log-probabilities, which tasks that compare likelihoods need."""
    choosing = [task for task in suite.tasks if task.kind == "choose"]
    if not choosing:
        return []
    problem = "it has no /tokenize endpoint" if tokens is None else echo_problem(endpoint, identity.model, tokens)
    if problem is None:
        return [Finding("likelihoods", "good", "prompt log-probabilities are complete and aligned")]
    names = ", ".join(task.task for task in choosing)
    other = next((task.generative for task in choosing if task.generative), None)
    raise CheckFailedError(
        f"{names} needs prompt log-probabilities, which this server does not provide correctly: {problem}",
        where=endpoint.url,
        fix=f"use --suite {other}, which generates the letter" if other else "use a suite without such tasks",
    )
