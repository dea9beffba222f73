"""Who answers at an address: engine, version, options, checkpoint, as far as the server tells, and a fingerprint.

An address and a model's name say nothing about the checkpoint behind them. So the fingerprint also has the answers to
four short questions with their log-probabilities. A later run compares them with a tolerance: a server's own noise must
not throw away a night's work, another checkpoint must. Two checkpoints of one model may write the same four texts. So a
server that gives no log-probabilities is known by the time of its start, and one that tells neither is new every time.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from halfbyte.errors import MachineError, UsageError
from halfbyte.terminal.suggest import did_you_mean
from halfbyte.validate.endpoint import Endpoint, EndpointError
from halfbyte.validate.evaluate.asking import Asker

LOOK_S = 15.0
SAME_LOGPROB = 0.05  # natural logarithm; the same server repeats itself within 0.01, another 4-bit format does not
# Short: below 16 tokens no engine keeps a prefix, so the second time is computed like the first.
PROBES = ("The capital of France is", "2 + 2 =", "def add(a, b):\n    return", "Q: What is 17 * 3?\nA:")
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_STARTED = re.compile(r"^process_start_time_seconds(?:\{.*\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# What two servers may differ in without being unlike: what they were made to tell apart, and what follows from memory.
EXPECTED = (
    "model", "root", "started", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency",
)  # fmt: skip
_MODEL_KEYS = ("root", "max_model_len", "owned_by", "parent")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server tells about itself."""

    url: str
    model: str
    max_context: int | None
    told: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"told": dict(self.told)}


def identify(endpoint: Endpoint, model: str | None, *, any_name: bool = False) -> Identity:
    """Ask a server who it is, and find the model to ask: the one named, or the only one (with `any_name` even then)."""
    try:
        listed = endpoint.get("/v1/models", LOOK_S)
    except EndpointError as error:
        fix = "start the server, and give its address as http://HOST:PORT"
        raise MachineError(f"nobody answers: {error}", where=endpoint.url, fix=fix) from None
    entry = _chosen(listed, model, endpoint.url, any_name)
    told = {key: str(entry[key]) for key in _MODEL_KEYS if entry.get(key) is not None}
    told |= _version(endpoint) | _server_info(endpoint) | _metrics(endpoint) | _chat_template(endpoint)
    context = entry.get("max_model_len")
    limit = int(context) if isinstance(context, (int, float)) and context > 0 else None
    return Identity(endpoint.url, str(entry["id"]), limit, told)


def _chosen(listed: Any, model: str | None, url: str, any_name: bool) -> dict[str, Any]:
    found: Any = cast("dict[str, Any]", listed).get("data") if isinstance(listed, dict) else None
    rows = cast("list[Any]", found) if isinstance(found, list) else []
    models = [cast("dict[str, Any]", one) for one in rows if isinstance(one, dict)]
    entries = {str(one["id"]): one for one in models if one.get("id")}
    if len(entries) == 1 and (model is None or any_name):
        return next(iter(entries.values()))
    if model is None:
        what = f"the server lists {len(entries)} models" if entries else "the server lists no model"
        fix = f"give --model: {', '.join(entries)}" if entries else "look at the server's log"
        raise UsageError(what, where=f"{url}/v1/models", fix=fix)
    if model not in entries:
        fix = did_you_mean(model, entries) if entries else "look at the server's log"
        raise UsageError(f"the server has no model '{model}'", where=f"{url}/v1/models", fix=fix)
    return entries[model]


def _quietly(endpoint: Endpoint, path: str) -> Any:
    try:
        return endpoint.get(path, LOOK_S)
    except EndpointError:
        return None


def _version(endpoint: Endpoint) -> dict[str, str]:
    said = _quietly(endpoint, "/version")
    return {"version": str(cast("dict[str, Any]", said).get("version"))} if isinstance(said, dict) else {}


def _server_info(endpoint: Endpoint) -> dict[str, str]:
    """vLLM in its developers' mode, and SGLang, tell every option."""
    for path in ("/server_info?config_format=json", "/get_server_info"):
        said = _quietly(endpoint, path)
        if isinstance(said, dict):
            return _flat(cast("dict[str, Any]", said), "option")
    return {}


def _metrics(endpoint: Endpoint) -> dict[str, str]:
    """The cache's options, and when the server's process started."""
    said = _quietly(endpoint, "/metrics")
    text = said if isinstance(said, str) else ""
    cache, started = _CACHE_CONFIG.search(text), _STARTED.search(text)
    told = {f"cache.{name}": value for name, value in _LABEL.findall(cache[1])} if cache else {}
    return told | ({"started": started[1]} if started else {})


def _chat_template(endpoint: Endpoint) -> dict[str, str]:
    said = _quietly(endpoint, "/tokenizer_info")
    template = cast("dict[str, Any]", said).get("chat_template") if isinstance(said, dict) else None
    return {"chat_template_sha256": hashlib.sha256(str(template).encode()).hexdigest()} if template else {}


def _flat(value: Mapping[str, Any], name: str) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, inner in value.items():
        path = f"{name}.{key}"
        flat |= _flat(cast("dict[str, Any]", inner), path) if isinstance(inner, dict) else {path: str(inner)}
    return flat


def differences(a: Identity, b: Identity) -> list[str]:
    """Return what two servers tell differently, but for what may differ: each is a reason other than the checkpoint."""
    names = sorted(name for name in {*a.told, *b.told} if name.rsplit(".", 1)[-1] not in EXPECTED)
    return [
        f"{name}: {a.told.get(name, 'not told')} against {b.told.get(name, 'not told')}"
        for name in names
        if a.told.get(name) != b.told.get(name)
    ]


def probe(asker: Asker) -> list[dict[str, Any]]:
    """Ask the four questions."""
    said = [asker.ask_with_logprobs(prompt, max_tokens=8) for prompt in PROBES]
    return [{"text": one.text, "logprobs": [round(value, 4) for value in one.logprobs]} for one in said]


def same_probes(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> bool:
    """Whether two sets of answers come from the same checkpoint, a server's noise aside."""
    pairs = list(zip(a, b, strict=False))
    if len(a) != len(b) or any(x["text"] != y["text"] or len(x["logprobs"]) != len(y["logprobs"]) for x, y in pairs):
        return False
    values = [(u, v) for x, y in pairs for u, v in zip(x["logprobs"], y["logprobs"], strict=True)]
    return all(abs(u - v) <= SAME_LOGPROB for u, v in values)


def has_logprobs(probes: Sequence[dict[str, Any]]) -> bool:
    """Whether the answers can tell two checkpoints of one model apart; their texts cannot."""
    return any(one["logprobs"] for one in probes)


def can_be_told_apart(identity: Identity, probes: Sequence[dict[str, Any]]) -> bool:
    """Whether a later run can know that this server is still the same."""
    return has_logprobs(probes) or "started" in identity.told


def fingerprint(
    known: Sequence[dict[str, Any]], identity: Identity, probes: list[dict[str, Any]], *, trusted: bool = False
) -> dict[str, Any]:
    """Return the record of an endpoint: a known one if it is still the same, else a new one.

    With `trusted` the user says that a server without log-probabilities is the one of the earlier run.
    """
    stable: dict[str, Any] = {"url": identity.url, "model": identity.model}
    stable |= {key: identity.told.get(key) for key in ("version", "root", "max_model_len")}
    exact = stable
    if not has_logprobs(probes):
        exact = stable | {"started": identity.told.get("started") or f"not told, {secrets.token_hex(8)}"}
    for record in known:
        there = {key: value for key, value in record["stable"].items() if not trusted or key in stable}
        if there == (stable if trusted else exact) and same_probes(record["probes"], probes):
            return record
    name = hashlib.sha256(json.dumps([exact, probes]).encode()).hexdigest()[:16]
    return {"kind": "endpoint", "fingerprint": name, "stable": exact, "probes": probes}
