"""What two servers must have in common before their scores are compared: both here now, or one in an earlier run.

Prompts that are cut into unequal tokens are an error. Everything else that the servers tell differently is said: each
is a reason for a difference that is not the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.validate.evaluate.identity import Identity, differences, has_logprobs, same_probes
from halfbyte.validate.evaluate.preflight import PARITY_PROMPTS, Finding, Preflight


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one side: who it is, how it cuts prompts, and how it was asked."""

    identity: Identity
    prompt_tokens: Mapping[str, list[int | None]]  # by form
    asked: Mapping[str, Any]  # how: concurrency, version of lm-eval
    probes: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # answers that tell checkpoints apart


def known_now(ready: Preflight, asked: Mapping[str, Any]) -> Known:
    """Return what a pre-flight has found."""
    return Known(ready.identity, ready.prompt_tokens, asked, ready.probes)


def known_then(head: Mapping[str, Any], where: Path) -> Known:
    """Return what an earlier run's eval.json says of its candidate."""
    try:
        side = head["candidate"]
        told = {str(name): str(value) for name, value in side["told"].items()}
        identity = Identity(str(side["url"]), str(side["model"]), side["max_context"], told)
        counts = {str(api): list(found) for api, found in side["prompt_tokens"].items()}
        asked = {"concurrency": head["concurrency"], "lm_eval": head["lm_eval"]}
        probes = [{"text": one["text"], "logprobs": list(one["logprobs"])} for one in side["probes"]]
    except (LookupError, TypeError, AttributeError, ValueError):
        what = "the baseline does not say what was asked there"
        raise UsageError(what, where=str(where), fix="run the baseline again with this version") from None
    return Known(identity, cast("dict[str, list[int | None]]", counts), asked, probes)


def parity(candidate: Known, reference: Known) -> list[Finding]:
    """Compare two sides: unequal prompts are an error, every other difference is said."""
    _refuse_unequal_prompts(candidate, reference)
    unlike = differences(candidate.identity, reference.identity)
    unlike += [
        f"{name}: {mine} against {reference.asked.get(name)}"
        for name, mine in candidate.asked.items()
        if mine != reference.asked.get(name)
    ]
    if not unlike:
        return [Finding("parity", "good", "both cut prompts alike and tell the same of themselves")]
    return [Finding("parity", "note", f"the servers differ in more than the checkpoint: {one}") for one in unlike]


def alike(candidate: Known, reference: Known) -> str | None:
    """Return the sentence that must stand beside every verdict on two sides that nothing tells apart, or None."""
    if not same_probes(candidate.probes, reference.probes):
        return None
    if has_logprobs(candidate.probes):
        return (
            "candidate and reference have the same fingerprint (equal answers with equal log-probabilities): this "
            "compares a checkpoint with itself (A/A), and a verdict says nothing about another one"
        )
    if candidate.identity.url == reference.identity.url or candidate.identity.told == reference.identity.told:
        return (
            "candidate and reference cannot be told apart (equal answers, and no log-probabilities): this may compare "
            "a checkpoint with itself (A/A)"
        )
    return None


def _refuse_unequal_prompts(candidate: Known, reference: Known) -> None:
    for api, counts in candidate.prompt_tokens.items():
        others = reference.prompt_tokens.get(api, [])
        unequal = [
            f"{text!r}: {a} against {b}"
            for text, a, b in zip(PARITY_PROMPTS, counts, others, strict=False)  # an earlier run may have asked fewer
            if a != b and a is not None and b is not None
        ]
        if unequal:
            raise CheckFailedError(
                f"{api}: the servers cut the same prompt into different tokens ({unequal[0]}, {len(unequal)} in all)",
                where=f"{candidate.identity.url} and {reference.identity.url}",
                fix="serve both with the same tokenizer and chat template",
            )
