"""A folder of statistics while they are made, and the file that they become.

calibration.json          what is measured on what, in how many layers: two calibrations never share a folder
layer-00007.safetensors   a layer's statistics, whole as soon as it exists
hidden-00008.safetensors  hidden states before layer 8, where a killed run goes on; only the last is kept
hidden-00008-00002.safetensors  those of one part of the rows, where machines share them
stats.safetensors         all layers, at the end; then the rest goes

A file that cannot be read counts as one that is not there: what it held is measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import MachineError, UsageError
from halfbyte.source.foreign import parsed, read_json
from halfbyte.source.headers import TensorSpec, lay_out
from halfbyte.write import PART, write_whole

if TYPE_CHECKING:
    import torch

ABOUT = "calibration.json"
STATS = "stats.safetensors"
MOST_NBYTES = 1 << 30  # of all statistics; those of 93 layers with 896 experts in ten domains have 87 MB
_METADATA = "halfbyte"
_SHA256 = "sha256"  # of all that the file says
_MEASURE = "measure again: halfbyte calibrate SRC -r RECIPE -o STATS"
_HIDDEN = "hidden"
_LAYERS = "layers"
_UNREADABLE = (safetensors.SafetensorError, OSError, KeyError, ValueError)


class Store:
    """Statistics of so many layers in a folder; `about` says what they are of.

    How many layers there are is no part of `about`: those of all layers serve whoever needs the first.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], layers: int) -> None:
        self.folder, self.about, self.layers = folder, dict(about), layers

    def check(self) -> None:
        """Refuse a folder in which something else was measured."""
        path = self.folder / ABOUT
        if not path.exists():
            return
        try:
            found: Any = read_json(path)
        except (OSError, ValueError):
            found = None
        found = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        refuse_other(found, self.about, str(self.folder))
        if found.get(_LAYERS) != self.layers:
            what = f"this folder is for statistics of {found.get(_LAYERS)} layers, and {self.layers} are asked for"
            fix = "give another folder, or repeat the command that began this one"
            raise UsageError(what, where=str(self.folder), fix=fix)

    def begin(self) -> None:
        """Make the folder; what a killed run left half-written goes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.check()  # again: whoever begins is alone by now, and was not when it was checked before
        for stale in self.folder.glob(f"*{PART}"):
            stale.unlink()
        described = {**self.about, _LAYERS: self.layers}
        write_whole(self.folder / ABOUT, (json.dumps(described, indent=1) + "\n").encode())

    def save(self, layer: int, stats: LayerStats) -> None:
        """Keep a layer's statistics."""
        write_whole(self._layer(layer), safetensors.numpy.save(stats.tensors()))

    def load(self, layer: int) -> LayerStats | None:
        """Return a layer's statistics if they are there."""
        try:
            return LayerStats.of(safetensors.numpy.load(self._layer(layer).read_bytes()))
        except _UNREADABLE:
            return None

    def save_hidden(self, layer: int, hidden: torch.Tensor) -> None:
        """Keep the hidden states before a layer, and no others."""
        path = self.hidden_file(layer)
        write_whole(path, *hidden_pieces(hidden, path.name))
        for older in self.folder.glob("hidden-*.safetensors"):
            if older != path:
                older.unlink()

    def missing_nbytes(self, hidden_nbytes: int) -> int:
        """Return what hidden states will still take of the disk: the next ones are whole before the last ones go."""
        if self.is_whole:
            return 0
        there = sum(path.stat().st_size for path in self.folder.glob("hidden-*.safetensors"))
        return max(2 * hidden_nbytes - there, 0)

    @property
    def is_whole(self) -> bool:
        """Whether all layers were measured, as far as a look at the names tells."""
        return (self.folder / STATS).exists()

    def load_hidden(self) -> tuple[int, torch.Tensor] | None:
        """Return the layer to go on with and the hidden states before it, if all layers before it were measured."""
        for layer in self.hidden_layers():
            hidden = self._hidden(layer)
            if hidden is not None and all(self.load(before) is not None for before in range(layer)):
                return layer, hidden
        return None

    def _hidden(self, layer: int) -> torch.Tensor | None:
        """Return the hidden states of all rows, whether they lie in one file or in parts."""
        whole = load_hidden_file(self.hidden_file(layer))
        if whole is not None:
            return whole
        parts = [load_hidden_file(self.hidden_file(layer, part)) for part in range(self.parts)]
        there = [part for part in parts if part is not None]
        if not there or len(there) < len(parts):
            return None
        import torch  # noqa: PLC0415

        return torch.cat(there)

    @property
    def parts(self) -> int:
        """Return how many parts the rows have, where machines share them."""
        return -(-self.about["rows"][0] // self.about["sum_rows"]) if "sum_rows" in self.about else 0

    def hidden_file(self, layer: int, part: int | None = None) -> Path:
        """Return where the hidden states before a layer lie, of all rows or of a part of them."""
        return self.folder / f"hidden-{layer:05d}{'' if part is None else f'-{part:05d}'}.safetensors"

    def hidden_layers(self) -> list[int]:
        """Return the layers before which hidden states lie here, of all rows or of some, the last one first."""
        names = (path.stem.split("-") for path in self.folder.glob("hidden-*.safetensors"))
        return sorted({int(words[1]) for words in names if words[1].isdecimal()}, reverse=True)

    def finish(self) -> None:
        """Make one file of all layers, and remove what only a killed run would have needed."""
        tensors: dict[str, NDArray[Any]] = {}
        for layer in range(self.layers):
            stats = self.load(layer)
            if stats is None:
                fix = "check the disk, then run the same command again"
                what = "a layer's statistics cannot be read back"
                raise MachineError(what, where=str(self._layer(layer)), fix=fix)
            tensors |= {f"layers.{layer}.{name}": array for name, array in stats.tensors().items()}
        # All under one name: safetensors writes several in any order, and the same statistics are the same bytes.
        said = json.dumps({**self.about, _SHA256: stats_sha256(self.about, tensors)})
        write_whole(self.folder / STATS, safetensors.numpy.save(tensors, {_METADATA: said}))
        self._tidy()

    def whole(self) -> dict[int, LayerStats] | None:
        """Return all layers, if all were measured."""
        try:
            found = read_stats(self.folder)[1]
        except (UsageError, OSError):
            return None
        if not all(layer in found for layer in range(self.layers)):
            return None
        self._tidy()  # a kill can have come between the file and this
        return {layer: found[layer] for layer in range(self.layers)}

    def _tidy(self) -> None:
        for part in (*self.folder.glob("layer-*.safetensors"), *self.folder.glob("hidden-*.safetensors")):
            part.unlink()

    def _layer(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:05d}.safetensors"


def hidden_pieces(hidden: torch.Tensor, name: str) -> tuple[bytes, memoryview]:
    """Return the two pieces of a file of hidden states.

    Made by ourselves: safetensors' own writer tells a full disk in words only, and takes no second piece.
    """
    import torch  # noqa: PLC0415 - reading statistics takes none

    dtype = {torch.bfloat16: "BF16", torch.float32: "F32"}[hidden.dtype]
    head, _ = lay_out([TensorSpec(_HIDDEN, dtype, tuple(hidden.shape))], name)
    return head, hidden.contiguous().view(-1).view(torch.uint8).numpy().data


def load_hidden_file(path: Path, rows: slice = slice(None)) -> torch.Tensor | None:
    """Return hidden states of some rows; None where there is no such file, or half of one."""
    try:
        with cast("Any", safetensors).safe_open(path, "pt") as opened:
            return opened.get_slice(_HIDDEN)[rows]
    except _UNREADABLE:
        return None


def stats_file(path: Path) -> Path:
    """Return the file of statistics, given it or its folder."""
    return path / STATS if path.is_dir() else path


def read_stats(path: Path) -> tuple[dict[str, Any], dict[int, LayerStats]]:
    """Read finished statistics, from their file or its folder: what they are of, and each layer's."""
    file = stats_file(path)
    if not file.is_file():
        unfinished = (path / ABOUT).exists()
        fix = "run the same `halfbyte calibrate` again to finish them" if unfinished else "give the OUT of `calibrate`"
        raise UsageError("there are no finished statistics here", where=str(path), fix=fix)
    if file.stat().st_size > MOST_NBYTES:  # all of it is read into memory
        what = f"these are no statistics of halfbyte's: they have more than {MOST_NBYTES >> 20:,} MiB"
        raise UsageError(what, where=str(file), fix="give the OUT of `halfbyte calibrate`")
    try:
        with cast("Any", safetensors).safe_open(file, "np") as opened:
            about = parsed(cast("dict[str, str]", opened.metadata() or {})[_METADATA], finite=True)
            digest = about.pop(_SHA256, None)
            tensors: dict[str, NDArray[Any]] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        _refuse_damaged(digest, about, tensors, str(file))
        _refuse_odd(about)
        by_layer: dict[int, dict[str, NDArray[Any]]] = {}
        for name, array in tensors.items():
            _, layer, rest = name.split(".", 2)
            by_layer.setdefault(int(layer), {})[rest] = array
        return about, {layer: LayerStats.of(found) for layer, found in sorted(by_layer.items())}
    except (safetensors.SafetensorError, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        what = f"these are no statistics of halfbyte's: {error}"
        raise UsageError(what, where=str(file), fix="give the OUT of `halfbyte calibrate`") from None


def stats_sha256(about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of what statistics are of, and of every name, type, shape and value in them."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _refuse_odd(about: Mapping[str, Any]) -> None:
    """Whoever uses the record trusts these kinds; what only an earlier version leaves out is said elsewhere."""
    for key, kind in (("source", str), ("config", str), ("domains", dict)):
        if not isinstance(about.get(key, kind()), kind):
            raise ValueError(f"their '{key}' is damaged")
    if "domains" not in about:
        raise ValueError("they do not say what they were measured on")


def _refuse_damaged(
    digest: str | None, about: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], where: str
) -> None:
    """Scales follow from these numbers alone, so nobody would notice a wrong one later."""
    if digest is None:
        what = "these statistics have no checksum: an earlier version wrote them, or another program"
        raise UsageError(what, where=where, fix=_MEASURE)
    if digest != stats_sha256(about, tensors):
        raise UsageError("these statistics are damaged: their checksum is another", where=where, fix=_MEASURE)
    for name, array in tensors.items():
        if not (np.isfinite(array) & (array >= 0)).all():  # counts, norms and largest absolute values
            raise UsageError(f"these statistics hold impossible values in {name}", where=where, fix=_MEASURE)


def refuse_other(found: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> None:
    """Refuse statistics of something else; say what differs."""
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        what = (
            f"this folder holds another calibration: {', '.join(different)} differ{'s' if len(different) == 1 else ''}"
        )
        raise UsageError(what, where=where, fix="give another folder, or repeat the command that began this one")
