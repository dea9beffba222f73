"""How far a run is, from any terminal: the plan and the journal say it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.pipeline import FOLDER, JOURNAL, PLAN
from halfbyte.source.checkpoint import CONFIG
from halfbyte.write import Journal

_FEWEST_SAMPLES = 3  # before a rate is worth a promise


@dataclass(frozen=True, slots=True)
class Status:
    """Shards and bytes that are final; `eta_seconds` is None before three shards and after the last."""

    fingerprint: str
    recipe: str
    shards_done: int
    shards: int
    nbytes_done: int
    nbytes: int
    whole: bool
    eta_seconds: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for --json."""
        return asdict(self)


def read_status(out: Path) -> Status:
    """Read plan and journal of an output folder."""
    path = out / FOLDER / PLAN
    if not path.is_file():
        raise UsageError("no run was started in this folder", where=str(out), fix="give the OUT of `halfbyte quantize`")
    plan = json.loads(path.read_text(encoding="utf-8"))
    sizes: dict[str, int] = plan["shards"]
    lines = {str(line.get("shard")): line for line in Journal(out / FOLDER / JOURNAL).lines()}
    done = {name: line for name, line in lines.items() if name in sizes and (out / name).is_file()}
    nbytes_done, nbytes = sum(sizes[name] for name in done), sum(sizes.values())
    seconds = max((float(line.get("seconds", 0)) for line in done.values()), default=0.0)
    known = len(done) >= _FEWEST_SAMPLES and seconds > 0 and nbytes_done < nbytes
    return Status(
        fingerprint=plan["fingerprint"],
        recipe=plan["recipe"]["name"],
        shards_done=len(done),
        shards=len(sizes),
        nbytes_done=nbytes_done,
        nbytes=nbytes,
        whole=len(done) == len(sizes) and (out / CONFIG).is_file(),
        eta_seconds=(nbytes - nbytes_done) / (nbytes_done / seconds) if known else None,
    )
