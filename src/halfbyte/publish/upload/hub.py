"""The only module that talks to the Hub, through huggingface_hub's public calls.

huggingface_hub had `upload_large_folder`; version 2 has it no more. Here every file is uploaded by
`preupload_lfs_files` and committed by `create_commit`, which 1.x and 2.x both have. That sends a list of files rather
than a folder, so that nothing else can slip in, and leaves no notes of its own in the folder.

Weights are committed in groups, as they arrive; config, index and card come last, so that a repository whose upload was
cut off cannot be taken for a checkpoint. A file that the repository has already, by its hash, is not read again; one
that arrived but was not committed is not sent again, because the Hub asks only for what it does not have.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.publish.upload.answers import is_passing, sentence, wait_asked
from halfbyte.publish.upload.staging import Sent

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

GROUP_NBYTES = 50 * 10**9  # of weights in one commit
TRIES = 6
FIRST_WAIT_S = 2.0
MOST_WAIT_S = 120.0
SILENCE_S = 600.0  # without a byte from the Hub a connection is dead
MAIN = "main"
_SMALL_NBYTES = 10 * 10**6  # what is not weights; beyond it the Hub wants LFS, and it is sent with the weights
_WEIGHTS = ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?/[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?", re.ASCII)
_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{))[\w][\w./-]{0,200}(?<![./])", re.ASCII)

Kind = Literal["model", "dataset"]
Gated = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class Target:
    """The repository that is written to."""

    repo: str
    kind: Kind = "model"
    revision: str = MAIN
    private: bool = False
    gated: Gated | None = None
    message: str = "Upload by halfbyte"


@dataclass(frozen=True, slots=True)
class Arrived:
    """What an upload did."""

    address: str
    sent: int
    sent_nbytes: int
    there: int  # files that the repository had already
    others: tuple[str, ...]  # files of the repository that are not of this upload


Say = Callable[[str, int, int], None]  # a line, bytes done, bytes of all


def check_name(repo: str, where: str = "REPO") -> str:
    """Return the name of a repository, or refuse it."""
    if _NAME.fullmatch(repo) is None or "--" in repo or ".." in repo or repo.endswith(".git"):
        raise UsageError(f"'{repo}' is no name of a repository", where=where, fix="write organisation/name")
    return repo


def check_branch(name: str) -> str:
    """Return the name of a branch, or refuse it."""
    if _BRANCH.fullmatch(name) is None or name.startswith("refs/"):
        raise UsageError(f"'{name}' is no name of a branch", where="--revision", fix="write it like main or v1.0")
    return name


def upload(files: Sequence[Sent], target: Target, say: Say) -> Arrived:
    """Bring files into a repository, which is made if it is not there."""
    with uploading(target, say) as one:
        return one.run(files)


@contextmanager
def uploading(target: Target, say: Say) -> Generator[Upload]:
    """Give what sends to a repository; whatever goes wrong with it is one sentence."""
    import huggingface_hub  # noqa: PLC0415 - a dry run needs no network's library
    from huggingface_hub.utils import disable_progress_bars  # noqa: PLC0415

    token = huggingface_hub.get_token()
    if token is None:
        fix = "hf auth login, or set HF_TOKEN to a token that may write"
        raise MachineError("nobody is logged in to the Hub", where=target.repo, fix=fix)
    disable_progress_bars()
    _give_up_on_silence(huggingface_hub)
    with _waits_told(lambda line: say(line, -1, -1)), _in_a_sentence(target.repo, token):
        yield Upload(huggingface_hub.HfApi(), target, say)


class Upload:
    """One upload, from making the repository to the last commit."""

    def __init__(self, api: HfApi, target: Target, say: Say) -> None:
        self._api, self._target, self._say = api, target, say
        self._where: dict[str, Any] = {"repo_id": target.repo, "repo_type": target.kind}
        self._done, self._all, self._commits = 0, 0, 0

    def run(self, files: Sequence[Sent]) -> Arrived:
        """Send what the repository does not have; see that all of it is there."""
        self.prepare()
        there = self.there()
        missing = [file for file in files if not is_same(file, there.get(file.name))]
        self._all += sum(file.nbytes for file in missing)
        for group in groups(missing):
            self.send(group)
        after = self.there()
        wrong = [file.name for file in files if not is_same(file, after.get(file.name))]
        if wrong:
            what = f"'{wrong[0]}' did not arrive as it was sent"
            raise MachineError(what, where=self._target.repo, fix="run the same command again")
        names = {file.name for file in files} | {".gitattributes"}
        others = tuple(sorted(name for name in after if name not in names))
        address = str(self._again(lambda: self._api.repo_info(**self._where)).id)
        return Arrived(address, len(missing), self._done, len(files) - len(missing), others)

    def prepare(self) -> None:
        """Make the repository and the branch, and set who may see it, before a byte is there to be seen."""
        target, api = self._target, self._api
        self._again(lambda: api.create_repo(**self._where, private=target.private or None, exist_ok=True))
        if target.private and not self._again(lambda: api.repo_info(**self._where)).private:
            what = "the repository is public already, and --private does not change that"
            raise UsageError(what, where=target.repo, fix="make it private in its settings, or give another name")
        if target.gated is not None:
            gated: Gated = target.gated
            self._again(lambda: api.update_repo_settings(**self._where, gated=gated))
        if target.revision != MAIN:
            self._again(lambda: api.create_branch(**self._where, branch=target.revision, exist_ok=True))

    def there(self) -> dict[str, str]:
        """Return what the branch holds: for each file its SHA-256, or Git's hash where it is small."""
        tree = self._again(
            lambda: list(self._api.list_repo_tree(**self._where, recursive=True, revision=self._target.revision))
        )
        files = [entry for entry in tree if hasattr(entry, "blob_id")]
        return {entry.path: entry.lfs.sha256 if entry.lfs is not None else entry.blob_id for entry in files}

    def send(self, group: Sequence[Sent]) -> None:
        """Upload a group, large files one by one, and commit it."""
        seen = {file.name: _stamp(file) for file in group}
        operations = [_operation(file) for file in group]
        if any(file.nbytes > _SMALL_NBYTES or file.name.endswith(_WEIGHTS) for file in group):
            for file, operation in zip(group, operations, strict=True):
                self._upload([operation])
                self._count([file], f"sent {file.name}", seen)
        else:
            self._upload(operations)
            self._count(group, f"sent {len(group)} small files", seen)
        self._commit(group, operations)

    def _upload(self, operations: Sequence[CommitOperationAdd]) -> None:
        where, revision = self._where, self._target.revision
        self._again(
            lambda: self._api.preupload_lfs_files(**where, additions=operations, revision=revision, free_memory=False)
        )

    def _count(self, files: Sequence[Sent], line: str, seen: Mapping[str, tuple[int, int] | None]) -> None:
        """Note that files were sent; one that changed meanwhile is not what its hash says."""
        for file in files:
            if _stamp(file) != seen[file.name]:
                fix = "let nothing write into the folder meanwhile, and run the same command again"
                raise CheckpointError(f"'{file.name}' changed while it was sent", where=str(file.path), fix=fix)
            self._done += file.nbytes
        self._say(line, self._done, self._all)

    def _commit(self, group: Sequence[Sent], operations: Sequence[CommitOperationAdd]) -> None:
        """Commit a group. An answer that is lost is no reason to commit twice: the branch says whether it is there."""
        self._commits += 1
        message = self._target.message + (f" (part {self._commits})" if self._commits > 1 else "")
        tried = False

        def commit() -> None:
            nonlocal tried
            if tried:
                there = self.there()
                if all(is_same(file, there.get(file.name)) for file in group):
                    return
            tried = True
            self._api.create_commit(
                **self._where, operations=list(operations), commit_message=message, revision=self._target.revision
            )

        self._again(commit)
        self._say(f"committed {len(group)} files", self._done, self._all)

    def _again(self, act: Callable[[], Any]) -> Any:
        """Do something, and again where that may help: huggingface_hub repeats most requests itself, but not all."""
        for attempt in range(1, TRIES + 1):
            try:
                return act()
            except Exception as error:
                if attempt == TRIES or not is_passing(error):
                    raise
                seconds = min(wait_asked(error) or FIRST_WAIT_S * 2 ** (attempt - 1), MOST_WAIT_S)
                told = sentence(error, self._target.repo)
                self._say(f"{told.what if told else 'no answer'}; trying again in {seconds:.0f} s", -1, -1)
                time.sleep(seconds)
        raise AssertionError


def groups(files: Iterable[Sent]) -> Iterator[list[Sent]]:
    """Yield the weights in groups of some size, and then all that is small: without it nothing can be loaded."""
    small: list[Sent] = []
    group: list[Sent] = []
    for file in files:
        if file.data is not None or (file.nbytes < _SMALL_NBYTES and not file.name.endswith(_WEIGHTS)):
            small.append(file)
            continue
        if group and sum(other.nbytes for other in group) + file.nbytes > GROUP_NBYTES:
            yield group
            group = []
        group.append(file)
    yield from (found for found in (group, small) if found)


def _operation(file: Sent) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd  # noqa: PLC0415

    content = file.data if file.data is not None else str(file.path)
    operation = CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=content)
    operation.upload_info.sha256 = bytes.fromhex(file.sha256)  # known: a shard is read once, to be sent
    return operation


def _stamp(file: Sent) -> tuple[int, int] | None:
    if file.path is None:
        return None
    status = file.path.stat()
    return status.st_size, status.st_mtime_ns


def is_same(file: Sent, there: str | None) -> bool:
    """Whether the repository has a file: large ones by SHA-256, small ones by Git's hash of a blob."""
    if there is None or there == file.sha256:
        return there is not None
    if len(there) == len(file.sha256) or file.nbytes > _SMALL_NBYTES:
        return False
    data = file.read()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == there


def _give_up_on_silence(library: Any) -> None:
    """Let a connection that is dead end: huggingface_hub waits for ever."""
    library.get_session().timeout = SILENCE_S


@contextmanager
def _in_a_sentence(repo: str, token: str) -> Generator[None]:
    """Turn whatever the Hub or the network says into one sentence."""
    try:
        yield
    except Exception as error:
        told = sentence(error, repo, token)
        if told is None:
            raise
        raise told from None


@contextmanager
def _waits_told(tell: Callable[[str], None]) -> Generator[None]:
    """Say that huggingface_hub waits, without the addresses that its own log has: those of uploads are signed."""
    logger = logging.getLogger("huggingface_hub")
    handler, before, propagate = _Waits(tell), list(logger.handlers), logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before, propagate


class _Waits(logging.Handler):
    """Passes on what was said about waiting, and nothing else."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the status, and say it with the wait that follows."""
        text = record.getMessage()
        if found := re.search(r"HTTP Error (\d+)", text):
            self._status = f"the Hub answered {found[1]}; "
        elif found := re.search(r"(?:Retrying in|Waiting) ([\d.]+)s", text):
            self._tell(f"{self._status or 'the connection was lost; '}trying again in {float(found[1]):.0f} s")
            self._status = ""
