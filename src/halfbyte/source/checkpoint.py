"""A checkpoint folder: its config, its shards' headers, and the proof that index, shards and headers agree."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from halfbyte.errors import CheckpointError
from halfbyte.machine.collector import paused
from halfbyte.source.foreign import DoubleError, parsed, plain_bytes, without_doubles
from halfbyte.source.headers import TensorInfo, parse_header, read_header_length, read_raw_header
from halfbyte.source.inside import check_inside
from halfbyte.source.known_hashes import SUMS

if TYPE_CHECKING:
    from halfbyte.source.remote.shelf import Shelf

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
_INDICES = (".safetensors.index.json", ".bin.index.json")
_NO_FOLDER = ("there is no such folder", "check the path")
_NO_ADDRESS = (
    "this is no folder, and no address that this command reads",
    "download it; inspect, plan, calibrate, prune and quantize read addresses, with two slashes: hf://org/name",
)
MAX_HEADERS_NBYTES = 400_000_000  # of all shards; half a million tensors have 90 MB
READERS = 8  # headers are small reads in large files: latency counts, not bandwidth

# Each shard with the tensors that the index promises in it; None where there is no index to promise anything.
Promised = Mapping[str, set[str] | None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds, by its headers; nothing of the weights has been read."""

    root: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    shards: Mapping[str, int]  # file name -> bytes, in the order of their names
    index_nbytes: int | None = None  # what the index says the tensors take; None where it says nothing
    # Where shards are fetched from when they are read; None: they lie in the folder. `root` has all the other files.
    remote: Shelf | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Return what to call it: its address, or the name of its folder."""
        return self.remote.files.where if self.remote is not None else self.root.name

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors, without headers."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def other_files(self) -> list[Path]:
        """Return what is not weights, relative to the folder: tokenizer, template, licences, processor code."""
        entries = (path for path in self.root.rglob("*") if path.is_symlink() or path.is_file())
        found = (path.relative_to(self.root) for path in entries)
        kept = (path for path in found if not is_weights(path))
        files = sorted(path for path in kept if not any(part.startswith(".") for part in path.parts))
        for path in files:
            check_inside(self.root, path)  # what is copied would be published
            if not (self.root / path).exists():
                raise CheckpointError(f"'{path}' is a link to nothing", where=str(self.root), fix="download it again")
        # The sums are those of the source's shards; a folder that is linked to is in the listing as itself.
        return [path for path in files if (self.root / path).is_file() and path.as_posix() != SUMS]

    def stray_shards(self) -> list[str]:
        """Return the .safetensors files in the folder that belong to no part of this checkpoint."""
        return sorted(path.name for path in self.root.glob("*.safetensors") if path.name not in self.shards)


def is_weights(path: PurePath) -> bool:
    """Whether a file holds weights, or says where they lie."""
    return path.suffix in _WEIGHTS or path.name.endswith(_INDICES)


def open_checkpoint(root: Path) -> Checkpoint:
    """Read config, index and headers of a local folder; refuse whatever does not fit together."""
    if not root.is_dir():
        what, fix = ("not a folder", "give the folder of a checkpoint") if root.exists() else _NO_FOLDER
        if not root.exists() and root.parts[:1] and root.parts[0].endswith(":"):  # hf://name, which became a path
            what, fix = _NO_ADDRESS
        raise CheckpointError(what, where=str(root), fix=fix)
    with paused():
        config = _read_json(root / CONFIG, "every checkpoint has a config.json: download it too")
        index = _read_json(root / INDEX, "download it again") if (root / INDEX).exists() else None
        promised = promised_shards(index) if index is not None else _without_index(root)
        paths = {shard: shard_path(root, shard) for shard in promised}
        with ThreadPoolExecutor(READERS) as pool:
            lengths = list(pool.map(read_header_length, paths.values(), paths))
            refuse_too_much(MAX_HEADERS_NBYTES - sum(lengths), str(root))
            raw = dict(zip(paths, pool.map(read_raw_header, paths.values(), paths), strict=True))
        return assemble(root, config, index, promised, raw)


def refuse_too_much(left: int, where: str) -> None:
    """Refuse headers that together are larger than those of any model: they are all in memory for a moment."""
    if left < 0:
        what = f"the headers have {MAX_HEADERS_NBYTES - left:,} bytes together, more than {MAX_HEADERS_NBYTES:,}"
        raise CheckpointError(what, where=where, fix="the files are damaged or not a model: download them again")


def assemble(
    root: Path,
    config: Mapping[str, Any],
    index: Mapping[str, Any] | None,
    promised: Promised,
    raw: Mapping[str, tuple[bytes, int]],
) -> Checkpoint:
    """Make a checkpoint of config, index, and each shard's header as text with the size of its file."""
    headers = {shard: parse_header(text, nbytes, shard) for shard, (text, nbytes) in raw.items()}
    tensors = _merge(headers, promised)
    return Checkpoint(root, config, tensors, {shard: nbytes for shard, (_, nbytes) in raw.items()}, _total(index))


def _merge(headers: Mapping[str, Mapping[str, TensorInfo]], promised: Promised) -> dict[str, TensorInfo]:
    """Return the tensors of all shards; each must be where the index says, and nowhere else."""
    tensors: dict[str, TensorInfo] = {}
    for shard, header in headers.items():
        for name in header.keys() & tensors.keys():
            where = f"{tensors[name].shard} and {shard}"
            raise CheckpointError(f"'{name}' is in two shards", where=where, fix="remove the shard that is not meant")
        tensors.update(header)
    for shard, header in headers.items():
        _agree(shard, promised[shard], header)
    return tensors


def shard_path(root: Path, shard: str) -> Path:
    """Return the file of a shard; a name that leads out of the folder is refused, so is a link that does."""
    check_shard_name(shard)
    path = root / shard
    check_inside(root, Path(shard))
    if not _exists(path, root):
        raise CheckpointError(f"shard '{shard}' is missing", where=str(root), fix="download it")
    return path


def _exists(path: Path, root: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name too long for the file system
        what = f"cannot look for '{path.name}': {error.strerror}"
        raise CheckpointError(what, where=str(root), fix="download the index again") from None


def check_shard_name(shard: str) -> None:
    """Refuse what is no name of a shard inside its folder."""
    pure = PurePosixPath(shard)
    odd = pure.is_absolute() or ".." in pure.parts or "\\" in shard or not shard.endswith(".safetensors")
    if odd or "\0" in shard or not _is_text(shard):
        fix = "shards are .safetensors files inside the checkpoint's own folder"
        shown = shard.encode(errors="backslashreplace").decode().replace("\0", "\\0")
        raise CheckpointError(f"the index names a shard '{shown}'", where=INDEX, fix=fix)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def promised_shards(index: Mapping[str, Any]) -> Promised:
    """Each shard, in the order of their names, with the tensors that the index promises."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("the index has no weight_map", where=INDEX, fix="download it again")
    by_shard: dict[str, set[str]] = {}
    for name, shard in cast("dict[str, Any]", weight_map).items():
        if not isinstance(shard, str):
            raise CheckpointError(f"the index gives '{name}' no file name", where=INDEX, fix="download it again")
        by_shard.setdefault(shard, set()).add(name)
    return {shard: by_shard[shard] for shard in sorted(by_shard)}


def _total(index: Mapping[str, Any] | None) -> int | None:
    metadata: Any = index.get("metadata") if index is not None else None
    total = cast("dict[str, Any]", metadata).get("total_size") if isinstance(metadata, dict) else None
    return total if type(total) is int else None


def _without_index(root: Path) -> Promised:
    """The one shard of a small checkpoint; nothing promises what is in it."""
    shards = sorted(path.name for path in root.glob("*.safetensors"))
    if shards == [SINGLE]:
        return {SINGLE: None}
    if shards:
        what = f"there is '{shards[0]}', but no index"
        raise CheckpointError(what, where=str(root), fix=f"download {INDEX} too")
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in root.glob(pattern))
    if pickles:
        what = f"only pickled weights ({pickles[0]}), which can run code when loaded"
        raise CheckpointError(what, where=str(root), fix="convert the checkpoint to safetensors first")
    raise CheckpointError("no weights in this folder", where=str(root), fix="give a folder with .safetensors files")


def _agree(shard: str, promised: set[str] | None, header: Mapping[str, TensorInfo]) -> None:
    if promised is None or promised == set(header):
        return
    missing, extra = sorted(promised - header.keys()), sorted(header.keys() - promised)
    name, what = (missing[0], "is not in the shard") if missing else (extra[0], "is in the shard, but not in the index")
    others = len(missing) + len(extra) - 1
    more = f" (and {others} more)" if others else ""
    raise CheckpointError(f"'{name}' {what}{more}", where=shard, fix="index and shards are of different downloads")


def _read_json(path: Path, fix: str) -> dict[str, Any]:
    try:
        raw = plain_bytes(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing", where=str(path.parent), fix=fix) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path.name}: {error.strerror}", where=str(path), fix=fix) from None
    return parse_json(raw, path.name, str(path), fix)


def parse_json(raw: bytes, name: str, where: str, fix: str) -> dict[str, Any]:
    """Return the object that a JSON file holds."""
    try:
        found = parsed(raw, without_doubles)
    except DoubleError as error:
        raise CheckpointError(f"{name} names {error}", where=where, fix=fix) from None
    except ValueError:
        raise CheckpointError(f"{name} is not JSON", where=where, fix=fix) from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} is not a JSON object", where=where, fix=fix)
    return cast("dict[str, Any]", found)
