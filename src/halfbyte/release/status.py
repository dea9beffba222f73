"""Report the progress of a run from its plan and journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.folder import CONFIG
from halfbyte.checkpoint.output_folder import FOLDER, PLAN, read_plan
from halfbyte.engine.pipeline import JOURNAL
from halfbyte.errors import UsageError
from halfbyte.release.record import read_records, read_release

_MOST = 2**63  # bytes or seconds
_FEWEST_SAMPLES = 3  # required for an ETA


@dataclass(frozen=True, slots=True)
class Status:
    """Finished shards and bytes; `eta_seconds` is None before the third shard and after the last."""

    fingerprint: str
    recipe: str
    shards_done: int
    shards: int
    nbytes_done: int
    nbytes: int
    whole: bool
    eta_seconds: float | None
    stages: Mapping[str, str]  # of a release: the state of each recorded stage
    verdict: str | None  # of a release

    def as_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints."""
        return asdict(self)


def read_status(out: Path) -> Status:
    """Read the plan and journal of an output folder, and the stages of its release."""
    path = out / FOLDER / PLAN
    if not path.is_file():
        raise UsageError(
            "no run was started in this folder",
            where=str(out),
            fix="use the OUT folder of `halfbyte quantize` or `halfbyte prune`",
        )
    plan = read_plan(out)
    sizes: dict[str, int] = plan["shards"]
    lines = {str(line.get("shard")): line for line in Journal(out / FOLDER / JOURNAL).lines()}
    done = {name: line for name, line in lines.items() if name in sizes and (out / name).is_file()}
    nbytes_done, nbytes = sum(sizes[name] for name in done), sum(sizes.values())
    rate = _rate(list(done.values())) if nbytes_done < nbytes else None
    release = read_release(out)
    return Status(
        fingerprint=plan["fingerprint"],
        recipe=plan["recipe"]["name"],
        shards_done=len(done),
        shards=len(sizes),
        nbytes_done=nbytes_done,
        nbytes=nbytes,
        whole=len(done) == len(sizes) and (out / CONFIG).is_file(),
        eta_seconds=(nbytes - nbytes_done) / rate if rate else None,
        stages={name: str(record.state) for name, record in read_records(out).items()},
        verdict=release.verdict if release else None,
    )


def _rate(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the bytes per second of the latest run. Every run counts seconds from 0, so a decrease marks a new run."""
    run: list[Mapping[str, Any]] = []
    for line in lines:
        if run and _number(line, "seconds") < _number(run[-1], "seconds"):
            run = []
        run.append(line)
    seconds = _number(run[-1], "seconds") if run else 0
    known = len(run) >= _FEWEST_SAMPLES and seconds > 0
    return sum(_number(line, "nbytes") for line in run) / seconds if known else None


def _number(line: Mapping[str, Any], key: str) -> float:
    """Return a number of a journal line; 0 if it is invalid."""
    value = line.get(key, 0)
    return value if type(value) in (int, float) and 0 <= value < _MOST else 0
