"""All calls to the Hub, through huggingface_hub's public API.

Files are uploaded with `preupload_lfs_files` and committed with `create_commit`, which exist in huggingface_hub 1.x and
2.x; `upload_large_folder` was removed in 2.x. An explicit list of files excludes anything else in the folder, and the
folder gets no cache files.

Weights are committed in groups as they are uploaded. Config, index and card are committed last, so an interrupted
upload does not look like a complete checkpoint. Files whose hash the repository already has are not read again, and
files that were uploaded but not committed are not sent again.
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
from halfbyte.machine.retry import Backoff
from halfbyte.publish.hub.errors import is_passing, retry_after_s, sentence
from halfbyte.publish.hub.staging import Sent

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

GROUP_NBYTES = 50 * 10**9  # weights per commit
BACKOFF = Backoff(attempts=6, first_wait_s=2.0, longest_wait_s=120.0)
SILENCE_S = 600.0  # timeout of an idle connection
MAIN = "main"
_SMALL_NBYTES = 10 * 10**6  # larger files need LFS and are sent with the weights
_WEIGHTS = ".safetensors"
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?/[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?", re.ASCII)
_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{))[\w][\w./-]{0,200}(?<![./])", re.ASCII)

Kind = Literal["model", "dataset"]
Gated = Literal["auto", "manual"]


@dataclass(frozen=True, slots=True)
class Target:
    """The target repository of an upload."""

    repo: str
    kind: Kind = "model"
    revision: str = MAIN
    private: bool = False
    gated: Gated | None = None
    message: str = "Upload by halfbyte"


@dataclass(frozen=True, slots=True)
class Arrived:
    """The result of an upload."""

    address: str
    sent: int
    sent_nbytes: int
    there: int  # files that the repository already had
    others: tuple[str, ...]  # files in the repository that are not part of this upload


Say = Callable[[str, int, int], None]  # message, bytes done, total bytes


def check_name(repo: str, where: str = "REPO") -> str:
    """Return a repository name, or raise UsageError if it is invalid."""
    if _NAME.fullmatch(repo) is None or "--" in repo or ".." in repo or repo.endswith(".git"):
        raise UsageError(f"'{repo}' is not a valid repository name", where=where, fix="use organization/name")
    return repo


def check_branch(name: str) -> str:
    """Return a branch name, or raise UsageError if it is invalid."""
    if _BRANCH.fullmatch(name) is None or name.startswith("refs/"):
        raise UsageError(f"'{name}' is not a valid branch name", where="--revision", fix="use a name like main or v1.0")
    return name


def upload(files: Sequence[Sent], target: Target, say: Say) -> Arrived:
    """Upload files to a repository, creating it if needed."""
    with uploading(target, say) as session:
        return session.run(files)


@contextmanager
def uploading(target: Target, say: Say) -> Generator[Upload]:
    """Yield an upload session whose errors are converted to HalfbyteError."""
    import huggingface_hub  # noqa: PLC0415 - not needed for a dry run
    from huggingface_hub.utils import disable_progress_bars  # noqa: PLC0415

    token = huggingface_hub.get_token()
    if token is None:
        fix = "run hf auth login, or set HF_TOKEN to a token with write access"
        raise MachineError("not logged in to the Hub", where=target.repo, fix=fix)
    disable_progress_bars()
    _set_timeout(huggingface_hub)
    with _reported_waits(lambda line: say(line, -1, -1)), _converted_errors(target.repo, token):
        yield Upload(huggingface_hub.HfApi(), target, say)


class Upload:
    """One upload, from creating the repository to the last commit."""

    def __init__(self, api: HfApi, target: Target, say: Say) -> None:
        self._api, self._target, self._say = api, target, say
        self._where: dict[str, Any] = {"repo_id": target.repo, "repo_type": target.kind}
        self._done, self._all, self._commits = 0, 0, 0

    def run(self, files: Sequence[Sent]) -> Arrived:
        """Upload the files that the repository lacks, and verify that all files are present."""
        self.prepare()
        there = self.there()
        missing = [file for file in files if not is_same(file, there.get(file.name))]
        self._all += sum(file.nbytes for file in missing)
        for group in groups(missing):
            self.send(group)
        after = self.there()
        wrong = [file.name for file in files if not is_same(file, after.get(file.name))]
        if wrong:
            what = f"'{wrong[0]}' on the Hub does not match the local file"
            raise MachineError(what, where=self._target.repo, fix="run the same command again")
        names = {file.name for file in files} | {".gitattributes"}
        others = tuple(sorted(name for name in after if name not in names))
        address = str(self._retry(lambda: self._api.repo_info(**self._where)).id)
        return Arrived(address, len(missing), self._done, len(files) - len(missing), others)

    def prepare(self) -> None:
        """Create the repository and the branch, and set its visibility before anything is uploaded."""
        target, api = self._target, self._api
        self._retry(lambda: api.create_repo(**self._where, private=target.private or None, exist_ok=True))
        if target.private and not self._retry(lambda: api.repo_info(**self._where)).private:
            what = "the repository is already public, and --private does not change that"
            raise UsageError(what, where=target.repo, fix="make it private in its settings, or use another name")
        if target.gated is not None:
            gated: Gated = target.gated
            self._retry(lambda: api.update_repo_settings(**self._where, gated=gated))
        if target.revision != MAIN:
            self._retry(lambda: api.create_branch(**self._where, branch=target.revision, exist_ok=True))

    def there(self) -> dict[str, str]:
        """Return the files of the branch with their SHA-256, or the Git blob hash of small files."""
        tree = self._retry(
            lambda: list(self._api.list_repo_tree(**self._where, recursive=True, revision=self._target.revision))
        )
        files = [entry for entry in tree if hasattr(entry, "blob_id")]
        return {entry.path: entry.lfs.sha256 if entry.lfs is not None else entry.blob_id for entry in files}

    def send(self, group: Sequence[Sent]) -> None:
        """Upload a group of files, large files one by one, and commit it."""
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
        self._retry(
            lambda: self._api.preupload_lfs_files(**where, additions=operations, revision=revision, free_memory=False)
        )

    def _count(self, files: Sequence[Sent], line: str, seen: Mapping[str, tuple[int, int] | None]) -> None:
        """Count uploaded files. Raise CheckpointError if a file changed during the upload."""
        for file in files:
            if _stamp(file) != seen[file.name]:
                fix = "stop other writers to the folder, then run the same command again"
                raise CheckpointError(f"'{file.name}' changed during the upload", where=str(file.path), fix=fix)
            self._done += file.nbytes
        self._say(line, self._done, self._all)

    def _commit(self, group: Sequence[Sent], operations: Sequence[CommitOperationAdd]) -> None:
        """Commit a group. Before a retry, check the branch: the first commit may have succeeded."""
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

        self._retry(commit)
        self._say(f"committed {len(group)} files", self._done, self._all)

    def _retry(self, act: Callable[[], Any]) -> Any:
        """Call a function, with retries after transient errors; huggingface_hub retries only some requests."""
        for attempt in range(1, BACKOFF.attempts + 1):
            try:
                return act()
            except Exception as error:
                if attempt == BACKOFF.attempts or not is_passing(error):
                    raise
                seconds = BACKOFF.wait_s(attempt, retry_after_s(error) or None)
                known = sentence(error, self._target.repo)
                self._say(f"{known.what if known else 'no answer'}; retrying in {seconds:.0f} s", -1, -1)
                time.sleep(seconds)
        raise AssertionError


def groups(files: Iterable[Sent]) -> Iterator[list[Sent]]:
    """Yield the weights in groups of limited size, then all small files, which are needed to load the checkpoint."""
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
    yield from (last for last in (group, small) if last)


def _operation(file: Sent) -> CommitOperationAdd:
    from huggingface_hub import CommitOperationAdd  # noqa: PLC0415

    content = file.data if file.data is not None else str(file.path)
    operation = CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=content)
    operation.upload_info.sha256 = bytes.fromhex(file.sha256)  # already known, so a shard is read only for the upload
    return operation


def _stamp(file: Sent) -> tuple[int, int] | None:
    if file.path is None:
        return None
    status = file.path.stat()
    return status.st_size, status.st_mtime_ns


def is_same(file: Sent, there: str | None) -> bool:
    """Whether the repository has a file, by SHA-256 or, for small files, by Git blob hash."""
    if there is None or there == file.sha256:
        return there is not None
    if len(there) == len(file.sha256) or file.nbytes > _SMALL_NBYTES:
        return False
    data = file.read()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == there


def _set_timeout(library: Any) -> None:
    """Set a timeout for dead connections; huggingface_hub has none."""
    library.get_session().timeout = SILENCE_S


@contextmanager
def _converted_errors(repo: str, token: str) -> Generator[None]:
    """Convert errors of the Hub and the network to HalfbyteError."""
    try:
        yield
    except Exception as error:
        known = sentence(error, repo, token)
        if known is None:
            raise
        raise known from None


@contextmanager
def _reported_waits(tell: Callable[[str], None]) -> Generator[None]:
    """Report huggingface_hub's retries without the URLs in its log, which may be signed."""
    logger = logging.getLogger("huggingface_hub")
    handler, before, propagate = _Waits(tell), list(logger.handlers), logger.propagate
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before, propagate


class _Waits(logging.Handler):
    """Forwards only log messages about retries."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._status = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Remember an HTTP status, and report it with the wait that follows."""
        text = record.getMessage()
        if match := re.search(r"HTTP Error (\d+)", text):
            self._status = f"the Hub answered {match[1]}; "
        elif match := re.search(r"(?:Retrying in|Waiting) ([\d.]+)s", text):
            self._tell(f"{self._status or 'the connection was lost; '}retrying in {float(match[1]):.0f} s")
            self._status = ""
