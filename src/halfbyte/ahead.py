"""What a run reads of a source that is elsewhere: which shards for each of its own, in its order, and until when.

A step is a shard of the output, or what one layer has in it where a run goes layer by layer. The shards of the source
that it is made of are fetched ahead of it, and may go when it is written. With room for them they stay until that shard
is in the journal: whatever ends the run after that, they are not needed again.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from halfbyte.errors import UsageError
from halfbyte.folders import alone_fetching, nearest, refuse_full
from halfbyte.json_file import json_object
from halfbyte.plan.manifest import Plan
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.remote.download import PARTS
from halfbyte.source.remote.patience import Tell
from halfbyte.source.remote.shelf import Step, Steps
from halfbyte.source.remote.tasks import sweep
from halfbyte.terminal.units import size
from halfbyte.write import write_whole

FETCHED = "fetched.json"  # below halfbyte/, or in statistics: the address and the version that they are made from
_BEGIN: Step = ("", None)  # a step before all others: the embedding, which a calibrating run reads first


class Ahead:
    """Fetches what a run reads before it does; nothing to do for a source that lies in a folder."""

    def __init__(
        self, checkpoint: Checkpoint, steps: Steps, step_of: Mapping[str, Step], *, fetches: bool = True
    ) -> None:
        self._shelf, self._fetches = checkpoint.remote, fetches
        self._steps, self._step_of = steps, step_of
        self._unwritten = Counter(step_of.values())
        if self._shelf is not None:
            _refuse_small_cache(checkpoint, steps, self._shelf.limit_nbytes)
        self._sizes = checkpoint.shards
        self._lock = threading.Lock()
        self._held = ExitStack()

    @classmethod
    def of_run(cls, made: Plan, finished: Collection[str], *, by_layer: bool, measures: bool) -> Ahead:
        """Go ahead of a run that makes the shards of a plan which are not finished."""
        if made.checkpoint.remote is None:
            return cls(made.checkpoint, [], {})
        step_of = _step_of(made, by_layer=by_layer)
        steps = _steps(made, step_of, finished)
        if measures and steps:
            first = {source.shard for job in made.jobs if job.role == "embed" for source in job.sources}
            steps = [(_BEGIN, frozenset(first)), *steps]
        return cls(made.checkpoint, steps, step_of)

    @classmethod
    def of_others(cls, made: Plan, finished: Collection[str]) -> Ahead:
        """Fetch nothing, because others do; refuse a cache that is too small for any of them."""
        cls.of_run(made, finished, by_layer=False, measures=False)
        return cls(made.checkpoint, [], {}, fetches=False)

    @classmethod
    def of_layers(cls, checkpoint: Checkpoint, shards: Sequence[Collection[str]], embedding: str, first: int) -> Ahead:
        """Go ahead of a calibration, from the first layer that is not measured; `shards` are those of each layer."""
        steps: Steps = [(("", layer), frozenset(shards[layer])) for layer in range(first, len(shards))]
        if first == 0:
            steps = [(_BEGIN, frozenset({embedding})), *steps]
        return cls(checkpoint, steps, {})

    @property
    def largest_nbytes(self) -> int:
        """Return how much must be here at once, for the step that reads most."""
        return max((_nbytes(shards, self._sizes) for _, shards in self._steps), default=0)

    def __enter__(self) -> Ahead:
        if self._shelf is not None:
            self._held.enter_context(alone_fetching(self._shelf.folder / PARTS))
            sweep(self._shelf.folder)
            if not self._fetches:  # others do, each into a folder of its own: these shards would only take their room
                self._shelf.forget()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shelf is not None:
            self._shelf.close(used_up=kind is None)
        self._held.close()

    def refuse_full(self, out: Path, needed: int, reclaimed: int) -> None:
        """Refuse disks without room for so many bytes of output, and for the shards that will be here at once."""
        if self._shelf is None:
            return refuse_full(out, needed, reclaimed)
        room = min(self._shelf.limit_nbytes, _nbytes(_all(self._steps), self._sizes))
        room = max(room - self._shelf.left_nbytes(), 0)
        one_disk = nearest(out).stat().st_dev == self._shelf.folder.stat().st_dev
        refuse_full(out, needed + room * one_disk, reclaimed)
        return None if one_disk else refuse_full(self._shelf.folder, room, what_for="the cache (--cache, --cache-dir)")

    def stop(self) -> None:
        """Let nobody wait any more for a shard that is fetched."""
        if self._shelf is not None:
            self._shelf.stop()

    def wait(self) -> None:
        """Do nothing: what was not read yet is not needed any more."""

    def begin(self, finished: Mapping[str, str], tell: Tell) -> None:
        """Begin to fetch; what is finished is in no step."""
        if self._shelf is None or not self._steps:
            return
        shards, peak = _all(self._steps), _peak_nbytes(self._steps, self._sizes)
        nbytes = _nbytes(shards, self._sizes)
        unproven = len(shards) - self._shelf.known(sorted(shards))
        tell(f"fetching {len(shards)} shards, {size(nbytes)}, from {self._shelf.files.where}")
        if unproven:
            tell(f"of {unproven} of them no checksum is known: only their sizes are compared")
        if peak > self._shelf.limit_nbytes:
            tell(f"some will be fetched more than once; --cache {-(-peak // 10**9)}GB fetches each once")
        self._shelf.expect(self._steps, tell)

    def written(self, tensor: str) -> None:
        """Note that a tensor of the output is written."""
        if self._shelf is None:
            return
        step = self._step_of.get(tensor)
        if step is None:
            return  # others fetch
        with self._lock:
            self._unwritten[step] -= 1
            last = self._unwritten[step] == 0
        if last:
            self._shelf.used(_BEGIN)
            self._shelf.used(step)

    def final(self, shard: str) -> None:
        """Note that a shard of the output is final."""
        if self._shelf is not None:
            for step, _ in self._steps:
                if step == _BEGIN or step[0] == shard:
                    self._shelf.finished(step)

    def measured(self, layers: Collection[int]) -> None:
        """Note of which layers the statistics are kept."""
        if self._shelf is not None and layers:
            for step in (_BEGIN, *(("", layer) for layer in layers)):
                self._shelf.finished(step)


def _step_of(made: Plan, *, by_layer: bool) -> dict[str, Step]:
    """Return the step in which each tensor of the output is made.

    Without data a run goes through each shard in the order of the file: small tensors of all its layers come first.
    """
    layers = {output.name: job.layer for job in made.jobs for output in job.outputs if by_layer}
    return {tensor.name: (shard.name, layers.get(tensor.name)) for shard in made.shards for tensor in shard.tensors}


def _steps(made: Plan, step_of: Mapping[str, Step], finished: Collection[str]) -> Steps:
    """Return which shards of the source each step reads, in the order in which they are made."""
    order = {shard.name: number for number, shard in enumerate(made.shards)}
    read: dict[Step, set[str]] = {}
    for job in made.jobs:
        for step in {step_of[output.name] for output in job.outputs}:
            if step[0] not in finished:
                read.setdefault(step, set()).update(made.source_shards(job))
    outside = 1 + max((layer for _, layer in read if layer is not None), default=0)  # what is in no layer comes last
    ordered = sorted(read, key=lambda step: (order[step[0]], outside if step[1] is None else step[1]))
    return [(step, frozenset(read[step])) for step in ordered if read[step]]


def _all(steps: Steps) -> set[str]:
    return {shard for _, shards in steps for shard in shards}


def _nbytes(shards: Collection[str], sizes: Mapping[str, int]) -> int:
    return sum(sizes[shard] for shard in shards)


def _refuse_small_cache(checkpoint: Checkpoint, steps: Steps, limit: int) -> None:
    """What is read for one step must fit at once."""
    sizes = {step: _nbytes(shards, checkpoint.shards) for step, shards in steps}
    needed = max(sizes.values(), default=0)
    if needed <= limit:
        return
    shards = dict(steps)[max(sizes, key=lambda step: sizes[step])]
    what = f"{len(shards)} shards of the source are needed at once" if len(shards) > 1 else f"'{min(shards)}' is needed"
    what += f", {size(needed)}, and the cache may hold {size(limit)}"
    fix = f"give --cache {-(-needed // 10**6)}MB or more"
    fix += ", or make smaller shards (--set shards=layers)" if len(shards) > 1 else ""
    raise UsageError(what, where="--cache", fix=fix)


def _peak_nbytes(steps: Steps, sizes: Mapping[str, int]) -> int:
    """Return how large the cache must be if each shard shall come once: it stays from its first use to its last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, (_, shards) in enumerate(steps):
        for shard in shards:
            first.setdefault(shard, number)
            last[shard] = number
    return max(
        (sum(sizes[s] for s in first if first[s] <= number <= last[s]) for number in range(len(steps))), default=0
    )


def write_origin(folder: Path, checkpoint: Checkpoint) -> None:
    """Note in a folder which version of which address its contents are made from."""
    if checkpoint.remote is not None:
        files = checkpoint.remote.files
        record = {"address": files.where, "label": files.label, "version": files.pin}
        write_whole(folder / FETCHED, (json.dumps(record, indent=1) + "\n").encode())


def begun_version(folder: Path, address: str) -> str | None:
    """Return the version that a folder was begun from, if it was from this very address: a branch may have moved."""
    record = json_object(folder / FETCHED)
    return str(record["version"]) if record.get("address") == address and "version" in record else None


def refuse_other_version(folder: Path, checkpoint: Checkpoint) -> None:
    """Two versions of one source never make one output."""
    record = json_object(folder / FETCHED)
    if checkpoint.remote is None or record.get("label") != checkpoint.remote.files.label:
        return
    begun, now = str(record.get("version")), checkpoint.remote.files.pin
    if begun != now:
        what = f"this folder was begun from version {begun[:12]} of the source, which is {now[:12]} now"
        fix = "give another output folder, or the version that this one was begun from"
        raise UsageError(what, where=str(folder), fix=fix)
