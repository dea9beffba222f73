"""Identify a server: its models, engine, version, options, checkpoint, as far as it reports them, and a fingerprint.

An address and a model name do not identify a checkpoint. The fingerprint therefore includes the replies to four short
prompts with log-probabilities. A later run compares them with a tolerance for the server's noise. Two checkpoints of
one model may generate the same four texts, so a server without log-probabilities is identified by its start time. A
server that reports neither is treated as new in every run.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from halfbyte.endpoint.client import (
    KEY_VARIABLES,
    Endpoint,
    EndpointError,
    ModelEndpoint,
    api_key,
    described_page,
)
from halfbyte.errors import MachineError, UsageError
from halfbyte.ui.suggest import did_you_mean

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


LOOK_S = 15.0
SAME_LOGPROB = 0.05  # in nats; the same server repeats within 0.01, another 4-bit format does not
# Shorter than 16 tokens, so that no engine caches the prefix.
PROBES = ("The capital of France is", "2 + 2 =", "def add(a, b):\n    return", "Q: What is 17 * 3?\nA:")
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_STARTED = re.compile(r"^process_start_time_seconds(?:\{.*\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Expected differences of two servers: the checkpoint, and values that depend on free memory.
EXPECTED = (
    "model", "root", "started", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency",
)  # fmt: skip
_MODEL_KEYS = ("root", "max_model_len", "owned_by", "parent")


@dataclass(frozen=True, slots=True)
class Identity:
    """The facts that a server reports about itself."""

    url: str
    model: str
    max_context: int | None
    reported: Mapping[str, str]  # options and version, by name


def identify(endpoint: Endpoint, model: str | None, *, any_name: bool = False) -> Identity:
    """Query a server and select the model: the named one, or the only one (with `any_name` under any name)."""
    entry = find_model(endpoint, model, any_name=any_name)
    facts = {key: str(entry[key]) for key in _MODEL_KEYS if entry.get(key) is not None}
    facts |= _version(endpoint) | _server_info(endpoint) | _metrics(endpoint) | _chat_template(endpoint)
    context = entry.get("max_model_len")
    limit = int(context) if isinstance(context, (int, float)) and context > 0 else None
    return Identity(endpoint.url, str(entry["id"]), limit, facts)


def find_model(endpoint: Endpoint, model: str | None, *, any_name: bool = False) -> dict[str, Any]:
    """Return the server's entry of the selected model, with one request."""
    entries, url = listed_models(endpoint, LOOK_S), endpoint.url
    if len(entries) == 1 and (model is None or any_name):
        return next(iter(entries.values()))
    if model is None:
        what = f"the server lists {len(entries)} models" if entries else "the server lists no model"
        fix = f"pass --model: {', '.join(entries)}" if entries else "check the server's log"
        raise UsageError(what, where=f"{url}/v1/models", fix=fix)
    if model not in entries:
        fix = did_you_mean(model, entries) if entries else "check the server's log"
        raise UsageError(f"the server has no model '{model}'", where=f"{url}/v1/models", fix=fix)
    return entries[model]


def _get_or_none(endpoint: Endpoint, path: str) -> Any:
    try:
        return endpoint.get(path, LOOK_S)
    except EndpointError:
        return None


def _version(endpoint: Endpoint) -> dict[str, str]:
    response = _get_or_none(endpoint, "/version")
    return {"version": str(cast("dict[str, Any]", response).get("version"))} if isinstance(response, dict) else {}


def _server_info(endpoint: Endpoint) -> dict[str, str]:
    """Return all options, which SGLang and vLLM in development mode report."""
    for path in ("/server_info?config_format=json", "/get_server_info"):
        response = _get_or_none(endpoint, path)
        if isinstance(response, dict):
            return _flat(cast("dict[str, Any]", response), "option")
    return {}


def _metrics(endpoint: Endpoint) -> dict[str, str]:
    """Return the cache options and the start time of the server's process."""
    response = _get_or_none(endpoint, "/metrics")
    text = response if isinstance(response, str) else ""
    cache, started = _CACHE_CONFIG.search(text), _STARTED.search(text)
    facts = {f"cache.{name}": value for name, value in _LABEL.findall(cache[1])} if cache else {}
    return facts | ({"started": started[1]} if started else {})


def _chat_template(endpoint: Endpoint) -> dict[str, str]:
    response = _get_or_none(endpoint, "/tokenizer_info")
    template = cast("dict[str, Any]", response).get("chat_template") if isinstance(response, dict) else None
    return {"chat_template_sha256": hashlib.sha256(str(template).encode()).hexdigest()} if template else {}


def _flat(value: Mapping[str, Any], name: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, inner in value.items():
        path = f"{name}.{key}"
        flat |= _flat(cast("dict[str, Any]", inner), path) if isinstance(inner, dict) else {path: str(inner)}
    return flat


def differences(a: Identity, b: Identity) -> list[str]:
    """Return the unexpected differences of two servers, which may affect scores besides the checkpoint."""
    names = sorted(name for name in {*a.reported, *b.reported} if name.rsplit(".", 1)[-1] not in EXPECTED)
    return [
        f"{name}: {a.reported.get(name, 'not reported')} against {b.reported.get(name, 'not reported')}"
        for name in names
        if a.reported.get(name) != b.reported.get(name)
    ]


def probe(asker: ModelEndpoint) -> list[dict[str, Any]]:
    """Send the four fingerprint prompts."""
    replies = [asker.ask_with_logprobs(prompt, max_tokens=8) for prompt in PROBES]
    return [{"text": reply.text, "logprobs": [round(value, 4) for value in reply.logprobs]} for reply in replies]


def same_probes(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> bool:
    """Return whether two sets of replies come from the same checkpoint, within the server's noise."""
    pairs = list(zip(a, b, strict=False))
    if len(a) != len(b) or any(x["text"] != y["text"] or len(x["logprobs"]) != len(y["logprobs"]) for x, y in pairs):
        return False
    values = [(u, v) for x, y in pairs for u, v in zip(x["logprobs"], y["logprobs"], strict=True)]
    return all(abs(u - v) <= SAME_LOGPROB for u, v in values)


def has_logprobs(probes: Sequence[dict[str, Any]]) -> bool:
    """Return whether the replies can distinguish two checkpoints of one model. Texts alone cannot."""
    return any(reply["logprobs"] for reply in probes)


def is_identifiable(identity: Identity, probes: Sequence[dict[str, Any]]) -> bool:
    """Return whether a later run can recognize this server."""
    return has_logprobs(probes) or "started" in identity.reported


def fingerprint(
    known: Sequence[dict[str, Any]], identity: Identity, probes: list[dict[str, Any]], *, trusted: bool = False
) -> dict[str, Any]:
    """Return the record of an endpoint: a known one if it is the same server, or a new one.

    With `trusted`, the user asserts that a server without log-probabilities is the one of the earlier run.
    """
    stable: dict[str, Any] = {"url": identity.url, "model": identity.model}
    stable |= {key: identity.reported.get(key) for key in ("version", "root", "max_model_len")}
    exact = stable
    if not has_logprobs(probes):
        exact = stable | {"started": identity.reported.get("started") or f"not reported, {secrets.token_hex(8)}"}
    for record in known:
        recorded = {key: value for key, value in record["stable"].items() if not trusted or key in stable}
        if recorded == (stable if trusted else exact) and same_probes(record["probes"], probes):
            return record
    name = hashlib.sha256(json.dumps([exact, probes]).encode()).hexdigest()[:16]
    return {"kind": "endpoint", "fingerprint": name, "stable": exact, "probes": probes}
