"""A model repository of the Hugging Face Hub at one commit: a branch that moves meanwhile cannot mix two versions."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.machine.network import no_answer, retry_after, status_of
from halfbyte.source.remote import patience
from halfbyte.source.remote.address import HubAddress
from halfbyte.source.remote.files import Checksum, Entry
from halfbyte.source.remote.patience import PassingError

TIMEOUT_S = 30
_PARTIAL, _OK = 206, 200
_PASSING = (408, 425, 429)
_SERVER = 500
_LISTINGS = 4  # attempts
_NETWORK = "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; or download the checkpoint and give its folder"


@dataclass(frozen=True, slots=True)
class HubFiles:
    """The files below a folder of a repository at one commit."""

    address: HubAddress
    pin: str  # the commit
    entries: Mapping[str, Entry]

    @property
    def where(self) -> str:
        """Return the address as it was written."""
        return str(self.address)

    @property
    def label(self) -> str:
        """Return the name of the repository and of the folder in it."""
        inner = self.address.folder.split("/") if self.address.folder else []
        return "--".join(["hf", *self.address.repo.split("/"), *inner])

    def stream(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a range; a server that sends the whole file instead is read past and cut short."""
        import huggingface_hub as hub  # noqa: PLC0415 - only who asks the Hub pays for it
        from huggingface_hub.utils import (  # noqa: PLC0415 - likewise
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType] - a bare dict in its signature
            hf_raise_for_status,
        )

        session: Any = hub.get_session()
        # Bytes as they are stored: a range of what was compressed on the way is a range of something else.
        headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        path = f"{self.address.folder}/{name}" if self.address.folder else name
        url = hub.hf_hub_url(self.address.repo, path, revision=self.pin)
        with (
            hub_errors(self.where, passing=True),
            session.stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response,
        ):
            hf_raise_for_status(response)
            skip, left = self._begins(response, name, begin), end - begin
            for chunk in response.iter_bytes():
                wanted = chunk[skip : skip + left]
                skip, left = max(skip - len(chunk), 0), left - len(wanted)
                if wanted:
                    yield wanted
                if left == 0:
                    return

    def _begins(self, response: Any, name: str, begin: int) -> int:
        """Return how many bytes of an answer lie before the range; refuse an answer about another file."""
        if response.status_code == _OK:
            return begin
        said = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("content-range") or "")
        if response.status_code != _PARTIAL or said is None or int(said[1]) != begin:
            raise PassingError("the Hub answered with another range than it was asked for")
        if said[2] != "*" and int(said[2]) != self.entries[name].nbytes:
            raise _changed(self.where, name)
        return 0

    def refuse_changed(self, name: str) -> None:
        """Do nothing: a commit does not change."""


def _changed(where: str, name: str) -> CheckpointError:
    what = f"'{name}' is not as long as the Hub says that it is"
    return CheckpointError(what, where=where, fix="try again; if it stays so, tell the repository's owner")


def open_hub(address: HubAddress, commit: str | None = None) -> HubFiles:
    """List a repository at its revision, or at a commit that was found before."""
    where = str(address)
    with hub_errors(where):
        info = _listed(address.repo, commit or address.revision)
    if info.sha is None:
        raise CheckpointError("the Hub names no commit", where=where, fix="give one after an @")
    prefix = f"{address.folder}/" if address.folder else ""
    siblings: list[Any] = info.siblings or []
    entries = {
        str(file.rfilename).removeprefix(prefix): _entry(file)
        for file in siblings
        if file.rfilename.startswith(prefix) and file.size is not None
    }
    return HubFiles(address, info.sha, entries)


def _listed(repo: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi, errors  # noqa: PLC0415 - only who asks the Hub pays for it

    api = HfApi()
    for attempt in range(1, _LISTINGS + 1):
        try:
            return api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        except errors.HfHubHTTPError as error:
            if attempt == _LISTINGS or not _may_pass(status_of(error)):
                raise
            asked = retry_after(error)
            time.sleep(min(patience.FIRST_WAIT_S * 2**attempt if asked is None else asked, patience.MOST_WAIT_S))
    raise AssertionError


def _may_pass(status: int | None) -> bool:
    return status is not None and (status in _PASSING or status >= _SERVER)


def _entry(file: Any) -> Entry:
    if file.lfs is not None:
        sha256 = str(file.lfs.sha256)
        return Entry(file.size, sha256, Checksum("sha256", sha256, "the Hub"))
    blob = str(file.blob_id or "")
    return Entry(file.size, blob, Checksum("git", blob, "the Hub") if blob else None)


@contextmanager
def hub_errors(where: str, *, passing: bool = False) -> Generator[None]:
    """Say in our words what the Hub or the network answered; with `passing`, what may be over soon is no end yet."""
    from huggingface_hub import errors  # noqa: PLC0415 - only who asks the Hub pays for it

    refuse = partial(CheckpointError, where=where)
    try:
        yield
    except errors.HFValidationError:
        fix = "write hf://organisation/name, or hf://organisation/name@revision"
        raise UsageError(f"'{where}' is no name of a repository", where=where, fix=fix) from None
    except errors.GatedRepoError:
        fix = "accept its terms on its page on huggingface.co, then run `hf auth login` or set HF_TOKEN"
        raise refuse("the repository is gated, and you have no access", fix=fix) from None
    except errors.RepositoryNotFoundError:
        fix = "check the name; for a private one run `hf auth login` or set HF_TOKEN"
        raise refuse("there is no such repository, or it is private", fix=fix) from None
    except errors.RevisionNotFoundError:
        raise refuse("the repository has no such revision", fix="check what follows the @") from None
    except errors.HfHubHTTPError as error:
        status = status_of(error)
        if passing and _may_pass(status):
            raise PassingError(f"the Hub answered with status {status}", retry_after(error)) from None
        raise refuse(f"the Hub answered with status {status or '?'}", fix="try again in a minute") from None
    except errors.OfflineModeIsEnabled as error:
        raise _unreachable(error, where) from None
    except Exception as error:
        if not (no_answer(error) or isinstance(error, OSError)):
            raise
        if passing:
            raise PassingError(f"the connection was lost ({type(error).__name__})") from None
        raise _unreachable(error, where) from None


def _unreachable(error: BaseException, where: str) -> MachineError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return MachineError(f"the Hub cannot be reached: {said}", where=where, fix=_NETWORK)
