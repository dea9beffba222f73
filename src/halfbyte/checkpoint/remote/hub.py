"""A model repository on the Hugging Face Hub, pinned to one commit so that two versions cannot mix."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from halfbyte.checkpoint.remote import download
from halfbyte.checkpoint.remote.address import HubAddress
from halfbyte.checkpoint.remote.download import TransientError, no_answer, retry_after, status_of
from halfbyte.checkpoint.remote.store import Checksum, Entry
from halfbyte.errors import CheckpointError, MachineError, UsageError

TIMEOUT_S = 30
_PARTIAL, _OK = 206, 200
_RETRYABLE = (408, 425, 429)
_SERVER_ERROR = 500
_LIST_ATTEMPTS = 4
_NETWORK = "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; or download the checkpoint and pass its folder"


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files in a folder of a repository at one commit."""

    address: HubAddress
    pin: str  # the commit
    entries: Mapping[str, Entry]

    @property
    def where(self) -> str:
        """Return the address as the user gave it."""
        return str(self.address)

    @property
    def label(self) -> str:
        """Return a name built from repository and folder."""
        inner = self.address.folder.split("/") if self.address.folder else []
        return "--".join(["hf", *self.address.repo.split("/"), *inner])

    def stream(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range; if the server sends the whole file instead, skip the rest."""
        import huggingface_hub as hub  # noqa: PLC0415 - imported only when the Hub is used
        from huggingface_hub.utils import (  # noqa: PLC0415 - imported only when the Hub is used
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType] - its signature has a bare dict
            hf_raise_for_status,
        )

        session: Any = hub.get_session()
        # Request the stored bytes: ranges of a compressed response would not match.
        headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        path = f"{self.address.folder}/{name}" if self.address.folder else name
        url = hub.hf_hub_url(self.address.repo, path, revision=self.pin)
        with (
            hub_errors(self.where, transient=True),
            session.stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response,
        ):
            hf_raise_for_status(response)
            skip, left = self._skipped(response, name, begin), end - begin
            for chunk in response.iter_bytes():
                wanted = chunk[skip : skip + left]
                skip, left = max(skip - len(chunk), 0), left - len(wanted)
                if wanted:
                    yield wanted
                if left == 0:
                    return

    def _skipped(self, response: Any, name: str, begin: int) -> int:
        """Return how many bytes of a response precede the range; raise if the response is for another file."""
        if response.status_code == _OK:
            return begin
        content_range = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range") or "")
        if response.status_code != _PARTIAL or content_range is None or int(content_range[1]) != begin:
            raise TransientError("the Hub returned a different range than requested")
        if content_range[2] != "*" and int(content_range[2]) != self.entries[name].nbytes:
            raise _changed(self.where, name)
        return 0

    def refuse_changed(self, name: str) -> None:
        """Do nothing: a commit is immutable."""


def _changed(where: str, name: str) -> CheckpointError:
    what = f"the size of '{name}' does not match the Hub's listing"
    return CheckpointError(what, where=where, fix="try again; if it persists, report it to the repository's owner")


def open_hub(address: HubAddress, commit: str | None = None) -> HubFiles:
    """List a repository at its revision, or at the commit of an earlier run."""
    where = str(address)
    with hub_errors(where):
        info = _list_files(address.repo, commit or address.revision)
    if info.sha is None:
        raise CheckpointError("the Hub returned no commit", where=where, fix="append @COMMIT to the address")
    prefix = f"{address.folder}/" if address.folder else ""
    siblings: list[Any] = info.siblings or []
    entries = {
        str(file.rfilename).removeprefix(prefix): _entry(file)
        for file in siblings
        if file.rfilename.startswith(prefix) and file.size is not None
    }
    return HubFiles(address, info.sha, entries)


def _list_files(repo: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi, errors  # noqa: PLC0415 - imported only when the Hub is used

    api = HfApi()
    for attempt in range(1, _LIST_ATTEMPTS + 1):
        try:
            return api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        except errors.HfHubHTTPError as error:
            if attempt == _LIST_ATTEMPTS or not _is_transient(status_of(error)):
                raise
            time.sleep(download.BACKOFF.wait_s(attempt + 1, retry_after(error)))
    raise AssertionError


def _is_transient(status: int | None) -> bool:
    return status is not None and (status in _RETRYABLE or status >= _SERVER_ERROR)


def _entry(file: Any) -> Entry:
    if file.lfs is not None:
        sha256 = str(file.lfs.sha256)
        return Entry(file.size, sha256, Checksum("sha256", sha256, "the Hub"))
    blob = str(file.blob_id or "")
    return Entry(file.size, blob, Checksum("git", blob, "the Hub") if blob else None)


@contextmanager
def hub_errors(where: str, *, transient: bool = False) -> Generator[None]:
    """Convert Hub and network errors to HalfbyteError; with `transient`, TransientError if a retry may help."""
    from huggingface_hub import errors  # noqa: PLC0415 - imported only when the Hub is used

    refuse = partial(CheckpointError, where=where)
    try:
        yield
    except errors.HFValidationError:
        fix = "use hf://organization/name or hf://organization/name@revision"
        raise UsageError(f"'{where}' is not a valid repository name", where=where, fix=fix) from None
    except errors.GatedRepoError:
        fix = "accept its terms on its page on huggingface.co, then run `hf auth login` or set HF_TOKEN"
        raise refuse("the repository is gated and you do not have access", fix=fix) from None
    except errors.RepositoryNotFoundError:
        fix = "check the name; for a private repository run `hf auth login` or set HF_TOKEN"
        raise refuse("the repository does not exist or is private", fix=fix) from None
    except errors.RevisionNotFoundError:
        raise refuse("the repository has no such revision", fix="check the revision after the @") from None
    except errors.HfHubHTTPError as error:
        status = status_of(error)
        if transient and _is_transient(status):
            raise TransientError(f"the Hub returned status {status}", retry_after(error)) from None
        raise refuse(f"the Hub returned status {status or '?'}", fix="try again in a minute") from None
    except errors.OfflineModeIsEnabled as error:
        raise _unreachable(error, where) from None
    except Exception as error:
        if not (no_answer(error) or isinstance(error, OSError)):
            raise
        if transient:
            raise TransientError(f"the connection was lost ({type(error).__name__})") from None
        raise _unreachable(error, where) from None


def _unreachable(error: BaseException, where: str) -> MachineError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return MachineError(f"the Hub cannot be reached: {reason}", where=where, fix=_NETWORK)
