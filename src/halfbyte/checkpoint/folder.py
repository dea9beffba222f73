"""A checkpoint folder: its config and shard headers, checked against the index."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from halfbyte.checkpoint.contained_paths import check_inside
from halfbyte.checkpoint.headers import TensorInfo, parse_header, read_header_length, read_raw_header
from halfbyte.checkpoint.remote.address import hub_address
from halfbyte.checkpoint.untrusted_files import DuplicateKeyError, parsed, plain_bytes, reject_duplicate_keys
from halfbyte.errors import CheckpointError
from halfbyte.machine.interrupts import gc_paused

if TYPE_CHECKING:
    from halfbyte.checkpoint.remote.shard_cache import ShardCache

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
SUMS = "SHA256SUMS"  # the source's hashes, as written by `sha256sum`
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
_INDICES = (".safetensors.index.json", ".bin.index.json")
_NO_FOLDER = ("the folder does not exist", "check the path")
_NO_ADDRESS = (
    "not a folder, and not an address that this command supports",
    "download it; inspect, plan, calibrate, prune and quantize accept addresses with two slashes: hf://org/name",
)
MAX_HEADERS_NBYTES = 400_000_000  # of all shards; half a million tensors have 90 MB
READERS = 8  # headers are small reads in large files: latency counts, not bandwidth

# Each shard with the tensors that the index lists in it; None if there is no index.
Promised = Mapping[str, set[str] | None]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's contents as given by its headers. No weights are read."""

    root: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    shards: Mapping[str, int]  # file name -> bytes, sorted by name
    index_nbytes: int | None = None  # total_size of the index; None if absent
    # The cache that fetches shards on demand; None for a local checkpoint. `root` has all other files.
    remote: ShardCache | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Return the address, or the name of the folder."""
        return self.remote.files.where if self.remote is not None else self.root.name

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors, without headers."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def other_files(self) -> list[Path]:
        """Return the non-weight files, relative to the folder: tokenizer, chat template, licenses, processor code."""
        entries = (path for path in self.root.rglob("*") if path.is_symlink() or path.is_file())
        relative = (path.relative_to(self.root) for path in entries)
        kept = (path for path in relative if not is_weights(path))
        files = sorted(path for path in kept if not any(part.startswith(".") for part in path.parts))
        for path in files:
            check_inside(self.root, path)  # copied files may be published
            if not (self.root / path).exists():
                raise CheckpointError(f"'{path}' is a broken link", where=str(self.root), fix="download it again")
        # SHA256SUMS describes the source's shards. A linked folder is listed as itself.
        return [path for path in files if (self.root / path).is_file() and path.as_posix() != SUMS]

    def stray_shards(self) -> list[str]:
        """Return the .safetensors files in the folder that are not shards of this checkpoint."""
        return sorted(path.name for path in self.root.glob("*.safetensors") if path.name not in self.shards)


def is_weights(path: PurePath) -> bool:
    """Whether a file is a weight file or a weight index."""
    return path.suffix in _WEIGHTS or path.name.endswith(_INDICES)


def open_checkpoint(root: Path) -> Checkpoint:
    """Read config, index and headers of a local folder; raise if they are inconsistent."""
    if not root.is_dir():
        what, fix = ("not a folder", "pass the folder of a checkpoint") if root.exists() else _NO_FOLDER
        if not root.exists() and root.parts[:1] and root.parts[0].endswith(":"):  # hf://name, parsed as a path
            what, fix = _NO_ADDRESS
        elif not root.exists() and hub_address(str(root)) is not None:
            fix = f"check the path, or download the repository: hf download {root} --local-dir FOLDER"
        raise CheckpointError(what, where=str(root), fix=fix)
    with gc_paused():
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
    """Raise if the headers together exceed the limit: all of them are in memory at once."""
    if left < 0:
        what = f"the headers have {MAX_HEADERS_NBYTES - left:,} bytes in total, more than {MAX_HEADERS_NBYTES:,}"
        raise CheckpointError(what, where=where, fix="the files are damaged or not a model: download them again")


def assemble(
    root: Path,
    config: Mapping[str, Any],
    index: Mapping[str, Any] | None,
    promised: Promised,
    raw: Mapping[str, tuple[bytes, int]],
) -> Checkpoint:
    """Build a checkpoint from config, index, and each shard's raw header and file size."""
    headers = {shard: parse_header(text, nbytes, shard) for shard, (text, nbytes) in raw.items()}
    tensors = _merge(headers, promised)
    return Checkpoint(root, config, tensors, {shard: nbytes for shard, (_, nbytes) in raw.items()}, _total(index))


def _merge(headers: Mapping[str, Mapping[str, TensorInfo]], promised: Promised) -> dict[str, TensorInfo]:
    """Return the tensors of all shards; raise if one is not where the index says or is in two shards."""
    tensors: dict[str, TensorInfo] = {}
    for shard, header in headers.items():
        for name in header.keys() & tensors.keys():
            where = f"{tensors[name].shard} and {shard}"
            raise CheckpointError(f"'{name}' is in two shards", where=where, fix="remove the wrong shard")
        tensors.update(header)
    for shard, header in headers.items():
        _agree(shard, promised[shard], header)
    return tensors


def shard_path(root: Path, shard: str) -> Path:
    """Return the path of a shard; raise if its name or a link leads outside the folder."""
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
        what = f"cannot access '{path.name}': {error.strerror}"
        raise CheckpointError(what, where=str(root), fix="download the index again") from None


def check_shard_name(shard: str) -> None:
    """Raise if a name is not a valid shard path inside the folder."""
    pure = PurePosixPath(shard)
    invalid = pure.is_absolute() or ".." in pure.parts or "\\" in shard or not shard.endswith(".safetensors")
    if invalid or "\0" in shard or not _is_text(shard):
        fix = "shards are .safetensors files inside the checkpoint's own folder"
        shown = shard.encode(errors="backslashreplace").decode().replace("\0", "\\0")
        raise CheckpointError(f"invalid shard name '{shown}'", where=INDEX, fix=fix)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def promised_shards(index: Mapping[str, Any]) -> Promised:
    """Return each shard, sorted by name, with the tensors that the index lists in it."""
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError("the index has no weight_map", where=INDEX, fix="download it again")
    by_shard: dict[str, set[str]] = {}
    for name, shard in cast("dict[str, Any]", weight_map).items():
        if not isinstance(shard, str):
            raise CheckpointError(f"the index has no file name for '{name}'", where=INDEX, fix="download it again")
        by_shard.setdefault(shard, set()).add(name)
    return {shard: by_shard[shard] for shard in sorted(by_shard)}


def _total(index: Mapping[str, Any] | None) -> int | None:
    metadata: Any = index.get("metadata") if index is not None else None
    total = cast("dict[str, Any]", metadata).get("total_size") if isinstance(metadata, dict) else None
    return total if type(total) is int else None


def _without_index(root: Path) -> Promised:
    """Return the single shard of a checkpoint without an index."""
    shards = sorted(path.name for path in root.glob("*.safetensors"))
    if shards == [SINGLE]:
        return {SINGLE: None}
    if shards:
        what = f"the folder has '{shards[0]}', but no index"
        raise CheckpointError(what, where=str(root), fix=f"download {INDEX} too")
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in root.glob(pattern))
    if pickles:
        what = f"only pickled weights ({pickles[0]}), which can run code when loaded"
        raise CheckpointError(what, where=str(root), fix="convert the checkpoint to safetensors first")
    raise CheckpointError("no weights in this folder", where=str(root), fix="pass a folder with .safetensors files")


def _agree(shard: str, promised: set[str] | None, header: Mapping[str, TensorInfo]) -> None:
    if promised is None or promised == set(header):
        return
    missing, extra = sorted(promised - header.keys()), sorted(header.keys() - promised)
    name, what = (missing[0], "is not in the shard") if missing else (extra[0], "is in the shard, but not in the index")
    others = len(missing) + len(extra) - 1
    more = f" (and {others} more)" if others else ""
    raise CheckpointError(f"'{name}' {what}{more}", where=shard, fix="index and shards do not match: download both")


def _read_json(path: Path, fix: str) -> dict[str, Any]:
    try:
        raw = plain_bytes(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing", where=str(path.parent), fix=fix) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path.name}: {error.strerror}", where=str(path), fix=fix) from None
    return parse_json(raw, path.name, str(path), fix)


def parse_json(raw: bytes, name: str, where: str, fix: str) -> dict[str, Any]:
    """Parse a JSON file that must hold an object."""
    try:
        value = parsed(raw, reject_duplicate_keys)
    except DuplicateKeyError as error:
        raise CheckpointError(f"{name} has a {error}", where=where, fix=fix) from None
    except ValueError:
        raise CheckpointError(f"{name} is not JSON", where=where, fix=fix) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is not a JSON object", where=where, fix=fix)
    return cast("dict[str, Any]", value)
