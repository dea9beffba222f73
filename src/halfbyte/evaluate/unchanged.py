"""Check after each task that the server is still the one of the preflight."""

from __future__ import annotations

from halfbyte.endpoint.client import Asker, EndpointError
from halfbyte.endpoint.identity import has_logprobs, identify, probe, same_probes
from halfbyte.errors import MachineError, UsageError
from halfbyte.evaluate.preflight import Preflight, forms
from halfbyte.evaluate.suites import Suite

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
        if now.told.get(name) != then.told.get(name):
            return f"{name} was {then.told.get(name, 'not reported')} and is {now.told.get(name, 'not reported')}"
    try:
        for _ in range(TRIES):
            replies = [reply for api in forms(suite) for reply in probe(Asker(before.endpoint, then.model, api))]
            if same_probes(before.probes, replies):
                return None
    except EndpointError as error:
        fix = "restart the server, and run the same command to resume"
        raise MachineError(f"the endpoint no longer responds: {error}", where=then.url, fix=fix) from None
    return "its replies to the fingerprint prompts changed"
