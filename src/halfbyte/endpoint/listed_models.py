"""List the models of an OpenAI-compatible server."""

from __future__ import annotations

import http.client
from typing import Any, cast

from halfbyte.endpoint.client import (
    KEY_VARIABLES,
    Endpoint,
    EndpointError,
    api_key,
    described_page,
)
from halfbyte.errors import MachineError

MODELS = "/v1/models"
_AUTH_ERRORS = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)


def listed_models(endpoint: Endpoint, timeout_s: float) -> dict[str, dict[str, Any]]:
    """Return the entries of `/v1/models` by name; MachineError if the server is not OpenAI-compatible."""
    address = endpoint.url + MODELS
    try:
        listed = endpoint.get(MODELS, timeout_s)
    except EndpointError as error:
        raise _no_answer(error, endpoint.url) from None
    entries: Any = cast("dict[str, Any]", listed).get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        page = described_page(listed) if isinstance(listed, str) else "JSON without a list of models"
        raise _not_openai(page, address)
    models = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", entries) if isinstance(entry, dict)]
    return {str(model["id"]): model for model in models if model.get("id")}


def _no_answer(error: EndpointError, url: str) -> MachineError:
    if error.status is None:
        fix = "start the server (`halfbyte serve OUT --run` starts one) and pass its URL as http://HOST:PORT"
        return MachineError(f"the server does not respond: {error}", where=url, fix=fix)
    if error.status in _AUTH_ERRORS:
        what = f"the server {'rejects the API key' if api_key() else 'requires an API key'} (HTTP {error.status})"
        return MachineError(what, where=url + MODELS, fix=f"set {' or '.join(KEY_VARIABLES)} in the environment")
    if error.status >= http.client.INTERNAL_SERVER_ERROR:
        fix = "wait until the server is up, or check its log; then run the same command again"
        return MachineError(f"the server is not ready: {error}", where=url + MODELS, fix=fix)
    return _not_openai(" ".join(str(error).split()), url + MODELS)


def _not_openai(answer: str, address: str) -> MachineError:
    fix = f"pass the URL of an inference server as http://HOST:PORT; `curl {address}` must list its models"
    return MachineError(f"not an OpenAI-compatible server: it returned {answer}", where=address, fix=fix)
