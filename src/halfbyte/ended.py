"""What ended a run before its time, in a sentence, and how it goes on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from halfbyte.errors import InterruptedRunError, TensorError
from halfbyte.plan.manifest import Plan
from halfbyte.write import Journal, cannot_go_on


@contextmanager
def explained(out: Path, made: Plan, journal: Journal) -> Generator[None]:
    """Say what ended a run, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        final = len({line.get("shard") for line in journal.lines()})
        what = f"stopped; {final} of {len(made.shards)} shards are final on disk, and nothing is left to clean up"
        raise InterruptedRunError(what, where=str(out), fix="run the same command again to go on") from None
    except TensorError as error:
        raise _in_its_shard(error, made) from None
    except OSError as error:
        raise cannot_go_on(error, out) from None


def _in_its_shard(error: TensorError, made: Plan) -> TensorError:
    """Say which file holds a tensor that cannot be used."""
    linear = made.model.linears.get(error.where)
    if linear is None:
        return error
    shards = ", ".join(sorted({part.shard for part in linear.parts.values()}))
    fix = f"{error.fix}; download it again, then run the same command: finished shards are kept"
    return TensorError(error.what, where=f"{shards}: {error.where}", fix=fix)
