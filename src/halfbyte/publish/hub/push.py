"""Upload finished shards to the Hub during a run, and optionally delete each local copy once its hash is confirmed.

The repository is private, because nothing uploaded here has been audited. Config and index are uploaded last, so an
interrupted run does not look like a complete checkpoint. A resumed run treats a shard as finished if the repository has
it with the hash in the journal, even if the local copy is gone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.engine.pipeline import JOURNAL
from halfbyte.errors import MachineError
from halfbyte.publish import contents
from halfbyte.publish.hub.hub import (
    Target,
    Upload,
    groups,
    is_same,
    uploading,
)
from halfbyte.publish.hub.staging import Sent

BACKLOG = 4  # shards that may wait for the upload with --evict
_OPEN = 4  # shards being written or uploaded
_SHARD = ".safetensors"


class Push:
    """Uploads finished shards in a background thread."""

    def __init__(self, out: Path, target: Target, *, evict: bool) -> None:
        self._out, self._target, self._evict = out, target, evict
        self._tell: Callable[[str], None] = _discard
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._sending = False
        self._error: Exception | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)
        self.sent_nbytes = 0
        with uploading(target, self._said) as upload:
            upload.prepare()
            self._there: Mapping[str, str] = upload.there()

    # Called by the run.

    def has(self, shard: str, sha256: str) -> bool:
        """Whether the repository has a shard with this hash."""
        return self._there.get(shard) == sha256

    def room_nbytes(self, pending: Sequence[int]) -> int:
        """Return the disk space needed for the remaining shards."""
        return min(sum(pending), (BACKLOG + _OPEN) * max(pending, default=0)) if self._evict else sum(pending)

    def __enter__(self) -> Push:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join(None if kind is None else 2.0)  # an interrupted upload resumes later

    def begin(self, finished: Mapping[str, str], tell: Callable[[str], None]) -> None:
        """Start the thread with the shards that an earlier run finished."""
        self._tell = tell
        for shard, sha256 in finished.items():
            if not self.has(shard, sha256):
                self._waiting.append(shard)
            elif self._evict:
                (self._out / shard).unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Start no further uploads, and wake all waiting threads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def written(self, tensor: str) -> None:
        """Do nothing: only complete shards are uploaded."""

    def final(self, shard: str) -> None:
        """Queue a finished shard; with --evict, block while the backlog is full."""
        with self._changed:
            self._waiting.append(shard)
            self._changed.notify_all()
            while self._evict and len(self._waiting) > BACKLOG and not self._stopped:
                self._raise()
                self._changed.wait()
            self._raise()

    def wait(self) -> None:
        """Wait until all finished shards are uploaded."""
        with self._changed:
            while self._waiting or self._sending:
                self._raise()
                self._changed.wait()
            self._raise()

    def rest(self) -> None:
        """Upload config, index and tokenizer. `halfbyte publish` uploads evidence and card."""
        names = [name for name in contents.files(self._out) if contents.kind(name) == "output"]
        paths = {name: self._out / name for name in names if not name.endswith(_SHARD)}
        files = [Sent(name, path.stat().st_size, file_sha256(path), path) for name, path in paths.items()]
        with uploading(self._target, self._said) as upload:
            there = upload.there()
            for group in groups(file for file in files if not is_same(file, there.get(file.name))):
                upload.send(group)

    # Called by the thread.

    def _work(self) -> None:
        while (shard := self._next()) is not None:
            try:
                with uploading(self._target, self._said) as upload:
                    self._send(upload, shard)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _next(self) -> str | None:
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return None
            self._sending = True
            return self._waiting.popleft()

    def _send(self, upload: Upload, shard: str) -> None:
        """Upload a shard, verify it on the Hub and, with --evict, delete the local file."""
        path, lines = self._out / shard, Journal(self._out / FOLDER / JOURNAL).lines()
        sha256 = next(str(line["sha256"]) for line in reversed(lines) if line.get("shard") == shard)
        nbytes = path.stat().st_size
        upload.send([Sent(shard, nbytes, sha256, path)])
        if upload.there().get(shard) != sha256:
            what = f"'{shard}' on the Hub does not match the local file"
            raise MachineError(what, where=self._target.repo, fix="run the same command again")
        self.sent_nbytes += nbytes
        if self._evict:
            path.unlink()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _said(self, line: str, done: int, total: int) -> None:
        self._tell(line)


def _discard(_: str) -> None:
    pass
