"""What answers behind a URL, and whether its speed may support a claim.

An emulated server computes what a GPU would, not as fast as a GPU would; a CPU is no GPU. Both are recognised from what
the server says and, on this machine, from its process. What cannot be recognised is "unknown", and supports no claim
either unless the user says with --gpus what it runs on.
"""

from __future__ import annotations

import http.client
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from halfbyte.errors import MachineError, UsageError
from halfbyte.serve.boot_time import Boot, told
from halfbyte.serve.ports import listening_process
from halfbyte.validate.bench.metrics_page import Page, read_page
from halfbyte.validate.bounded_http import open_within
from halfbyte.validate.endpoint import KEY_VARIABLES, api_key, parse_url

ANSWERS_WITHIN_S = 10.0
EMULATION = "halfbyte_emulate"
EMULATED = "the server emulates its number format"
_NOT_LET_IN = (401, 403)
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_FLAG_LABELS = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_dtype")


@dataclass(frozen=True, slots=True)
class Server:
    """What a server says of itself, and what its process tells where it runs on this machine."""

    url: str
    model: str
    root: str
    context: int | None
    version: str
    device: str  # "gpu", "cpu" or "unknown"
    emulated: bool
    local: bool
    kv_tokens: int | None
    started: float | None
    settings: Mapping[str, str]
    boot: Boot | None = None  # known only where halfbyte has started it

    @property
    def no_claim_because(self) -> str:
        """Why its speed says nothing of a GPU's; empty where it may."""
        if self.emulated:
            return EMULATED
        if self.device == "cpu":
            return "the server computes on a CPU"
        return "" if self.device == "gpu" else "nobody knows what the server computes on; --gpus tells"

    def identity(self) -> dict[str, Any]:
        """Return what tells it from another server at the same address.

        What the user says of it (--gpus, --emulated) is not in here: labels may change when a bench goes on.
        """
        names = ("url", "model", "root", "context", "version", "started", "kv_tokens")
        return {name: getattr(self, name) for name in names} | {"settings": dict(self.settings)}

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        boot = {**asdict(self.boot), "kind": self.boot.kind} if self.boot else None
        more = {"settings": dict(self.settings), "boot": boot, "no_claim_because": self.no_claim_because}
        return {**asdict(self), **more}


def look_at(url: str, *, emulated: bool = False, gpus: str | None = None, model: str | None = None) -> Server:
    """Ask a server what it is; one that does not answer, or serves nothing, is an error before any load."""
    url = parse_url(url, ANSWERS_WITHIN_S).url
    models = _models(url)
    if models is None:
        fix = "is it up? `halfbyte serve OUT --run` starts one"
        raise MachineError("the server does not say which models it has", where=f"{url}/v1/models", fix=fix)
    listed: list[Any] = models.get("data") or []
    rows = [cast("dict[str, Any]", row) for row in listed if isinstance(row, dict)]
    named = [row for row in rows if model in (None, row.get("id"))]
    if not named:
        has = ", ".join(str(row.get("id")) for row in rows) or "none"
        raise UsageError(f"the server has no model '{model}'", where=url, fix=f"it has: {has}")
    page = metrics(url)
    cache: Mapping[str, str] = page.cache if page else {}
    version = str((_json(url, "/version") or {}).get("version", ""))
    command, row = local_command(url), named[0]
    says_so = (page is not None and page.emulated) or EMULATION in json.dumps(_json(url, "/server_info") or {})
    return Server(
        url=url,
        model=str(row.get("id", "")),
        root=str(row.get("root") or ""),
        context=row.get("max_model_len"),
        version=version,
        device=_device(version, url, command, told=bool(gpus)),
        emulated=emulated or says_so or EMULATION in command,
        local=bool(command),
        kv_tokens=page.kv_tokens if page else None,
        started=page.started if page else None,
        settings={name: cache[name] for name in _FLAG_LABELS if name in cache},
        boot=told(url),
    )


def what_changed(server: Server) -> str:
    """Return what tells that another server answers at the address now; nothing where it is the same one.

    One that does not answer is not another: its requests fail, and that is said. What is not told now is not compared.
    """
    try:
        now = look_at(server.url, model=server.model).identity()
    except UsageError as error:  # it has other models
        return error.what
    except MachineError:
        return ""
    then = server.identity()
    before, after = ({**one.pop("settings"), **one} for one in (then, now))
    changed = [name for name in after if after[name] not in (None, "", before.get(name))]
    return "; ".join(f"{name}: {before.get(name)} at the beginning, {after[name]} now" for name in changed)


def differences(a: Server, b: Server) -> list[str]:
    """Return in what two servers differ that is not the checkpoint: then a ratio is not the checkpoint's alone."""
    pairs = {"version": (a.version, b.version), "device": (a.device, b.device), "context": (a.context, b.context)}
    pairs |= {"emulated": (a.emulated, b.emulated)}
    pairs |= {name: (a.settings.get(name), b.settings.get(name)) for name in sorted({*a.settings, *b.settings})}
    return [f"{name}: {one} and {other}" for name, (one, other) in pairs.items() if one != other]


def metrics(url: str) -> Page | None:
    """Return a look at the server's /metrics; None where it has none."""
    text = fetch(f"{url}/metrics")
    return None if text is None else read_page(text)


def fetch(address: str) -> str | None:
    """GET a page within a few seconds; None if there is none."""
    try:
        return _get(address)
    except (OSError, ValueError, http.client.HTTPException):  # URLError and timeouts are OSErrors
        return None


def _get(address: str) -> str:
    key = api_key()
    call = urllib.request.Request(address, headers={"Authorization": f"Bearer {key}"} if key else {})
    with open_within(call, ANSWERS_WITHIN_S) as answer:
        return answer.read().decode("utf-8", errors="replace")


def _models(url: str) -> dict[str, Any] | None:
    """Return what the server says of its models; one that is up but does not let us in is an error of its own."""
    address = f"{url}/v1/models"
    try:
        return _object(_get(address))
    except urllib.error.HTTPError as error:
        with error:
            if error.code not in _NOT_LET_IN:
                return None
        what = f"the server {'refuses the key' if api_key() else 'wants a key'} (HTTP {error.code})"
        raise MachineError(what, where=address, fix=f"set {' or '.join(KEY_VARIABLES)} in the environment") from None
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _json(url: str, path: str) -> dict[str, Any] | None:
    return _object(fetch(f"{url}{path}") or "")


def _object(text: str) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def local_command(url: str) -> str:
    """Return the command line of the server's process if it runs on this machine, else nothing."""
    address = urlsplit(url)
    if address.hostname not in _LOCAL or address.port is None:
        return ""
    process = listening_process(address.port)
    try:
        command = (process / "cmdline").read_bytes().decode(errors="replace") if process else ""
        return command.replace("\0", " ").strip()
    except OSError:
        return ""


def _device(version: str, url: str, command: str, *, told: bool) -> str:
    """Return what the server computes on; what the user tells decides only where nothing else does.

    The /version of vLLM's CPU build says no more than the others'.
    """
    here = urlsplit(url).hostname in _LOCAL
    if "cpu" in version or (here and not _gpu_here()):
        return "cpu"
    return "gpu" if told or (here and command) else "unknown"


def _gpu_here() -> bool:
    return bool(shutil.which("nvidia-smi")) or Path("/dev/kfd").exists()
