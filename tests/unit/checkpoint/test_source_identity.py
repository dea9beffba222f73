"""Sources of known SHA-256 hashes, on folders laid out by huggingface_hub itself."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hub_layout import COMMIT, as_hub_cache, as_local_dir, sha256, share_blobs

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.hashing import stamps_as_json, stamps_from_json, verify
from halfbyte.checkpoint.identity import hub_blob, known_hashes
from halfbyte.errors import CheckpointError

FIRST, SECOND = "model-00001-of-000006.safetensors", "model-00002-of-000006.safetensors"


@pytest.fixture
def k26(pico):
    return pico("int4-k2.6")


@pytest.fixture
def snapshot(k26, tmp_path):
    return as_hub_cache(k26, tmp_path / "hub")


def shards(folder):
    return sorted(path.name for path in folder.glob("*.safetensors"))


def hashes(folder):
    return {shard: sha256(folder / shard) for shard in shards(folder)}


def what_is_known(folder):
    return {shard: known.sha256 for shard, known in known_hashes(folder, shards(folder)).items()}


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_folder_without_metadata_has_no_expected_hashes(k26):
    assert known_hashes(k26, shards(k26)) == {}


def test_hashes_from_download_metadata(k26):
    as_local_dir(k26)
    assert what_is_known(k26) == hashes(k26)
    remedy = f"hf download ORGANIZATION/NAME {FIRST} --revision {COMMIT} --force-download --local-dir {k26}"
    assert known_hashes(k26, [FIRST])[FIRST].remedy == remedy
    assert not [path for path in open_checkpoint(k26).other_files() if ".cache" in path.parts]


@pytest.mark.parametrize("text", ["", "one line", f"{COMMIT}\n{'0' * 40}\n1.0\n", f"{COMMIT}\n../../x\n1.0\n", "\xff"])
def test_metadata_without_a_sha256_is_ignored(k26, text):
    as_local_dir(k26)
    (k26 / ".cache/huggingface/download" / f"{FIRST}.metadata").write_bytes(text.encode("latin-1"))
    assert what_is_known(k26).keys() == set(shards(k26)) - {FIRST}


def test_hashes_from_the_hub_cache(snapshot, k26):
    assert what_is_known(snapshot) == hashes(k26)
    assert known_hashes(snapshot, [FIRST])[FIRST].remedy == (
        f"hf download some-org/Some-Model {FIRST} --revision {COMMIT} --force-download"
    )
    checkpoint = open_checkpoint(snapshot)
    assert len(checkpoint.tensors) == 138
    assert {path.as_posix() for path in checkpoint.other_files()} >= {"config.json", "figures/score.svg"}


def test_hashes_from_the_hub_cache_with_a_shared_store(snapshot, k26):
    share_blobs(snapshot)
    assert what_is_known(snapshot) == hashes(k26)
    assert len(open_checkpoint(snapshot).tensors) == 138


def test_hashes_from_sha256sums(k26):
    """As sha256sum writes it for text and binary files, and as `find -exec sha256sum` does."""
    first, second, third, *rest = shards(k26)
    lines = [
        f"{hashes(k26)[first]}  {first}",
        f"{hashes(k26)[second]} *{second}",
        f"{hashes(k26)[third].upper()}  ./{third}",
        f"{'0' * 63}  {rest[0]}",
        "a comment",
    ]
    (k26 / "SHA256SUMS").write_text("\n".join(lines))
    assert what_is_known(k26) == {shard: hashes(k26)[shard] for shard in (first, second, third)}
    names = {path.name for path in open_checkpoint(k26).other_files()}
    assert "SHA256SUMS" not in names  # they are the source's, and wrong for the output


def test_hub_hashes_take_precedence_over_sha256sums(k26):
    as_local_dir(k26)
    (k26 / "SHA256SUMS").write_text(f"{'0' * 64}  {FIRST}\n")
    assert what_is_known(k26) == hashes(k26)


# --- links that only look like the Hub's ---


def relink(path, target):
    path.unlink()
    path.symlink_to(target)


def refuses(snapshot):
    with pytest.raises(CheckpointError, match=rf"'{FIRST}' is a link to a path outside the folder"):
        open_checkpoint(snapshot)
    assert hub_blob(snapshot, Path(FIRST)) is None
    return True


def test_a_link_outside_blobs_is_not_a_hub_blob(snapshot):
    shutil.copy(snapshot / FIRST, snapshot.parents[1] / "beside.safetensors")
    relink(snapshot / FIRST, "../../beside.safetensors")
    assert refuses(snapshot)


def test_a_blob_not_named_after_a_hash_is_not_a_hub_blob(snapshot):
    shutil.copy(snapshot / FIRST, snapshot.parents[1] / "blobs" / "stranger")
    relink(snapshot / FIRST, "../../blobs/stranger")
    assert refuses(snapshot)


def test_a_blob_in_a_subfolder_is_not_a_hub_blob(snapshot):
    below = snapshot.parents[1] / "blobs" / ("0" * 64)
    below.mkdir()
    shutil.copy(snapshot / FIRST, below / ("0" * 64))
    relink(snapshot / FIRST, f"../../blobs/{'0' * 64}/{'0' * 64}")
    assert refuses(snapshot)


def test_a_blob_of_another_repository_is_not_a_hub_blob(snapshot, tmp_path):
    other = tmp_path / "hub" / "models--some-org--Other"
    shutil.copytree(snapshot.parents[1], other, symlinks=True)
    relink(snapshot / FIRST, f"../../../{other.name}/blobs/{sha256(snapshot / FIRST)}")
    assert refuses(snapshot)


def test_a_blob_linked_elsewhere_is_not_a_hub_blob(snapshot, tmp_path):
    blob = (snapshot / FIRST).resolve()
    shutil.move(blob, tmp_path / "outside")
    blob.symlink_to(tmp_path / "outside")
    assert refuses(snapshot)


def test_a_linked_blobs_folder_is_not_followed(snapshot, tmp_path):
    shutil.move(snapshot.parents[1] / "blobs", tmp_path / "outside")
    (snapshot.parents[1] / "blobs").symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="is a link to a path outside the folder"):
        open_checkpoint(snapshot)


@pytest.mark.parametrize("spoil", ["marker", "prefix", "name", "link"])
def test_an_invalid_shared_store_is_not_followed(snapshot, tmp_path, spoil):
    share_blobs(snapshot)
    blob = snapshot.parents[1] / "blobs" / sha256(snapshot / FIRST)
    payload = blob.resolve()
    if spoil == "marker":
        (tmp_path / "hub" / "blobs" / ".huggingface-shared-blobs").unlink()
    elif spoil == "prefix":
        (tmp_path / "hub" / "blobs" / "zz").mkdir()
        shutil.move(payload, tmp_path / "hub" / "blobs" / "zz" / payload.name)
        relink(blob, f"../../blobs/zz/{payload.name}")
    elif spoil == "name":
        (tmp_path / "hub" / "blobs" / "st").mkdir()
        shutil.move(payload, tmp_path / "hub" / "blobs" / "st" / "stranger")
        relink(blob, "../../blobs/st/stranger")
    else:
        shutil.move(payload, tmp_path / "outside")
        payload.symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="is a link to a path outside the folder"):
        open_checkpoint(snapshot)


def test_a_folder_outside_a_hub_repository_has_no_blobs(snapshot, tmp_path):
    shutil.move(snapshot.parents[1], tmp_path / "hub" / "mine")
    moved = tmp_path / "hub" / "mine" / "snapshots" / COMMIT
    assert refuses(moved)


def test_a_linked_folder_inside_a_snapshot(snapshot, tmp_path):
    """A file below a linked folder is judged by its real location, not by its path."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.txt").symlink_to(snapshot.parents[1] / "blobs" / sha256(snapshot / FIRST))
    (snapshot / "sub").symlink_to(elsewhere)
    assert hub_blob(snapshot, Path("sub/x.txt")) is None


# --- verifying ---


def test_verified_shards_get_a_stamp(k26):
    as_local_dir(k26)
    seen = []
    stamps = verify(k26, known_hashes(k26, shards(k26)), {}, progress=lambda *event: seen.append(event))
    assert {shard: stamp.sha256 for shard, stamp in stamps.items()} == hashes(k26)
    total = sum((k26 / shard).stat().st_size for shard in shards(k26))
    assert sorted(shard for shard, _, _ in seen) == shards(k26)
    assert seen[-1][1:] == (total, total)


def test_a_stamped_file_is_read_again_only_after_a_change(k26):
    as_local_dir(k26)
    known = known_hashes(k26, shards(k26))
    stamps = stamps_from_json(stamps_as_json(verify(k26, known, {})))
    seen = []
    assert verify(k26, known, stamps, progress=lambda shard, *_: seen.append(shard)) == stamps
    assert seen == []
    os.utime(k26 / FIRST)
    again = verify(k26, known, stamps, progress=lambda shard, *_: seen.append(shard))
    assert seen == [FIRST]
    assert again[FIRST].mtime_ns == (k26 / FIRST).stat().st_mtime_ns != stamps[FIRST].mtime_ns
    wrong = {**stamps, SECOND: replace(stamps[SECOND], sha256="0" * 64)}
    assert verify(k26, known, wrong)[SECOND] == stamps[SECOND]  # a stamp of another download is none


@pytest.mark.parametrize("found", [[], None, 7, {"a": 1}, {"a": [1, 2]}, {"a": ["1", 2, "x"]}])
def test_invalid_stamps_are_skipped(found):
    assert stamps_from_json(found) == {}


def test_a_damaged_shard_is_refused_with_a_remedy(snapshot):
    flip_a_bit((snapshot / SECOND).resolve())
    known = known_hashes(snapshot, shards(snapshot))
    with pytest.raises(CheckpointError) as caught:
        verify(snapshot, known, {})
    error = caught.value
    assert error.what == (
        f"shard '{SECOND}' is damaged: its SHA-256 is {sha256(snapshot / SECOND)}, "
        f"but the Hub gives {known[SECOND].sha256}"
    )
    assert error.where == str(snapshot / SECOND)
    assert f"hf download some-org/Some-Model {SECOND} --revision {COMMIT} --force-download" in error.fix
    assert "--no-verify" in error.fix
