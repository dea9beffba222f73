"""The best sandbox of this machine, and in words why it is not a better one. Looked for once in a process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from halfbyte.sandbox import bubblewrap, wasm
from halfbyte.sandbox.bare import Bare
from halfbyte.sandbox.self_test import Engine, what_gets_out

Kind = Literal["isolated", "wasm", "bare", "none"]
_lock = threading.Lock()
_found: list[Tier] = []


@dataclass(frozen=True, slots=True)
class Tier:
    """Where programs run here. `none`: nowhere, and what needs them is skipped, never passed."""

    kind: Kind
    engine: Engine | None
    reason: str = ""  # why no better one

    @property
    def sentence(self) -> str:
        """Say it, for a report."""
        kinds: dict[Kind, str] = {
            "isolated": "isolated by",
            "wasm": "in WebAssembly:",
            "bare": "bare, because it was asked for:",
            "none": "none",
        }
        return " ".join(part for part in (kinds[self.kind], self.engine.name if self.engine else "") if part) + (
            f" ({self.reason})" if self.reason else ""
        )


def find_tier(*, allow_bare: bool = False) -> Tier:
    """Return the best tier that withstands the self-test; `bare` only where it is allowed and nothing else works."""
    with _lock:
        if not _found:
            _found.append(_look())
        tier = _found[0]
    return Tier("bare", Bare(), tier.reason) if tier.kind == "none" and allow_bare else tier


def _look() -> Tier:
    engines, problems = bubblewrap.candidates()
    for engine in engines:
        problem = what_gets_out(engine)
        if problem is None:
            return Tier("isolated", engine)
        problems.append(f"{engine.wrapper.path}: {problem}")
    second = wasm.find()
    if isinstance(second, str):
        return Tier("none", None, "; ".join([*problems, second]))
    problem = what_gets_out(second, forks=False)
    if problem is None:
        return Tier("wasm", second, "; ".join(problems))
    return Tier("none", None, "; ".join([*problems, f"{second.name}: {problem}"]))
