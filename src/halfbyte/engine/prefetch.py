"""Prefetch the shards of a remote source into a bounded cache, in the order in which a run reads them.

A step is one output shard, or one layer's part of it in a layer-by-layer run. The source shards of a step are fetched
before it starts and may be evicted once it is written. If there is space they stay until the output shard is in the
journal, so that a resumed run does not fetch them again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from halfbyte.checkpoint.atomic_write import write_json
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.output_folder import locked_cache, nearest, refuse_full
from halfbyte.checkpoint.remote.download import PARTS, Tell
from halfbyte.checkpoint.remote.shard_cache import Step, Steps, sweep
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan
from halfbyte.ui.units import size

FETCHED = "fetched.json"  # in halfbyte/ or a statistics folder: address and version of the source
_EMBEDDING: Step = ("", None)  # first step of a calibrating run: the embedding


class Prefetcher:
    """Prefetches the source shards of a run; does nothing for a local source."""

    def __init__(
        self, checkpoint: Checkpoint, steps: Steps, step_of: Mapping[str, Step], *, fetches: bool = True
    ) -> None:
        self._cache, self._fetches = checkpoint.remote, fetches
        self._steps, self._step_of = steps, step_of
        self._unwritten = Counter(step_of.values())
        if self._cache is not None:
            _refuse_small_cache(checkpoint, steps, self._cache.limit_nbytes)
        self._sizes = checkpoint.shards
        self._lock = threading.Lock()
        self._locks = ExitStack()

    @classmethod
    def of_run(cls, plan: Plan, finished: Collection[str], *, by_layer: bool, measures: bool) -> Prefetcher:
        """Return the prefetcher of a run that writes the unfinished shards of a plan."""
        if plan.checkpoint.remote is None:
            return cls(plan.checkpoint, [], {})
        step_of = _step_of(plan, by_layer=by_layer)
        steps = _steps(plan, step_of, finished)
        if measures and steps:
            first = {source.shard for job in plan.jobs if job.role == "embed" for source in job.sources}
            steps = [(_EMBEDDING, frozenset(first)), *steps]
        return cls(plan.checkpoint, steps, step_of)

    @classmethod
    def of_workers(cls, plan: Plan, finished: Collection[str]) -> Prefetcher:
        """Return a prefetcher that fetches nothing, because Ray workers do; raise if the cache is too small for one."""
        cls.of_run(plan, finished, by_layer=False, measures=False)
        return cls(plan.checkpoint, [], {}, fetches=False)

    @classmethod
    def of_layers(
        cls, checkpoint: Checkpoint, shards: Sequence[Collection[str]], embedding: str, first: int
    ) -> Prefetcher:
        """Return the prefetcher of a calibration that starts at layer `first`; `shards` are those of each layer."""
        steps: Steps = [(("", layer), frozenset(shards[layer])) for layer in range(first, len(shards))]
        if first == 0:
            steps = [(_EMBEDDING, frozenset({embedding})), *steps]
        return cls(checkpoint, steps, {})

    @property
    def largest_nbytes(self) -> int:
        """Return the source bytes of the largest step, which the cache must hold at once."""
        return max((_nbytes(shards, self._sizes) for _, shards in self._steps), default=0)

    def __enter__(self) -> Prefetcher:
        if self._cache is not None:
            self._locks.enter_context(locked_cache(self._cache.folder / PARTS))
            sweep(self._cache.folder)
            if not self._fetches:  # workers fetch into their own folders and need the space
                self._cache.forget()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cache is not None:
            self._cache.close(used_up=kind is None)
        self._locks.close()

    def refuse_full(self, out: Path, needed: int, reclaimed: int) -> None:
        """Raise if the disks lack space for `needed` bytes of output and for the cache."""
        if self._cache is None:
            return refuse_full(out, needed, reclaimed)
        cached = min(self._cache.limit_nbytes, _nbytes(_all(self._steps), self._sizes))
        cached = max(cached - self._cache.left_nbytes(), 0)
        one_disk = nearest(out).stat().st_dev == self._cache.folder.stat().st_dev
        refuse_full(out, needed + cached * one_disk, reclaimed)
        return (
            None if one_disk else refuse_full(self._cache.folder, cached, what_for="the cache (--cache, --cache-dir)")
        )

    def stop(self) -> None:
        """Release the threads that wait for a shard."""
        if self._cache is not None:
            self._cache.stop()

    def wait(self) -> None:
        """Do nothing: unread shards are not needed after the run."""

    def begin(self, finished: Mapping[str, str], tell: Tell) -> None:
        """Start fetching. Finished shards have no steps."""
        if self._cache is None or not self._steps:
            return
        shards, peak = _all(self._steps), _peak_nbytes(self._steps, self._sizes)
        nbytes = _nbytes(shards, self._sizes)
        unverified = len(shards) - self._cache.known(sorted(shards))
        tell(f"fetching {len(shards)} shards, {size(nbytes)}, from {self._cache.files.where}")
        if unverified:
            tell(f"no known checksum for {unverified} of them: only their sizes are compared")
        if peak > self._cache.limit_nbytes:
            tell(f"some will be fetched more than once; use --cache {-(-peak // 10**9)}GB to fetch each once")
        self._cache.expect(self._steps, tell)

    def written(self, tensor: str) -> None:
        """Note that a tensor of the output is written."""
        if self._cache is None:
            return
        step = self._step_of.get(tensor)
        if step is None:
            return  # Ray workers fetch
        with self._lock:
            self._unwritten[step] -= 1
            last = self._unwritten[step] == 0
        if last:
            self._cache.used(_EMBEDDING)
            self._cache.used(step)

    def final(self, shard: str) -> None:
        """Note that a shard of the output is final."""
        if self._cache is not None:
            for step, _ in self._steps:
                if step == _EMBEDDING or step[0] == shard:
                    self._cache.finished(step)

    def measured(self, layers: Collection[int]) -> None:
        """Note that the statistics of these layers are saved."""
        if self._cache is not None and layers:
            for step in (_EMBEDDING, *(("", layer) for layer in layers)):
                self._cache.finished(step)


def _step_of(plan: Plan, *, by_layer: bool) -> dict[str, Step]:
    """Return the step that writes each output tensor.

    Without calibration data a run writes each shard in file order, starting with small tensors of all its layers.
    """
    layers = {output.name: job.layer for job in plan.jobs for output in job.outputs if by_layer}
    return {tensor.name: (shard.name, layers.get(tensor.name)) for shard in plan.shards for tensor in shard.tensors}


def _steps(plan: Plan, step_of: Mapping[str, Step], finished: Collection[str]) -> Steps:
    """Return the source shards of each step, in the order of the run."""
    order = {shard.name: number for number, shard in enumerate(plan.shards)}
    read: dict[Step, set[str]] = {}
    for job in plan.jobs:
        for step in {step_of[output.name] for output in job.outputs}:
            if step[0] not in finished:
                read.setdefault(step, set()).update(plan.source_shards(job))
    outside = 1 + max((layer for _, layer in read if layer is not None), default=0)  # sorts after all layers
    ordered = sorted(read, key=lambda step: (order[step[0]], outside if step[1] is None else step[1]))
    return [(step, frozenset(read[step])) for step in ordered if read[step]]


def _all(steps: Steps) -> set[str]:
    return {shard for _, shards in steps for shard in shards}


def _nbytes(shards: Collection[str], sizes: Mapping[str, int]) -> int:
    return sum(sizes[shard] for shard in shards)


def _refuse_small_cache(checkpoint: Checkpoint, steps: Steps, limit: int) -> None:
    """Raise if the source shards of one step exceed the cache limit."""
    sizes = {step: _nbytes(shards, checkpoint.shards) for step, shards in steps}
    needed = max(sizes.values(), default=0)
    if needed <= limit:
        return
    shards = dict(steps)[max(sizes, key=lambda step: sizes[step])]
    what = f"{len(shards)} shards of the source are needed at once" if len(shards) > 1 else f"'{min(shards)}' is needed"
    what += f", {size(needed)}, but the cache limit is {size(limit)}"
    fix = f"use --cache {-(-needed // 10**6)}MB or more"
    fix += ", or smaller shards (--set shards=layers)" if len(shards) > 1 else ""
    raise UsageError(what, where="--cache", fix=fix)


def _peak_nbytes(steps: Steps, sizes: Mapping[str, int]) -> int:
    """Return the cache size that fetches each shard once: a shard stays from its first to its last use."""
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
    """Record the address and version of a remote source in a folder."""
    if checkpoint.remote is not None:
        files = checkpoint.remote.files
        record = {"address": files.where, "label": files.label, "version": files.pin}
        write_json(folder / FETCHED, record)


def recorded_version(folder: Path, address: str) -> str | None:
    """Return the version recorded in a folder for this address, because a branch may have moved since."""
    record = json_object(folder / FETCHED)
    return str(record["version"]) if record.get("address") == address and "version" in record else None


def refuse_other_version(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise if the folder was started from another version of the source."""
    record = json_object(folder / FETCHED)
    if checkpoint.remote is None or record.get("label") != checkpoint.remote.files.label:
        return
    recorded, current = str(record.get("version")), checkpoint.remote.files.pin
    if recorded != current:
        what = f"this folder was started from version {recorded[:12]} of the source, which is now {current[:12]}"
        fix = "use another output folder, or the original version of the source"
        raise UsageError(what, where=str(folder), fix=fix)
