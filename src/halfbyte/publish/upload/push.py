"""Shards of a run go to the Hub while others are being made, and may leave this disk when the Hub has their hash.

The repository is private: nothing that is sent here has been audited. Config and index come last, so that a repository
whose run was cut off cannot be taken for a checkpoint. A run that goes on asks the repository what it has: a shard that
is there with the hash of the journal is finished, whether it is still here or not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from halfbyte.errors import MachineError
from halfbyte.folders import FOLDER
from halfbyte.pipeline import JOURNAL
from halfbyte.publish import contents
from halfbyte.publish.upload.hub import Target, Upload, groups, is_same, uploading
from halfbyte.publish.upload.staging import Sent
from halfbyte.write import Journal, file_sha256

BACKLOG = 4  # shards that may wait here to be sent, if they leave this disk then
_OPEN = 4  # shards that are being made, or sent
_SHARD = ".safetensors"


class Push:
    """Sends what is final. It knows what the repository has, from when it was made on."""

    def __init__(self, out: Path, target: Target, *, evict: bool) -> None:
        self._out, self._target, self._evict = out, target, evict
        self._tell: Callable[[str], None] = _nobody
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

    # What a run asks and says.

    def has(self, shard: str, sha256: str) -> bool:
        """Whether the repository has a shard with this hash."""
        return self._there.get(shard) == sha256

    def room_nbytes(self, pending: Sequence[int]) -> int:
        """Return how much of the disk the shards will take that are still to be made."""
        return min(sum(pending), (BACKLOG + _OPEN) * max(pending, default=0)) if self._evict else sum(pending)

    def __enter__(self) -> Push:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join(None if kind is None else 2.0)  # what has arrived of a shard is not sent again

    def begin(self, finished: Mapping[str, str], tell: Callable[[str], None]) -> None:
        """Begin with what an earlier run has finished."""
        self._tell = tell
        for shard, sha256 in finished.items():
            if not self.has(shard, sha256):
                self._waiting.append(shard)
            elif self._evict:
                (self._out / shard).unlink(missing_ok=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin to send no other shard, and let nobody wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def written(self, tensor: str) -> None:
        """Do nothing: a shard is sent whole."""

    def final(self, shard: str) -> None:
        """Send a shard; wait while too many do, if the disk may be too small for all of them."""
        with self._changed:
            self._waiting.append(shard)
            self._changed.notify_all()
            while self._evict and len(self._waiting) > BACKLOG and not self._stopped:
                self._raise()
                self._changed.wait()
            self._raise()

    def wait(self) -> None:
        """Wait until all that is final has been sent."""
        with self._changed:
            while self._waiting or self._sending:
                self._raise()
                self._changed.wait()
            self._raise()

    def rest(self) -> None:
        """Send what is no shard: config, index, tokenizer. Evidence and card are what `halfbyte publish` sends."""
        names = [name for name in contents.files(self._out) if contents.kind(name) == "output"]
        paths = {name: self._out / name for name in names if not name.endswith(_SHARD)}
        files = [Sent(name, path.stat().st_size, file_sha256(path), path) for name, path in paths.items()]
        with uploading(self._target, self._said) as upload:
            there = upload.there()
            for group in groups(file for file in files if not is_same(file, there.get(file.name))):
                upload.send(group)

    # What the thread does.

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
        """Send a shard, see that the repository has it, and let it go here."""
        path, lines = self._out / shard, Journal(self._out / FOLDER / JOURNAL).lines()
        sha256 = next(str(line["sha256"]) for line in reversed(lines) if line.get("shard") == shard)
        nbytes = path.stat().st_size
        upload.send([Sent(shard, nbytes, sha256, path)])
        if upload.there().get(shard) != sha256:
            what = f"'{shard}' did not arrive as it was sent"
            raise MachineError(what, where=self._target.repo, fix="run the same command again")
        self.sent_nbytes += nbytes
        if self._evict:
            path.unlink()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _said(self, line: str, done: int, total: int) -> None:
        self._tell(line)


def _nobody(_: str) -> None:
    pass
