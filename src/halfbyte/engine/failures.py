"""Describe why a run failed and how to resume it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from halfbyte.checkpoint.atomic_write import Journal, cannot_go_on
from halfbyte.errors import InterruptedRunError, TensorError
from halfbyte.plan.manifest import Plan


@contextmanager
def explain_failures(out: Path, plan: Plan, journal: Journal) -> Generator[None]:
    """Convert interrupts, tensor errors and OS errors to errors with instructions for resuming."""
    try:
        yield
    except KeyboardInterrupt:
        final = len({line.get("shard") for line in journal.lines()})
        what = f"interrupted; {final} of {len(plan.shards)} shards are complete, and nothing needs cleaning up"
        raise InterruptedRunError(what, where=str(out), fix="run the same command again to resume") from None
    except TensorError as error:
        raise _with_shard(error, plan) from None
    except OSError as error:
        raise cannot_go_on(error, out) from None


def _with_shard(error: TensorError, plan: Plan) -> TensorError:
    """Add the shard of the tensor to an error."""
    linear = plan.model.linears.get(error.where)
    if linear is None:
        return error
    shards = ", ".join(sorted({part.shard for part in linear.parts.values()}))
    fix = f"{error.fix}; download it again, then run the same command: finished shards are kept"
    return TensorError(error.what, where=f"{shards}: {error.where}", fix=fix)
