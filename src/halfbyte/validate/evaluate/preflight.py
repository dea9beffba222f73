"""What an endpoint must do before its scores mean anything; asked first, because a night of wrong requests is long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halfbyte.errors import CheckFailedError, MachineError
from halfbyte.terminal.console import Level
from halfbyte.validate.endpoint import Api, Endpoint, EndpointError
from halfbyte.validate.evaluate.asking import Asker, Said
from halfbyte.validate.evaluate.echo import echo_problem
from halfbyte.validate.evaluate.identity import Identity, can_be_told_apart, identify, probe
from halfbyte.validate.evaluate.suites import Suite
from halfbyte.validate.evaluate.tokens import ServerTokens, server_tokens

# Spaces, digits, capitals, code, other scripts, an emoji of several code points: where tokenizers and templates differ.
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
    """The answer of one check."""

    check: str
    level: Level
    sentence: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is known about an endpoint before the first item is asked."""

    endpoint: Endpoint
    identity: Identity
    findings: list[Finding]
    prompt_tokens: dict[str, list[int | None]]  # by form
    probes: list[dict[str, Any]]
    tokens: ServerTokens | None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        checks = [{"check": one.check, "level": one.level, "sentence": one.sentence} for one in self.findings]
        return {**self.identity.as_dict(), "prompt_tokens": self.prompt_tokens, "probes": self.probes, "checks": checks}


def preflight(endpoint: Endpoint, model: str | None, suite: Suite, *, any_name: bool = False) -> Preflight:
    """Check an endpoint for a suite; what makes its scores meaningless is an error here."""
    identity = identify(endpoint, model, any_name=any_name)
    tokens = server_tokens(endpoint, identity.model)
    findings: list[Finding] = []
    prompt_tokens: dict[str, list[int | None]] = {}
    probes: list[dict[str, Any]] = []
    try:
        for api in forms(suite):
            asker = Asker(endpoint, identity.model, api)
            prompt_tokens[api] = [asker.ask(text, max_tokens=1).prompt_tokens for text in PARITY_PROMPTS]
            findings += [_stop(asker), _repeats(asker), _seed(asker), _usage(prompt_tokens[api], api)]
            probes += probe(asker)
        findings += _likelihoods(endpoint, identity, suite, tokens)
    except EndpointError as error:
        fix = "ask it by hand with curl, and look at its log"
        raise MachineError(
            f"the endpoint does not answer a short question: {error}", where=endpoint.url, fix=fix
        ) from None
    if not can_be_told_apart(identity, probes):
        what = (
            "the server tells neither log-probabilities nor when it started: another checkpoint at this address could "
            "not be told from this one, so answers of an earlier run are taken only with --same-server"
        )
        findings.append(Finding("fingerprint", "note", what))
    if identity.max_context is None or tokens is None:
        what = "the server does not tell its context or its tokens: prompts that do not fit show only as errors"
        findings.append(Finding("context", "note", what))
    return Preflight(endpoint, identity, findings, prompt_tokens, probes, tokens)


def forms(suite: Suite) -> list[Api]:
    """Return the forms in which a suite asks, in the order in which they are tried."""
    both: list[Api] = ["completions", "chat"]
    return [form for form in both if form in suite.apis]


def _stop(asker: Asker) -> Finding:
    """A text must end before the words that it was told to end at."""
    for prompt in _TALKING:
        text = asker.ask(prompt, max_tokens=24).text or ""
        word = text[len(text) // 2 :][:2]
        if word.strip():
            ended = asker.ask(prompt, max_tokens=24, stop=[word])
            if word not in (ended.text or ""):
                return Finding("stop", "good", f"{asker.api}: answers end before a stop text")
            what = f"{asker.api}: a stop text is ignored: {ended.text!r} goes on after {word!r}"
            raise CheckFailedError(what, where=asker.endpoint.url, fix="take a server that knows `stop`")
    return Finding("stop", "note", f"{asker.api}: every answer was too short to try a stop text on")


def _repeats(asker: Asker) -> Finding:
    said = {asker.ask(_COUNTING, max_tokens=24).text for _ in range(3)}
    if len(said) == 1:
        return Finding("greedy", "good", f"{asker.api}: the same question at temperature 0 gets the same answer")
    return Finding("greedy", "note", f"{asker.api}: {len(said)} answers to one question at temperature 0: it has noise")


def _seed(asker: Asker) -> Finding:
    def drawn(seed: int) -> Said:
        return asker.ask(_COUNTING, max_tokens=24, temperature=1.0, seed=seed)

    if drawn(7).text == drawn(7).text:
        return Finding("seed", "good", f"{asker.api}: a seed repeats a drawn answer")
    return Finding("seed", "note", f"{asker.api}: a seed does not repeat a drawn answer; nothing here draws any")


def _usage(counts: list[int | None], api: str) -> Finding:
    if None in counts:
        return Finding("usage", "note", f"{api}: the server does not count the tokens of prompts")
    return Finding("usage", "good", f"{api}: the server counts the tokens of prompts")


def _likelihoods(endpoint: Endpoint, identity: Identity, suite: Suite, tokens: ServerTokens | None) -> list[Finding]:
    """Tasks that compare likelihoods need echoed log-probabilities that are right; without them they score chance."""
    choosing = [task for task in suite.tasks if task.kind == "choose"]
    if not choosing:
        return []
    problem = "it does not show its tokenizer" if tokens is None else echo_problem(endpoint, identity.model, tokens)
    if problem is None:
        return [Finding("likelihoods", "good", "the log-probabilities of a prompt are whole and in their places")]
    names = ", ".join(task.task for task in choosing)
    other = next((task.generative for task in choosing if task.generative), None)
    raise CheckFailedError(
        f"{names} compares likelihoods, and this server cannot be trusted with them: {problem}",
        where=endpoint.url,
        fix=f"take --suite {other}, which asks for the letter" if other else "take a suite without such tasks",
    )
