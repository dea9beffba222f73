"""A checkpoint on the Hugging Face Hub, by its headers: some megabytes of range requests instead of a download."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from halfbyte.collector import paused
from halfbyte.errors import CheckpointError, MachineError, UsageError
from halfbyte.source.checkpoint import (
    CONFIG,
    INDEX,
    READERS,
    SINGLE,
    Checkpoint,
    Promised,
    assemble,
    check_shard_name,
    parse_json,
    promised_shards,
)
from halfbyte.source.headers import LENGTH_NBYTES, header_length

SCHEME = "hf://"
_FIRST_NBYTES = 1024**2  # holds the whole header of a layer of Kimi-K2: one request a shard
_MAX_JSON_NBYTES = 200 * 1024**2
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Repository:
    """A model repository at one commit: its files and their sizes."""

    name: str
    commit: str
    sizes: Mapping[str, int]

    def read(self, file: str, begin: int, end: int) -> bytes:
        """Return a range of a file; a server that sends the whole file instead is cut short."""
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - only who asks the Hub pays for it
        from huggingface_hub.utils import (  # noqa: PLC0415 - likewise
            build_hf_headers,  # pyright: ignore[reportUnknownVariableType] - a bare dict in its signature
            get_session,
            hf_raise_for_status,
        )

        session: Any = get_session()
        headers = {**build_hf_headers(), "Range": f"bytes={begin}-{end - 1}"}
        url = hf_hub_url(self.name, file, revision=self.commit)
        with session.stream("GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True) as response:
            hf_raise_for_status(response)
            skip = 0 if response.status_code == 206 else begin  # noqa: PLR2004 - "partial content"
            found = bytearray()
            for chunk in response.iter_bytes():
                found += chunk
                if len(found) >= skip + end - begin:
                    break
        return bytes(found[skip : skip + end - begin])

    def json(self, file: str) -> dict[str, Any]:
        """Return what a JSON file holds."""
        if file not in self.sizes:
            what = f"{file} is missing"
            raise CheckpointError(what, where=f"{SCHEME}{self.name}", fix="name a repository that holds a checkpoint")
        raw = self.read(file, 0, min(self.sizes[file], _MAX_JSON_NBYTES))
        return parse_json(raw, file, f"{SCHEME}{self.name}/{file}", "tell the repository's owner")

    def header(self, shard: str) -> tuple[bytes, int]:
        """Return the JSON of a shard's header, and the size of the shard."""
        if shard not in self.sizes:
            what = f"shard '{shard}' is missing"
            raise CheckpointError(what, where=f"{SCHEME}{self.name}", fix="tell the repository's owner")
        nbytes = self.sizes[shard]
        first = self.read(shard, 0, min(_FIRST_NBYTES, nbytes))
        end = LENGTH_NBYTES + header_length(first[:LENGTH_NBYTES], nbytes, shard)
        if end > len(first):
            first += self.read(shard, len(first), end)
        return first[LENGTH_NBYTES:end], nbytes


def open_hub(address: str) -> Checkpoint:
    """Read config, index and headers of hf://org/name or hf://org/name@revision."""
    name, _, revision = address.removeprefix(SCHEME).partition("@")
    with _hub_errors(name), paused():
        repository = _look_up(name, revision or None)
        config = repository.json(CONFIG)
        index = repository.json(INDEX) if INDEX in repository.sizes else None
        promised = promised_shards(index) if index is not None else _single(repository)
        for shard in promised:
            check_shard_name(shard)
        with ThreadPoolExecutor(READERS) as pool:
            raw = dict(zip(promised, pool.map(repository.header, promised), strict=True))
        return assemble(Path(f"{SCHEME}{name}"), config, index, promised, raw)


def _look_up(name: str, revision: str | None) -> Repository:
    from huggingface_hub import HfApi  # noqa: PLC0415 - only who asks the Hub pays for it

    info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)
    sizes = {file.rfilename: file.size for file in info.siblings or [] if file.size is not None}
    return Repository(name, info.sha or revision or "main", sizes)


def _single(repository: Repository) -> Promised:
    if SINGLE in repository.sizes:
        return {SINGLE: None}
    what = "there are no safetensors in this repository"
    raise CheckpointError(what, where=f"{SCHEME}{repository.name}", fix="name a repository that holds a checkpoint")


@contextmanager
def _hub_errors(name: str) -> Generator[None]:
    """Say in our words what the Hub or the network answered."""
    from huggingface_hub import errors  # noqa: PLC0415 - only who asks the Hub pays for it

    refuse = partial(CheckpointError, where=f"{SCHEME}{name}")
    try:
        yield
    except errors.HFValidationError:
        fix = "write hf://organisation/name, or hf://organisation/name@revision"
        raise UsageError(f"'{name}' is no name of a repository", where=f"{SCHEME}{name}", fix=fix) from None
    except errors.GatedRepoError:
        fix = f"accept its terms on https://huggingface.co/{name}, then run `hf auth login` or set HF_TOKEN"
        raise refuse("the repository is gated, and you have no access", fix=fix) from None
    except errors.RepositoryNotFoundError:
        fix = "check the name; for a private one run `hf auth login` or set HF_TOKEN"
        raise refuse("there is no such repository, or it is private", fix=fix) from None
    except errors.RevisionNotFoundError:
        raise refuse("the repository has no such revision", fix="check what follows the @") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise refuse(f"the Hub answered with status {status}", fix="try again in a minute") from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        what = f"the Hub cannot be reached: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        fix = "check the network, HF_ENDPOINT and HF_HUB_OFFLINE; or download the checkpoint and give its folder"
        raise MachineError(what, where=f"{SCHEME}{name}", fix=fix) from None
