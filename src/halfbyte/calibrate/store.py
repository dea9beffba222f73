"""Folder with the statistics of a calibration in progress, and the final statistics file.

calibration.json          description of the calibration; two calibrations never share a folder
layer-00007.safetensors   statistics of a layer, written atomically
hidden-00008.safetensors  hidden states before layer 8, to resume from; only the last are kept
hidden-00008-00002.safetensors  hidden states of one part of the rows, in multi-machine runs
stats.safetensors         all layers, written at the end; then the other files are removed

Unreadable files are treated as missing and measured again.

`Statistics` are those of a run: measured, or loaded from a file without torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from halfbyte.calibrate.stats import LayerStats
from halfbyte.checkpoint.atomic_write import PART, write_json, write_whole
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorSpec, lay_out
from halfbyte.checkpoint.identity import config_name, short_name
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.checkpoint.untrusted_files import parsed, read_json
from halfbyte.errors import MachineError, UsageError
from halfbyte.plan.prune_record import quantized_from
from halfbyte.recipe.decisions import InputScale

if TYPE_CHECKING:
    import torch

    from halfbyte.calibrate.stream import Calibration

ABOUT = "calibration.json"
STATS = "stats.safetensors"
MOST_NBYTES = 1 << 30  # size limit; statistics of 93 layers with 896 experts in ten domains have 87 MB
_METADATA = "halfbyte"
_SHA256 = "sha256"  # of the whole content
_MEASURE = "measure again: halfbyte calibrate SRC -r RECIPE -o STATS"
_HIDDEN = "hidden"
_LAYERS = "layers"
_UNREADABLE = (safetensors.SafetensorError, OSError, KeyError, ValueError)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """The state of a calibration before a run: the layers that earlier runs measured, and where to continue."""

    measured: Mapping[int, LayerStats]
    next_layer: int
    hidden: torch.Tensor | None = None  # before `next_layer`; None at layer 0, and if they stay on disk
    complete: bool = False  # whether the final statistics file exists


class Store:
    """Statistics of some layers in a folder; `about` describes the calibration.

    The number of layers is not part of `about`, so that statistics of all layers can be used for the first ones.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], layers: int) -> None:
        self.folder, self.about, self.layers = folder, dict(about), layers

    def check(self) -> None:
        """Raise UsageError if the folder belongs to another calibration."""
        path = self.folder / ABOUT
        if not path.exists():
            return
        try:
            stored: Any = read_json(path)
        except (OSError, ValueError):
            stored = None
        stored = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
        refuse_other(stored, self.about, str(self.folder))
        if stored.get(_LAYERS) != self.layers:
            what = f"this folder is for statistics of {stored.get(_LAYERS)} layers, but {self.layers} are requested"
            fix = "use another folder, or repeat the command that created this one"
            raise UsageError(what, where=str(self.folder), fix=fix)

    def begin(self) -> None:
        """Create the folder and remove partial files of an interrupted run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.check()  # again, because this run has exclusive access only now
        for stale in self.folder.glob(f"*{PART}"):
            stale.unlink()
        described = {**self.about, _LAYERS: self.layers}
        write_json(self.folder / ABOUT, described)

    def save(self, layer: int, stats: LayerStats) -> None:
        """Save a layer's statistics."""
        write_whole(self._layer(layer), safetensors.numpy.save(stats.tensors()))

    def load(self, layer: int) -> LayerStats | None:
        """Return a layer's statistics, or None if missing."""
        try:
            return LayerStats.of(safetensors.numpy.load(self._layer(layer).read_bytes()))
        except _UNREADABLE:
            return None

    def save_hidden(self, layer: int, hidden: torch.Tensor) -> None:
        """Save the hidden states before a layer and remove older ones."""
        path = self.hidden_file(layer)
        write_whole(path, *hidden_pieces(hidden, path.name))
        for older in self.folder.glob("hidden-*.safetensors"):
            if older != path:
                older.unlink()

    def missing_nbytes(self, hidden_nbytes: int) -> int:
        """Return the disk space still needed for hidden states; old ones are removed after new ones are written."""
        if self.is_whole:
            return 0
        there = sum(path.stat().st_size for path in self.folder.glob("hidden-*.safetensors"))
        return max(2 * hidden_nbytes - there, 0)

    @property
    def is_whole(self) -> bool:
        """Whether the final statistics file exists."""
        return (self.folder / STATS).exists()

    def resume(self, *, again: Collection[int] = (), load: bool = True) -> Resumed:
        """Return the state of the calibration; every backend continues from it.

        All layers from 0 on run again if one of `again` was measured already. Without `load`, hidden states stay on
        disk, where the nodes of a cluster read their parts.
        """
        complete = self.whole()
        if complete is not None and not again:
            return Resumed(complete, self.layers, complete=True)
        for layer in self.hidden_layers():
            hidden = self._hidden(layer) if load else None
            if hidden is None and (load or not self._has_hidden(layer)):
                continue
            loaded = {before: self.load(before) for before in range(layer)}
            measured = {before: stats for before, stats in loaded.items() if stats is not None}
            if len(measured) == layer:
                return Resumed({}, 0) if any(other < layer for other in again) else Resumed(measured, layer, hidden)
        return Resumed({}, 0)

    def _has_hidden(self, layer: int) -> bool:
        """Return whether the hidden states of all rows are on disk, in one file or in parts."""
        parts = [self.hidden_file(layer, part).is_file() for part in range(self.parts)]
        return self.hidden_file(layer).is_file() or (bool(parts) and all(parts))

    def _hidden(self, layer: int) -> torch.Tensor | None:
        """Return the hidden states of all rows, from one file or from parts."""
        hidden = load_hidden_file(self.hidden_file(layer))
        if hidden is not None:
            return hidden
        parts = [load_hidden_file(self.hidden_file(layer, part)) for part in range(self.parts)]
        available = [part for part in parts if part is not None]
        if not available or len(available) < len(parts):
            return None
        import torch  # noqa: PLC0415

        return torch.cat(available)

    @property
    def parts(self) -> int:
        """Return the number of parts that the rows are split into for multi-machine runs."""
        return -(-self.about["rows"][0] // self.about["sum_rows"]) if "sum_rows" in self.about else 0

    def hidden_file(self, layer: int, part: int | None = None) -> Path:
        """Return the path of the hidden states before a layer, of all rows or of one part."""
        return self.folder / f"hidden-{layer:05d}{'' if part is None else f'-{part:05d}'}.safetensors"

    def hidden_layers(self) -> list[int]:
        """Return the layers with saved hidden states, of all rows or some, last layer first."""
        names = (path.stem.split("-") for path in self.folder.glob("hidden-*.safetensors"))
        return sorted({int(words[1]) for words in names if words[1].isdecimal()}, reverse=True)

    def finish(self) -> None:
        """Write one file with all layers and remove the intermediate files."""
        tensors: dict[str, NDArray[Any]] = {}
        for layer in range(self.layers):
            stats = self.load(layer)
            if stats is None:
                fix = "check the disk, then run the same command again"
                what = "a layer's statistics cannot be read back"
                raise MachineError(what, where=str(self._layer(layer)), fix=fix)
            tensors |= {f"layers.{layer}.{name}": array for name, array in stats.tensors().items()}
        # One metadata key, because safetensors writes several in arbitrary order and the bytes must be reproducible.
        metadata = json.dumps({**self.about, _SHA256: stats_sha256(self.about, tensors)})
        write_whole(self.folder / STATS, safetensors.numpy.save(tensors, {_METADATA: metadata}))
        self._tidy()

    def whole(self) -> dict[int, LayerStats] | None:
        """Return all layers from the final file, or None if it is missing or incomplete."""
        try:
            stats = read_stats(self.folder)[1]
        except (UsageError, OSError):
            return None
        if not all(layer in stats for layer in range(self.layers)):
            return None
        self._tidy()  # the run may have been killed before this step
        return {layer: stats[layer] for layer in range(self.layers)}

    def _tidy(self) -> None:
        for part in (*self.folder.glob("layer-*.safetensors"), *self.folder.glob("hidden-*.safetensors")):
            part.unlink()

    def _layer(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:05d}.safetensors"


def hidden_pieces(hidden: torch.Tensor, name: str) -> tuple[bytes, memoryview]:
    """Return the header and the data of a file of hidden states.

    safetensors' own writer reports a full disk only as text and cannot write data without copying it.
    """
    import torch  # noqa: PLC0415 - not needed for reading statistics

    dtype = {torch.bfloat16: "BF16", torch.float32: "F32"}[hidden.dtype]
    head, _ = lay_out([TensorSpec(_HIDDEN, dtype, tuple(hidden.shape))], name)
    return head, hidden.contiguous().view(-1).view(torch.uint8).numpy().data


def load_hidden_file(path: Path, rows: slice = slice(None)) -> torch.Tensor | None:
    """Return the hidden states of some rows; None if the file is missing or incomplete."""
    try:
        with cast("Any", safetensors).safe_open(path, "pt") as opened:
            return opened.get_slice(_HIDDEN)[rows]
    except _UNREADABLE:
        return None


def stats_file(path: Path) -> Path:
    """Return the path of the statistics file from the file or its folder."""
    return path / STATS if path.is_dir() else path


def read_stats(path: Path) -> tuple[dict[str, Any], dict[int, LayerStats]]:
    """Read final statistics from their file or its folder; return their description and the statistics by layer."""
    file = stats_file(path)
    if not file.is_file():
        unfinished = (path / ABOUT).exists()
        fix = "repeat the `halfbyte calibrate` command to finish them" if unfinished else "pass the OUT of `calibrate`"
        raise UsageError("no finished statistics found", where=str(path), fix=fix)
    if file.stat().st_size > MOST_NBYTES:  # the file is read into memory
        what = f"not a statistics file: larger than {MOST_NBYTES >> 20:,} MiB"
        raise UsageError(what, where=str(file), fix="pass the OUT of `halfbyte calibrate`")
    try:
        with cast("Any", safetensors).safe_open(file, "np") as opened:
            about = parsed(cast("dict[str, str]", opened.metadata() or {})[_METADATA], finite=True)
            digest = about.pop(_SHA256, None)
            tensors: dict[str, NDArray[Any]] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        _refuse_damaged(digest, about, tensors, str(file))
        _check_description(about)
        by_layer: dict[int, dict[str, NDArray[Any]]] = {}
        for name, array in tensors.items():
            _, layer, rest = name.split(".", 2)
            by_layer.setdefault(int(layer), {})[rest] = array
        return about, {layer: LayerStats.of(arrays) for layer, arrays in sorted(by_layer.items())}
    except (safetensors.SafetensorError, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        what = f"not a statistics file: {error}"
        raise UsageError(what, where=str(file), fix="pass the OUT of `halfbyte calibrate`") from None


def stats_sha256(about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of the description and of every array's name, dtype, shape and values."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _check_description(about: Mapping[str, Any]) -> None:
    """Raise ValueError if keys have the wrong type; keys missing in earlier versions are reported elsewhere."""
    for key, kind in (("source", str), ("config", str), ("domains", dict)):
        if not isinstance(about.get(key, kind()), kind):
            raise ValueError(f"'{key}' is damaged")
    if "domains" not in about:
        raise ValueError("'domains' is missing")


def _refuse_damaged(
    digest: str | None, about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], where: str
) -> None:
    """Raise UsageError for a missing or wrong checksum or impossible values, which would give wrong scales."""
    if digest is None:
        what = "these statistics have no checksum: written by an earlier version or another program"
        raise UsageError(what, where=where, fix=_MEASURE)
    if digest != stats_sha256(about, tensors):
        raise UsageError("these statistics are damaged: checksum mismatch", where=where, fix=_MEASURE)
    for name, array in tensors.items():
        if not (np.isfinite(array) & (array >= 0)).all():  # counts, norms and largest absolute values
            raise UsageError(f"these statistics have impossible values in {name}", where=where, fix=_MEASURE)


def refuse_other(stored: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    """Raise UsageError naming the differing keys if statistics are of another calibration."""
    different = [name for name in expected if stored.get(name) != expected[name]]
    if different:
        differ = f"{', '.join(different)} differ{'s' if len(different) == 1 else ''}"
        what = f"this folder belongs to another calibration: {differ}"
        raise UsageError(what, where=where, fix="use another folder, or repeat the command that created this one")


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Statistics by layer and their description; runs with equal `about` give equal bytes."""

    about: Mapping[str, Any]
    file: bytes | None  # the statistics file, if loaded from one, to be copied into the output folder
    layers: Callable[[CachingReader, int | None, Say, Collection[int]], Iterator[tuple[int, LayerStats]]]
    calibration: Calibration | None = None  # set together with `store` if the statistics are measured in this run
    store: Store | None = None

    @property
    def missing_nbytes(self) -> int:
        """Return the disk space that measuring needs in addition to the statistics themselves."""
        if self.calibration is None or self.store is None:
            return 0
        return self.store.missing_nbytes(self.calibration.hidden_nbytes)


def loaded_statistics(
    path: Path,
    checkpoint: Checkpoint,
    weights: Mapping[str, str],
    layers: int,
    rule: InputScale | None = None,
    *,
    choosing: bool = False,
) -> Statistics:
    """Load statistics from a file; raise UsageError if they are of another model or insufficient for the recipe's rule.

    For choosing experts only, statistics of the checkpoint that this one was quantized from are accepted too.
    """
    about, stats = read_stats(path)
    names = {short_name(weights), quantized_from(checkpoint) if choosing else None} - {None}
    _refuse_other_model(about, checkpoint, names, choosing=choosing, where=str(path))
    missing = [layer for layer in range(layers) if layer not in stats]
    if missing:
        raise UsageError(f"these statistics lack layer {missing[0]}", where=str(path), fix="measure all layers")
    _refuse_unmeasured(stats, rule, str(path))

    def run(
        _reader: CachingReader, _threads: int | None, _say: Say, _unwritten: Collection[int]
    ) -> Iterator[tuple[int, LayerStats]]:
        yield from ((layer, stats[layer]) for layer in range(layers))

    return Statistics(about, stats_file(path).read_bytes(), run)


def _refuse_other_model(
    about: Mapping[str, Any], checkpoint: Checkpoint, names: Collection[str | None], *, choosing: bool, where: str
) -> None:
    """Raise UsageError unless the weights and config.json match, since both determine the activations."""
    measure = "halfbyte calibrate SRC -r RECIPE -o STATS"
    if about.get("source") not in names:
        what, fix = "these statistics were measured on other weights", f"measure this checkpoint: {measure}"
        if choosing:
            fix += "; or, for the same model in another format, create a plan there (halfbyte prune -o FILE)"
            fix += " and apply it here: --plan FILE"
    elif "config" not in about:
        what = "these statistics, written by an earlier version, do not identify their config.json"
        fix = f"measure again: {measure}"
    elif about["config"] != config_name(checkpoint.config):
        what = "these statistics were measured with another config.json"
        fix = f"restore that config.json, or measure again: {measure}"
    else:
        return
    raise UsageError(what, where=where, fix=fix)


def _refuse_unmeasured(layers: Mapping[int, LayerStats], rule: InputScale | None, where: str) -> None:
    """Raise UsageError if the all_experts backstop needs values that were not measured."""
    if rule is None or rule.backstop != "all_experts":
        return
    for layer, stats in layers.items():
        experts = stats.experts
        if experts is not None and ((experts.seen < (rule.min_tokens or 0)) & (experts.all_down_amax == 0)).any():
            what = f"these statistics lack the all-token values of experts in layer {layer} for backstop all_experts"
            fix = f"measure with backstop all_experts and min_tokens {rule.min_tokens} or more"
            raise UsageError(what, where=where, fix=fix)
