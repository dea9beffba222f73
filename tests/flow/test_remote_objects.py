"""Object stores through fsspec: a local S3 server (moto), and fsspec's own stores."""

import hashlib
import importlib
import json
import os
import sys

import pytest
from pico import write_pico

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.identity import identity
from halfbyte.checkpoint.remote import object_store as objects
from halfbyte.checkpoint.remote.address import UrlAddress
from halfbyte.checkpoint.remote.download import TransientError
from halfbyte.checkpoint.remote.mirror import Cache, open_remote
from halfbyte.errors import CheckpointError, MachineError, UsageError

RECIPE = "kimi-k2.6-mxfp4-wafer"
SHARD = "model-{:05d}-of-000006.safetensors".format
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture
def source(tmp_path):
    return write_pico(tmp_path / "source")


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(server, source, monkeypatch, tmp_path):
    """A new bucket with the checkpoint; its endpoint is set only in the environment."""
    import boto3
    import s3fs

    for key, value in {**KEYS, "AWS_ENDPOINT_URL": server, "HALFBYTE_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(key, value)
    s3fs.S3FileSystem.clear_instance_cache()
    made = boto3.resource("s3").Bucket(f"b{abs(hash(str(tmp_path)))}")
    made.create()
    for path in sorted(source.rglob("*")):
        if path.is_file():
            made.put_object(Key=f"models/kimi/{path.relative_to(source).as_posix()}", Body=path.read_bytes())
    yield made
    s3fs.S3FileSystem.clear_instance_cache()


def address(bucket):
    return f"s3://{bucket.name}/models/kimi"


def outputs(folder):
    names = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    skipped = ("journal.jsonl", "fetched.json", "verified.json", "hashed.json")
    return {path.relative_to(folder): path.read_bytes() for path in names if path.name not in skipped}


def test_s3_gives_the_files_of_a_local_copy(bucket, source, tmp_path, halfbyte):
    code, out, words = halfbyte("quantize", address(bucket), tmp_path / "remote", "-r", RECIPE, "--cache", "75kB")
    assert code == 0, words
    assert halfbyte("quantize", source, tmp_path / "local", "-r", RECIPE)[0] == 0
    assert outputs(tmp_path / "remote") == outputs(tmp_path / "local")
    assert words.count("MD5 verified") == 6
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert "testing" not in words + out + (tmp_path / "remote/halfbyte/fetched.json").read_text()
    assert "0 of 6 shards match their known SHA-256" not in out
    assert "6 shards, no known SHA-256; 6 match their MD5" in out


def test_headers_and_identity_by_ranges(bucket, source, tmp_path):
    found, here = open_remote(address(bucket), Cache(tmp_path / "cache", 10**9)), open_checkpoint(source)
    assert dict(found.tensors) == dict(here.tensors)
    assert identity(found) == identity(here)


def test_sha256sums_beside_the_shards_count_before_an_etag(bucket, source, tmp_path, halfbyte):
    shards = sorted(source.glob("*.safetensors"))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in shards)
    bucket.put_object(Key="models/kimi/SHA256SUMS", Body=sums.encode())
    code, out, words = halfbyte("quantize", address(bucket), tmp_path / "out", "-r", RECIPE)
    assert code == 0, words
    assert words.count("SHA-256 verified") == 6
    assert "6 of 6 shards match their known SHA-256" in out
    assert not (tmp_path / "out/SHA256SUMS").exists()
    wrong = sums.replace(sums[:8], "0" * 8, 1)
    bucket.put_object(Key="models/kimi/SHA256SUMS", Body=wrong.encode())
    code, _, words = halfbyte("quantize", address(bucket), tmp_path / "other", "-r", RECIPE)
    assert code == 2
    assert "was damaged in two downloads" in words
    assert "SHA256SUMS gives 00000000" in words


def test_what_came_in_parts_has_no_checksum_and_that_is_said(bucket, source, tmp_path, halfbyte):
    client = bucket.meta.client
    key = f"models/kimi/{SHARD(1)}"
    upload = client.create_multipart_upload(Bucket=bucket.name, Key=key)["UploadId"]
    where = {"Bucket": bucket.name, "Key": key, "UploadId": upload}
    part = client.upload_part(**where, PartNumber=1, Body=(source / SHARD(1)).read_bytes())
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    code, _, words = halfbyte("quantize", address(bucket), tmp_path / "out", "-r", RECIPE)
    assert code == 0, words
    assert "no known checksum for 1 of them: only their sizes are compared" in words
    assert f"fetched {SHARD(1)}" in words
    assert words.count("size verified, no checksum available") == 1


def test_an_object_that_is_written_again_meanwhile_is_noticed(bucket, source, tmp_path):
    found = open_remote(address(bucket), Cache(tmp_path / "cache", 10**9), verify=False)
    bucket.put_object(Key=f"models/kimi/{SHARD(2)}", Body=(source / SHARD(3)).read_bytes())  # as long, other bytes
    with pytest.raises(CheckpointError, match=rf"'{SHARD(2)}' changed while it was read"):
        found.remote.open(SHARD(2)).read(0, 8)
    found.remote.close()


def test_a_source_that_changed_is_not_gone_on_with(bucket, source, tmp_path, halfbyte):
    assert halfbyte("quantize", address(bucket), tmp_path / "out", "-r", RECIPE)[0] == 0
    other = write_pico(tmp_path / "other", seed=1)
    bucket.put_object(Key=f"models/kimi/{SHARD(6)}", Body=(other / SHARD(6)).read_bytes())
    (tmp_path / "out" / SHARD(6)).unlink()
    code, _, words = halfbyte("quantize", address(bucket), tmp_path / "out", "-r", RECIPE)
    assert code == 2
    assert "this folder was started from version" in words


def test_what_the_store_refuses_is_said_in_a_sentence(bucket, tmp_path, monkeypatch):
    cache = Cache(tmp_path / "cache", 10**9)
    with pytest.raises(CheckpointError, match=r"no files at this address|a file does not exist or was deleted"):
        open_remote(f"s3://{bucket.name}/nothing", cache)
    with pytest.raises(CheckpointError, match=r"no files at this address|a file does not exist or was deleted"):
        open_remote("s3://no-such-bucket-here/models", cache)
    import s3fs

    for key in KEYS:
        monkeypatch.delenv(key)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(MachineError, match="the store denies access without credentials") as caught:
        open_remote(address(bucket), cache)
    assert "in the environment" in caught.value.fix


@pytest.mark.parametrize("store", ["memory", "file"])
def test_stores_without_checksums_work_too(store, source, tmp_path, halfbyte, monkeypatch):
    import fsspec

    monkeypatch.setenv("HALFBYTE_CACHE", str(tmp_path / "cache"))
    where = f"file://{source}"
    if store == "memory":
        where = "memory://models/kimi"
        fsspec.filesystem("memory").put(f"{source}/", "/models/kimi/", recursive=True)
    code, out, words = halfbyte("quantize", where, tmp_path / "out", "-r", RECIPE, "--cache", "75kB")
    assert code == 0, words
    assert "6 shards, no known SHA-256" in out
    assert halfbyte("quantize", source, tmp_path / "local", "-r", RECIPE)[0] == 0
    assert outputs(tmp_path / "out") == outputs(tmp_path / "local")


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, "s3", raising=False)
    with pytest.raises(MachineError, match="no library for s3:// is installed") as caught:
        open_remote("s3://bucket/folder", Cache(tmp_path, 1))
    assert caught.value.fix == "pip install 's3fs>=2024.6'"
    with pytest.raises(UsageError, match="unknown address scheme hfs://"):
        open_remote("hfs://bucket/folder", Cache(tmp_path, 1))


class Flaky:
    """A store with scripted answers."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def cat_file(self, path, start, end):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [(OSError(5, "busy"), TransientError), (ConnectionError(), TransientError), (TimeoutError(), TransientError),
     (b"", TransientError), (b"too long", TransientError), (FileNotFoundError(), CheckpointError),
     (PermissionError(), MachineError)],
)  # fmt: skip
def test_what_an_answer_means(answer, error):
    files = objects.ObjectFiles(UrlAddress("s3", "b"), {}, Flaky(answer), "b")
    with pytest.raises(error):
        list(files.stream("x", 0, 4))


def test_googles_md5_is_read_from_base64():
    entry = objects._entry({"size": 3, "md5Hash": "kAFQmDzST7DWlj99KOF/cg==", "etag": "CJi="})
    assert (entry.checksum.kind, entry.checksum.value) == ("md5", hashlib.md5(b"abc").hexdigest())


def test_the_version_of_a_listing_is_that_of_weights_and_json():
    def pin(**sizes):
        entries = {name.replace("_", "."): objects._entry({"size": nbytes}) for name, nbytes in sizes.items()}
        return objects.ObjectFiles(UrlAddress("s3", "b"), entries, None, "b").pin

    assert pin(a_safetensors=1, config_json=2, README_md=3) == pin(a_safetensors=1, config_json=2, README_md=4)
    assert pin(a_safetensors=1, config_json=2) != pin(a_safetensors=1, config_json=3)
    assert json.dumps(pin(a_safetensors=1))
    assert os.sep not in pin(a_safetensors=1)
