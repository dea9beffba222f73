"""Best sandbox of this machine and why no better one works. Detected once per process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from halfbyte.sandbox import bubblewrap, wasm
from halfbyte.sandbox.self_test import Engine, run_self_test
from halfbyte.sandbox.unsandboxed import Bare

Kind = Literal["isolated", "wasm", "bare", "none"]
_lock = threading.Lock()
_cached: list[Tier] = []


@dataclass(frozen=True, slots=True)
class Tier:
    """Where programs run. With `none`, probes and tasks that need a sandbox are skipped, never passed."""

    kind: Kind
    engine: Engine | None
    reason: str = ""  # why no better tier works

    @property
    def sentence(self) -> str:
        """Return a description for reports."""
        kinds: dict[Kind, str] = {
            "isolated": "isolated by",
            "wasm": "in WebAssembly:",
            "bare": "bare, as requested:",
            "none": "none",
        }
        return " ".join(part for part in (kinds[self.kind], self.engine.name if self.engine else "") if part) + (
            f" ({self.reason})" if self.reason else ""
        )


def find_tier(*, allow_bare: bool = False) -> Tier:
    """Return the best tier that passes the self-test; `bare` only if allowed and nothing else works."""
    with _lock:
        if not _cached:
            _cached.append(_detect())
        tier = _cached[0]
    return Tier("bare", Bare(), tier.reason) if tier.kind == "none" and allow_bare else tier


def _detect() -> Tier:
    engines, problems = bubblewrap.candidates()
    for engine in engines:
        problem = run_self_test(engine)
        if problem is None:
            return Tier("isolated", engine)
        problems.append(f"{engine.wrapper.path}: {problem}")
    wasm_engine = wasm.find()
    if isinstance(wasm_engine, str):
        return Tier("none", None, "; ".join([*problems, wasm_engine]))
    problem = run_self_test(wasm_engine, forks=False)
    if problem is None:
        return Tier("wasm", wasm_engine, "; ".join(problems))
    return Tier("none", None, "; ".join([*problems, f"{wasm_engine.name}: {problem}"]))
