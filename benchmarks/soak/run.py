"""`make soak`: release a small model again and again, and see whether memory, descriptors and files stay flat.

    python benchmarks/soak/run.py --minutes 60 [--machine xeon-2core]

Ends after so many minutes, or with Ctrl-C, with a verdict either way: exit code 1 if something grew or a round failed.
Writes benchmarks/results/soak_<machine>_<yyyymm>.json (-o FILE for another one).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from census import take_census, under_keeper
from verdict import MEGABYTE, MEMORY_BOUND_MB, WARM_UP, as_json, judge

RESULTS = Path(__file__).resolve().parents[1] / "results"
SAY_EVERY_S = 20.0
MARKS = {"good": "✓", "bad": "✗", "open": "!"}


@dataclass
class Soak:
    """Rounds until the time is over, and the counts after each."""

    seconds: float
    folders: Mapping[str, Path]
    keeper: int | None = None
    rounds: int | None = None  # end after so many, however much time is left
    series: dict[str, list[int]] = field(default_factory=dict)
    did: dict[str, int] = field(default_factory=dict)
    ended: str = "its time"
    _begin: float = field(default_factory=time.monotonic)
    _said: float = 0.0

    def run(self, one_round: Callable[[int], list[str]]) -> None:
        """Run rounds; Ctrl-C stops after the current one."""
        try:
            while self.elapsed < self.seconds and self.count != self.rounds:
                for name in one_round(self.count):
                    self.did[name] = self.did.get(name, 0) + 1
                for name, count in take_census(self.folders, self.keeper).items():
                    self.series.setdefault(name, []).append(count)
                self._say()
        except KeyboardInterrupt:
            self.ended = "Ctrl-C"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    @property
    def count(self) -> int:
        return len(next(iter(self.series.values()), []))

    def _say(self) -> None:
        """Say how far it is: on a terminal after each round, elsewhere from time to time."""
        now, shown = time.monotonic(), sys.stderr.isatty()
        if not shown and now - self._said < SAY_EVERY_S:
            return
        self._said = now
        left, rate = max(0.0, self.seconds - self.elapsed), 60 * self.count / self.elapsed
        last = {name: counts[-1] for name, counts in self.series.items()}
        line = (
            f"round {self.count}  {self.elapsed / 60:.1f} of {self.seconds / 60:g} min  {rate:.1f} rounds/min  "
            f"{left / 60:.1f} min left  {last['rss'] / MEGABYTE:,.0f} MB  {last['descriptors']} descriptors  "
            f"{last['threads']} threads  {last['children'] + last['orphans']} processes"
        )
        print(f"\r\x1b[K{line}" if shown else line, end="" if shown else "\n", file=sys.stderr, flush=True)

    def result(self) -> dict[str, object]:
        """Return all of it for a file."""
        return {
            "command": " ".join(["python", "benchmarks/soak/run.py", *sys.argv[1:]]),
            "date": f"{datetime.datetime.now(tz=datetime.timezone.utc):%Y-%m-%d}",
            "python": platform.python_version(),
            "rounds": self.count,
            "seconds": round(self.elapsed, 1),
            "ended": self.ended,
            "did": self.did,
            "warm_up": WARM_UP,
            "memory_bound_mb_per_100_rounds": MEMORY_BOUND_MB,
            "findings": as_json(judge(self.series)) if self.series else [],
            "series": self.series,
        }


def show_verdict(result: Mapping[str, object]) -> int:
    """Print the result; return the exit code."""
    minutes = float(str(result["seconds"])) / 60
    print(f"\n{result['rounds']} rounds in {minutes:.1f} min, ended by {result['ended']}: {result['did']}")
    bad = 0 if result["rounds"] else 1
    findings = result["findings"]
    assert isinstance(findings, list)
    for finding in findings:
        print(f"{MARKS[finding['level']]} {finding['sentence']}")
        bad += finding["level"] == "bad"
    return 1 if bad else 0


def own_folders(root: Path) -> dict[str, Path]:
    """Make the folders whose files are counted, and let everything that is started use them."""
    folders = {"temp_files": root / "tmp", "cache_files": root / "cache", "work_files": root / "work"}
    folders["temp_files"].mkdir()
    folders["cache_files"].mkdir()
    os.environ["TMPDIR"], os.environ["HALFBYTE_CACHE"] = map(str, (folders["temp_files"], folders["cache_files"]))
    tempfile.tempdir = None  # asked again, with the new TMPDIR
    return folders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    parser.add_argument("--typed-every", type=int, default=25, help="rounds from one `halfbyte release` to the next")
    parser.add_argument("--machine", default=platform.machine(), help="for the result's name")
    parser.add_argument("-o", "--output", type=Path, help="the result's file")
    given = parser.parse_args()
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)  # before any work
    today = datetime.datetime.now(tz=datetime.timezone.utc)
    output = given.output or RESULTS / f"soak_{given.machine}_{today:%Y%m}.json"
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: end with the verdict so far
    under_keeper()  # from here on we are its child
    with tempfile.TemporaryDirectory(prefix="halfbyte-soak-") as root:
        folders = own_folders(Path(root))
        from rounds import RoundFailedError, Rounds  # PyTorch: only after the folders are ours

        soak = Soak(60 * given.minutes, folders, os.getppid(), given.rounds)
        failed = None
        try:
            soak.run(Rounds(Path(root), typed_every=given.typed_every))
        except RoundFailedError as error:
            soak.ended, failed = "a failed round", error
        result = soak.result()
        output.write_text(json.dumps(result) + "\n", encoding="utf-8")
        code = show_verdict(result)
        if failed is not None:
            print(f"✗ round {soak.count}: {failed}", file=sys.stderr)
        return 1 if failed is not None else code


if __name__ == "__main__":
    sys.exit(main())
