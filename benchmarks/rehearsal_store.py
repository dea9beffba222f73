"""An fsspec store that generates Kimi-K2.6's shards on demand, and a target of `--push` that checks and drops them.

The address `rehearsal://kimi-k2.6/narrow-8/seed-0` is a folder with the headers of the release and generated weights
(`synth.Weights`: INT4 codes on Kimi's grid, BF16 scales). The number divides the width of every matrix; `narrow-1` is
the release to the byte. Any byte range can be read. Bytes depend on the seed and the tensor name only.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from fsspec.spec import AbstractFileSystem
from synth import GENERATION_CONFIG, KIMI_K26, Weights, index_of

from halfbyte.checkpoint.headers import TensorInfo, lay_out
from halfbyte.families.kimi_k25.geometry import Geometry, release_config, release_shards

PROTOCOL = "rehearsal"
SUMS = "SHA256SUMS"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tiktoken.model", "chat_template.jinja")
MODEL = Path(__file__).parents[1] / "models" / "kimi-mini"
MIN_VOCABULARY = 8192  # kimi-mini's tokenizer, which makes the calibration tokens
NARROW = (1, 2, 4, 8, 16, 32)  # widths stay multiples of 32, the group size
_PATH = re.compile(r"kimi-k2\.6/narrow-(\d+)/seed-(\d+)(?:/(.+))?")
_LAID_OUT = 24  # shards whose tensor offsets are kept in memory
_PIECE_NBYTES = 1 << 24


def narrowed(factor: int) -> Geometry:
    """Return Kimi-K2.6's geometry, every tensor included, with widths divided by a factor."""
    g = KIMI_K26
    if factor == 1:
        return g
    text = {name: getattr(g, name) // factor for name in ("width", "dense_width", "expert_width", "q_rank", "kv_rank")}
    vision = {name: getattr(g, name) // factor for name in ("vision_width", "vision_mlp_width")}
    grid = max(g.vision_grid // factor, 2)
    vocabulary = max(g.vocabulary // factor, MIN_VOCABULARY)
    return replace(g, **text, **vision, heads=g.heads // factor, vocabulary=vocabulary, vision_grid=grid)


def address(factor: int, seed: int) -> str:
    """Return the address of a generated checkpoint."""
    return f"{PROTOCOL}://kimi-k2.6/narrow-{factor}/seed-{seed}"


class Store:
    """The files of one generated checkpoint, and how many bytes were read from it."""

    sums: Path | None = None  # JSON: known SHA-256 by folder and shard, listed as SHA256SUMS

    def __init__(self, factor: int, seed: int) -> None:
        self.name, self.seed = f"narrow-{factor}/seed-{seed}", seed
        self.geometry = narrowed(factor)
        self.specs = release_shards(self.geometry)
        self.served_nbytes, self._lock = 0, threading.Lock()
        self.sizes: dict[str, int] = {}
        self.tensors = self.payload_nbytes = 0
        for shard, specs in self.specs.items():
            _, infos = lay_out(specs, shard, metadata=False)
            self.sizes[shard] = infos[-1].end
            self.tensors += len(infos)
            self.payload_nbytes += sum(info.nbytes for info in infos)
        self.small = self._small()
        self._layout = functools.lru_cache(_LAID_OUT)(self._lay_out)

    def _small(self) -> dict[str, bytes]:
        files = {
            "config.json": json.dumps(release_config(self.geometry), indent=2).encode(),
            "generation_config.json": GENERATION_CONFIG.encode(),
            "model.safetensors.index.json": index_of(self.specs, self.payload_nbytes),
        }
        files |= {name: (MODEL / name).read_bytes() for name in TOKENIZER if (MODEL / name).exists()}
        if known := self.known_sums():
            files[SUMS] = "".join(f"{digest}  {shard}\n" for shard, digest in sorted(known.items())).encode()
        return files

    def known_sums(self) -> dict[str, str]:
        """Return the SHA-256 of shards that were hashed before."""
        if self.sums is None or not self.sums.is_file():
            return {}
        return json.loads(self.sums.read_text()).get(self.name, {})

    def save_sums(self, sums: Mapping[str, str]) -> None:
        """Add SHA-256 of shards to the file, for later processes."""
        assert self.sums is not None
        every = json.loads(self.sums.read_text()) if self.sums.is_file() else {}
        every[self.name] = {**every.get(self.name, {}), **sums}
        self.sums.write_text(json.dumps(every, indent=1))

    def _lay_out(self, shard: str) -> tuple[bytes, list[TensorInfo], list[int]]:
        head, infos = lay_out(self.specs[shard], shard, metadata=False)
        return head, infos, [info.begin for info in infos]

    @functools.cached_property
    def weights(self) -> Weights:
        """Return the generator of tensor bytes."""
        return Weights(self.geometry, self.seed)

    def read(self, name: str, begin: int, end: int) -> memoryview | bytes:
        """Return a byte range of a file."""
        if name in self.small:
            return self.small[name][begin:end]
        end = min(end, self.sizes[name])
        head, infos, begins = self._layout(name)
        data = np.empty(max(end - begin, 0), np.uint8)
        for at, piece in self._pieces(head, infos, max(bisect.bisect_right(begins, begin) - 1, 0)):
            if at >= end:
                break
            low, high = max(begin - at, 0), min(end - at, len(piece))
            if low < high:
                data[at + low - begin : at + high - begin] = piece[low:high]
        with self._lock:
            self.served_nbytes += len(data)
        return data.data

    def _pieces(self, head: bytes, infos: Sequence[TensorInfo], first: int) -> Iterator[tuple[int, Any]]:
        yield 0, np.frombuffer(head, np.uint8)
        for info in infos[first:]:
            at = info.begin
            for piece in self.weights.pieces(info):
                yield at, np.frombuffer(piece, np.uint8)
                at += len(piece)

    def sha256(self, shard: str, stop: Callable[[], bool] = lambda: False) -> str:
        """Return the SHA-256 of a shard; an empty text if `stop` becomes true."""
        digest = hashlib.sha256()
        for begin in range(0, self.sizes[shard], _PIECE_NBYTES):
            if stop():
                return ""
            digest.update(self.read(shard, begin, begin + _PIECE_NBYTES))
        return digest.hexdigest()


@functools.cache
def _store(factor: int, seed: int) -> Store:
    return Store(factor, seed)


_opening = threading.Lock()


def open_store(factor: int, seed: int) -> Store:
    """Return the one store of this process for a folder."""
    with _opening:
        return _store(factor, seed)


class RehearsalFileSystem(AbstractFileSystem):
    """The fsspec view of the stores."""

    protocol = PROTOCOL

    def _of(self, path: str) -> tuple[Store, str, str]:
        match = _PATH.fullmatch(self._strip_protocol(path).strip("/"))
        if match is None:
            raise FileNotFoundError(path)
        store = open_store(int(match[1]), int(match[2]))
        return store, f"kimi-k2.6/{store.name}", match[3] or ""

    def find(self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        store, root, _name = self._of(path)
        infos = {f"{root}/{name}": self._info(store, root, name) for name in (*store.small, *store.sizes)}
        return infos if detail else sorted(infos)

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        infos = self.find(path, detail=True)
        return list(infos.values()) if detail else sorted(infos)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        store, root, name = self._of(path)
        return self._info(store, root, name)

    def _info(self, store: Store, root: str, name: str) -> dict[str, Any]:
        small = store.small.get(name)
        size = store.sizes.get(name) if small is None else len(small)
        if size is None:
            raise FileNotFoundError(f"{root}/{name}")
        return {"name": f"{root}/{name}", "size": size, "type": "file", "etag": f"seed-{store.seed}"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
        store, root, name = self._of(path)
        size = self._info(store, root, name)["size"]
        return store.read(name, start or 0, size if end is None else end)


def register() -> None:
    """Make the scheme known to fsspec in this process."""
    fsspec.register_implementation(PROTOCOL, RehearsalFileSystem, clobber=True)


class Sink:
    """The target of a push: it checks shards, records their hashes in a file, and keeps no bytes.

    It has the methods of `publish.hub.hub.Upload` that `Push` calls. `Push` itself is the real one: queue, backlog,
    check of the recorded hash and eviction.
    """

    def __init__(self, record: Path, every: int) -> None:
        self._record, self._every = record, every
        self._arrived = {line["name"]: line for line in read_lines(record)}

    def prepare(self) -> None:
        """Do nothing: there is no repository to create."""

    def there(self) -> dict[str, str]:
        """Return the SHA-256 of everything that arrived, also in earlier processes."""
        return {name: line["sha256"] for name, line in self._arrived.items()}

    def send(self, group: Sequence[Any]) -> None:
        """Take files: open shards with safetensors, and hash every n-th of them."""
        for file in group:
            begin = time.perf_counter()
            assert file.path.stat().st_size == file.nbytes, file.name
            line: dict[str, Any] = {"name": file.name, "nbytes": file.nbytes, "sha256": file.sha256}
            if file.name.endswith(".safetensors"):
                line["tensors"] = _open_shard(file.path)
                if self._every and len(self._arrived) % self._every == 0:
                    with file.path.open("rb") as stream:
                        line["hashed"] = hashlib.file_digest(stream, "sha256").hexdigest()
                    assert line["hashed"] == file.sha256, f"{file.name}: the journal's SHA-256 is not the file's"
            line |= {"seconds": round(time.perf_counter() - begin, 4), "at": time.time()}
            with self._record.open("a") as record:
                record.write(json.dumps(line) + "\n")
            self._arrived[file.name] = line


def _open_shard(path: Path) -> int:
    """Open a shard with safetensors, which checks all offsets, and return the number of tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as shard:  # not "pt": importing torch would add to the measured memory
        return len(shard.keys())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file; a killed process may leave half of the last one."""
    lines: list[dict[str, Any]] = []
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def push_into(sink: Sink, out: Path) -> Any:
    """Return the push of `quantize --push --evict` with the sink in place of the Hub."""
    from halfbyte.publish.hub import push
    from halfbyte.publish.hub.hub import Target

    @contextmanager
    def uploading(*_: Any) -> Generator[Sink]:
        yield sink

    push.uploading = uploading  # type: ignore[assignment]
    return push.Push(out, Target("rehearsal/sink", private=True), evict=True)
