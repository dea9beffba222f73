"""Check that two servers are comparable, and that a server is still the one of the preflight.

The reference may run now or come from an earlier run. Different tokenization of the same prompt is an error. Other
differences are reported, because they may affect scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from halfbyte.endpoint.client import EndpointError, ModelEndpoint
from halfbyte.endpoint.identity import Identity, differences, has_logprobs, identify, probe, same_probes
from halfbyte.errors import CheckFailedError, MachineError, UsageError
from halfbyte.evaluate.preflight import PARITY_PROMPTS, Finding, Preflight, forms
from halfbyte.evaluate.suites import Suite
from halfbyte.evidence.evaluation import Evaluation


@dataclass(frozen=True, slots=True)
class Known:
    """The facts about one side: identity, token counts and evaluation settings."""

    identity: Identity
    prompt_tokens: Mapping[str, Sequence[int | None]]  # by API
    settings: Mapping[str, Any]  # concurrency, version of lm-eval
    probes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # fingerprint replies


def known_now(ready: Preflight, settings: Mapping[str, Any]) -> Known:
    """Return the facts from a preflight."""
    return Known(ready.identity, ready.prompt_tokens, settings, ready.probes)


def known_then(baseline: Evaluation) -> Known:
    """Return the facts about the candidate of an earlier run."""
    side = baseline.candidate
    settings = {"concurrency": baseline.concurrency, "lm_eval": baseline.lm_eval}
    return Known(side.identity, side.prompt_tokens, settings, [asdict(reply) for reply in side.fingerprint_replies])


def parity(candidate: Known, reference: Known) -> list[Finding]:
    """Compare two sides. Raise on different tokenization, and report other differences."""
    _refuse_unequal_prompts(candidate, reference)
    different = differences(candidate.identity, reference.identity)
    different += [
        f"{name}: {mine} against {reference.settings.get(name)}"
        for name, mine in candidate.settings.items()
        if mine != reference.settings.get(name)
    ]
    if not different:
        return [Finding("parity", "good", "both servers tokenize prompts identically and report the same settings")]
    return [Finding("parity", "note", f"the servers differ in more than the checkpoint: {text}") for text in different]


def same_checkpoint_warning(candidate: Known, reference: Known) -> str | None:
    """Return the caveat for two sides that cannot be distinguished, or None."""
    if not same_probes(candidate.probes, reference.probes):
        return None
    if has_logprobs(candidate.probes):
        return (
            "candidate and reference have the same fingerprint (equal answers with equal log-probabilities): this "
            "compares a checkpoint with itself (A/A test), so the verdict says nothing about another one"
        )
    if candidate.identity.url == reference.identity.url or candidate.identity.reported == reference.identity.reported:
        return (
            "candidate and reference cannot be distinguished (equal answers, no log-probabilities): this may compare "
            "a checkpoint with itself (A/A test)"
        )
    return None


def _refuse_unequal_prompts(candidate: Known, reference: Known) -> None:
    for api, counts in candidate.prompt_tokens.items():
        others = reference.prompt_tokens.get(api, ())
        unequal = [
            f"{text!r}: {a} against {b}"
            for text, a, b in zip(PARITY_PROMPTS, counts, others, strict=False)  # an earlier run may have fewer
            if a != b and a is not None and b is not None
        ]
        if unequal:
            raise CheckFailedError(
                f"{api}: the servers tokenize the same prompt differently ({unequal[0]}, {len(unequal)} in all)",
                where=f"{candidate.identity.url} and {reference.identity.url}",
                fix="serve both with the same tokenizer and chat template",
            )


# Check after each task that the server is still the one of the preflight.

TRIES = 3  # the server's noise can change one set of replies; another checkpoint changes all of them
_STEADY = ("root", "version", "max_model_len", "cache.cache_dtype")  # facts that do not change over time


def server_changes(before: Preflight, suite: Suite) -> str | None:
    """Return a description of what changed since the preflight, or None."""
    try:
        now = identify(before.endpoint, before.identity.model)
    except UsageError as error:  # the model is no longer served
        return error.what
    then = before.identity
    names = _STEADY if has_logprobs(before.probes) else (*_STEADY, "started")
    for name in names:
        if now.reported.get(name) != then.reported.get(name):
            return (
                f"{name} was {then.reported.get(name, 'not reported')} and is {now.reported.get(name, 'not reported')}"
            )
    try:
        for _ in range(TRIES):
            replies = [
                reply for api in forms(suite) for reply in probe(ModelEndpoint(before.endpoint, then.model, api))
            ]
            if same_probes(before.probes, replies):
                return None
    except EndpointError as error:
        fix = "restart the server, and run the same command to resume"
        raise MachineError(f"the endpoint no longer responds: {error}", where=then.url, fix=fix) from None
    return "its replies to the fingerprint prompts changed"
