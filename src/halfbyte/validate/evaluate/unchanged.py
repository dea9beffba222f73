"""Is the server after a task still the one of the pre-flight? A model that was swapped meanwhile is not one score."""

from __future__ import annotations

from halfbyte.errors import MachineError, UsageError
from halfbyte.validate.endpoint import EndpointError
from halfbyte.validate.evaluate.asking import Asker
from halfbyte.validate.evaluate.identity import has_logprobs, identify, probe, same_probes
from halfbyte.validate.evaluate.preflight import Preflight, forms
from halfbyte.validate.evaluate.suites import Suite

TRIES = 3  # a server's own noise can change one set of answers, another checkpoint changes all of them
_STEADY = ("root", "version", "max_model_len", "cache.cache_dtype")  # engines tell more, also what changes with time


def what_changed(before: Preflight, suite: Suite) -> str | None:
    """Return what is not as it was before the first item, or None."""
    try:
        now = identify(before.endpoint, before.identity.model)
    except UsageError as error:  # the model is not there any more
        return error.what
    then = before.identity
    names = _STEADY if has_logprobs(before.probes) else (*_STEADY, "started")
    for name in names:
        if now.told.get(name) != then.told.get(name):
            return f"{name} was {then.told.get(name, 'not told')} and is {now.told.get(name, 'not told')}"
    try:
        for _ in range(TRIES):
            found = [one for api in forms(suite) for one in probe(Asker(before.endpoint, then.model, api))]
            if same_probes(before.probes, found):
                return None
    except EndpointError as error:
        fix = "start it and run the same command again; what is finished is kept"
        raise MachineError(f"the endpoint does not answer any more: {error}", where=then.url, fix=fix) from None
    return "it answers the same short questions otherwise than before the first item"
