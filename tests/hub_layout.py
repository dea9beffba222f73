"""A checkpoint laid out as after a download, by huggingface_hub's own functions."""

import hashlib
import shutil

from huggingface_hub._local_folder import write_download_metadata
from huggingface_hub.file_download import _create_symlink

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def etag(path):
    """The SHA-256 of a large file, which the Hub keeps in LFS; Git's own hash of a small one."""
    if path.suffix == ".safetensors":
        return sha256(path)
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def as_local_dir(folder):
    """The result of `hf download --local-dir`: the files, and metadata for each."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".cache" not in path.parts:
            write_download_metadata(folder, path.relative_to(folder).as_posix(), COMMIT, etag(path))
    return folder


def as_hub_cache(folder, cache):
    """The result of `hf download`: blobs, and a snapshot of links to them. Return the snapshot."""
    repository = cache / "models--some-org--Some-Model"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "blobs").mkdir(parents=True)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            blob, pointer = repository / "blobs" / etag(path), snapshot / path.relative_to(folder)
            pointer.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, blob)
            _create_symlink(str(blob), str(pointer), new_blob=True)
            assert pointer.is_symlink()
    return snapshot


def share_blobs(snapshot):
    """The layout of versions from 2.4 on for Xet files: the blob itself is a link into a shared store."""
    import pytest

    shared = pytest.importorskip("huggingface_hub.utils._shared_blobs", reason="huggingface_hub without a shared store")
    repository = snapshot.parents[1]
    for blob in (repository / "blobs").iterdir():
        nbytes = blob.stat().st_size
        xet = hashlib.sha256(b"xet" + blob.name.encode()).hexdigest()
        cache = repository.parent
        assert shared.publish_blob_to_shared_store(
            blob_path=str(blob), xet_hash=xet, cache_dir=cache, expected_size=nbytes
        )
        assert blob.is_symlink()
        assert blob.resolve().parent.parent == cache / "blobs"
