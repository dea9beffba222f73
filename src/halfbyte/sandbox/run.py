"""Run model-written programs."""

from __future__ import annotations

from halfbyte.errors import MachineError
from halfbyte.machine.extras import install_extra
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.result import Ran
from halfbyte.sandbox.tiers import Tier, find_tier

_DEFAULT = Limits()


def run_python(source: str, *, tier: Tier | None = None, limits: Limits = _DEFAULT, stdin: str = "") -> Ran:
    """Run a program with limits on time, memory, processes and output. Thread-safe."""
    tier = tier or find_tier()
    if tier.engine is None:
        raise no_sandbox(tier)
    return tier.engine.run(source, limits, stdin)


def no_sandbox(tier: Tier) -> MachineError:
    """Return the error for a machine without a sandbox."""
    what = "no sandbox available for model-written programs, so they are not run"
    fix = f"install bubblewrap, or {install_extra('sandbox')}; see `halfbyte doctor`"
    return MachineError(what, where=tier.reason, fix=fix)
