"""Identify the server behind a URL and whether its speed may support a claim; sample its GPUs and KV cache under load.

The speed of an emulated server or a CPU says nothing about GPUs. Both are recognized from the server's responses and,
on this machine, from its process. An unrecognized device is "unknown" and supports no claim without --gpus.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

from halfbyte.endpoint.client import api_key, open_within, parse_url
from halfbyte.endpoint.identity import listed_models
from halfbyte.endpoint.metrics_page import Page, read_page
from halfbyte.errors import MachineError, UsageError
from halfbyte.evidence.benchmark import BenchServer
from halfbyte.serve.boot_time import reported_boot
from halfbyte.serve.ports import listening_process

ANSWERS_WITHIN_S = 10.0
EMULATION = "halfbyte_emulate"
EMULATED = "the server emulates its number format"
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
_FLAG_LABELS = ("block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_dtype")


def _no_claim(device: str, *, emulated: bool) -> str:
    """Return why a server's speed does not represent a GPU, or an empty string."""
    if emulated:
        return EMULATED
    if device == "cpu":
        return "the server computes on a CPU"
    return "" if device == "gpu" else "the server's hardware is unknown; pass --gpus"


def identity(server: BenchServer) -> dict[str, Any]:
    """Return the facts that distinguish a server from another one at the same address.

    The labels --gpus and --emulated are excluded, because they may change when a bench is resumed.
    """
    names = ("url", "model", "root", "context", "version", "started", "kv_tokens")
    return {name: getattr(server, name) for name in names} | {"settings": dict(server.settings)}


def inspect_server(
    url: str, *, emulated: bool = False, gpus: str | None = None, model: str | None = None
) -> BenchServer:
    """Query a server and return its facts. Raise if it does not respond or serves no model."""
    endpoint = parse_url(url, ANSWERS_WITHIN_S)
    url, rows = endpoint.url, listed_models(endpoint, ANSWERS_WITHIN_S)
    named = [row for name, row in rows.items() if model in (None, name)]
    if not named:
        models = ", ".join(rows) or "none"
        raise UsageError(f"the server has no model '{model}'", where=url, fix=f"available models: {models}")
    page = metrics(url)
    cache: Mapping[str, str] = page.cache if page else {}
    version = str((_json(url, "/version") or {}).get("version", ""))
    command, row = local_command(url), named[0]
    context: Any = row.get("max_model_len")  # some servers report a float
    reported = (page is not None and page.emulated) or EMULATION in json.dumps(_json(url, "/server_info") or {})
    device = _device(version, url, command, declared=bool(gpus))
    emulated = emulated or reported or EMULATION in command
    return BenchServer(
        url=url,
        model=str(row.get("id", "")),
        root=str(row.get("root") or ""),
        context=int(context) if isinstance(context, (int, float)) and context > 0 else None,
        version=version,
        device=device,
        emulated=emulated,
        local=bool(command),
        kv_tokens=page.kv_tokens if page else None,
        started=page.started if page else None,
        settings={name: cache[name] for name in _FLAG_LABELS if name in cache},
        boot=reported_boot(url),
        no_claim_because=_no_claim(device, emulated=emulated),
    )


def server_changes(server: BenchServer) -> str:
    """Return the differences if another server now responds at the address, or an empty string.

    A server that does not respond is not reported here: its requests fail. Missing facts are not compared.
    """
    try:
        now = identity(inspect_server(server.url, model=server.model))
    except UsageError as error:  # it serves other models
        return error.what
    except MachineError:
        return ""
    then = identity(server)
    before, after = ({**facts.pop("settings"), **facts} for facts in (then, now))
    changed = [name for name in after if after[name] not in (None, "", before.get(name))]
    return "; ".join(f"{name}: {before.get(name)} at the start, {after[name]} now" for name in changed)


def differences(a: BenchServer, b: BenchServer) -> list[str]:
    """Return the differences between two servers besides the checkpoint, which also affect their ratio."""
    pairs = {"version": (a.version, b.version), "device": (a.device, b.device), "context": (a.context, b.context)}
    pairs |= {"emulated": (a.emulated, b.emulated)}
    pairs |= {name: (a.settings.get(name), b.settings.get(name)) for name in sorted({*a.settings, *b.settings})}
    return [f"{name}: {first} and {second}" for name, (first, second) in pairs.items() if first != second]


def metrics(url: str) -> Page | None:
    """Read the server's /metrics. Return None if it has none."""
    text = fetch(f"{url}/metrics")
    return None if text is None else read_page(text)


def fetch(address: str) -> str | None:
    """GET a page within a few seconds. Return None on any failure."""
    try:
        return _get(address)
    except (OSError, ValueError, http.client.HTTPException):  # URLError and timeouts are OSErrors
        return None


def _get(address: str) -> str:
    key = api_key()
    call = urllib.request.Request(address, headers={"Authorization": f"Bearer {key}"} if key else {})
    with open_within(call, ANSWERS_WITHIN_S) as answer:
        return answer.read().decode("utf-8", errors="replace")


def _json(url: str, path: str) -> dict[str, Any] | None:
    return _object(fetch(f"{url}{path}") or "")


def _object(text: str) -> dict[str, Any] | None:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def local_command(url: str) -> str:
    """Return the command line of the server's process if it runs on this machine, or an empty string."""
    address = urlsplit(url)
    if address.hostname not in _LOCAL or address.port is None:
        return ""
    process = listening_process(address.port)
    try:
        command = (process / "cmdline").read_bytes().decode(errors="replace") if process else ""
        return command.replace("\0", " ").strip()
    except OSError:
        return ""


def _device(version: str, url: str, command: str, *, declared: bool) -> str:
    """Return the server's device. The user's declaration counts only if nothing else is known.

    The /version of vLLM's CPU build does not always name the CPU.
    """
    here = urlsplit(url).hostname in _LOCAL
    if "cpu" in version or (here and not _gpu_here()):
        return "cpu"
    return "gpu" if declared or (here and command) else "unknown"


def _gpu_here() -> bool:
    return bool(shutil.which("nvidia-smi")) or Path("/dev/kfd").exists()


# Sample power and clocks of the local GPUs with nvidia-smi while a block runs.

_GPU_SAMPLE_S = 1.0
_ANSWERS_WITHIN_S = 10.0
FIELDS = ("power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "utilization.gpu")
_OURS = ("watts", "sm_mhz", "memory_mhz", "celsius", "busy_percent")


class GpuPower:
    """A context that samples the GPUs every second and sets `summary` on exit, to None without nvidia-smi."""

    def __init__(self, *, wanted: bool) -> None:
        self._program = shutil.which("nvidia-smi") if wanted else None
        self._samples: list[list[dict[str, float | None]]] = []
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.summary: dict[str, Any] | None = None

    def __enter__(self) -> GpuPower:
        if self._program is not None:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(_ANSWERS_WITHIN_S)
        self.summary = over_time(self._samples)

    def _sample(self) -> None:
        command = [str(self._program), f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
        while not self._done.is_set():
            try:
                query = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True)
            except (OSError, subprocess.SubprocessError):
                return
            self._samples.append(read_gpus(query.stdout))
            self._done.wait(_GPU_SAMPLE_S)


def read_gpus(text: str) -> list[dict[str, float | None]]:
    """Parse nvidia-smi's output, one line per GPU. Missing values ("[N/A]") are None."""
    return [dict(zip(_OURS, map(_number, line.split(",")), strict=False)) for line in text.splitlines() if line.strip()]


def over_time(samples: Sequence[Sequence[dict[str, float | None]]]) -> dict[str, Any] | None:
    """Return the number of GPUs and the mean of each value over GPUs and time. Power is the sum over GPUs."""
    if not samples or not samples[0]:
        return None
    means: dict[str, Any] = {"gpus": len(samples[0]), "samples": len(samples)}
    for name in _OURS:
        known = [value for sample in samples for gpu in sample if (value := gpu.get(name)) is not None]
        means[name] = fmean(known) * (len(samples[0]) if name == "watts" else 1) if known else None
    return means


def _number(text: str) -> float | None:
    try:
        return float(text.strip())
    except ValueError:
        return None


# Sample the peak KV cache usage of a server while a block runs.

KV_SAMPLE_S = 1.0
_ENDS_WITHIN_S = 15.0  # timeout of a pending request


class KvPeak:
    """A context that sets `peak`, the highest usage as a fraction, or None if the server does not report it."""

    def __init__(self, read: Callable[[], Page | None], every_s: float = KV_SAMPLE_S) -> None:
        self._read, self._every_s = read, every_s
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.looks = 0
        self.peak: float | None = None

    def __enter__(self) -> KvPeak:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(_ENDS_WITHIN_S)

    def _watch(self) -> None:
        while not self._done.wait(self._every_s):
            page = self._read()
            if page is None or page.kv_use is None:
                return  # the server does not report it
            self.looks += 1
            self.peak = max(page.kv_use, self.peak or 0.0)
