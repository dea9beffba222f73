"""Parsing of addresses, without network access."""

import pytest

from halfbyte.checkpoint.remote.address import HubAddress, UrlAddress, is_remote, parse_address
from halfbyte.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://org/name", HubAddress("org/name")),
        ("hf://org/name@v1.0", HubAddress("org/name", "v1.0")),
        ("hf://org/name@v1.0/nvfp4/a", HubAddress("org/name", "v1.0", "nvfp4/a")),
        ("hf://org/name/nvfp4", HubAddress("org/name", None, "nvfp4")),
        ("hf://org/name@refs/pr/12", HubAddress("org/name", "refs/pr/12")),
        ("hf://org/name@refs/pr/12/nvfp4", HubAddress("org/name", "refs/pr/12", "nvfp4")),
        ("hf://org/name@my%2Fbranch/x", HubAddress("org/name", "my/branch", "x")),
        ("hf://org/name/", HubAddress("org/name")),
        ("s3://bucket/models/kimi/", UrlAddress("s3", "bucket/models/kimi")),
        ("gs://bucket", UrlAddress("gs", "bucket")),
        ("S3://Bucket/K", UrlAddress("s3", "Bucket/K")),
        ("file:///data/kimi", UrlAddress("file", "/data/kimi")),
        ("memory://a/b", UrlAddress("memory", "a/b")),
    ],
)
def test_valid_addresses_are_parsed(text, expected):
    assert is_remote(text)
    assert parse_address(text) == expected


def test_an_address_is_written_as_it_is_read():
    for text in ("hf://org/name", "hf://org/name@v1/a/b", "s3://bucket/models/kimi"):
        assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["kimi", "./hf:/x", "/data/a://b", "C:\\models", "a b://c", "://x", "../s3://a"])
def test_local_paths_are_not_addresses(text):
    assert not is_remote(text)


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://name", "hf://org/", "hf://org/na me", "hf://org/name@", "hf://a/b/c@v1", "hf://../b", "hf://org/n/../x",
     "hf://org/name@v1/a//b", "s3://", "s3:///", "s3://bucket/../other"],
)  # fmt: skip
def test_invalid_addresses_are_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "use " in caught.value.fix


def test_a_web_page_of_the_hub_is_refused():
    with pytest.raises(UsageError) as caught:
        parse_address("https://huggingface.co/moonshotai/Kimi-K2.6")
    assert caught.value.fix == "use hf://moonshotai/Kimi-K2.6"


def test_a_password_is_refused_and_not_repeated():
    with pytest.raises(UsageError) as caught:
        parse_address("s3://user:s3cr3t@bucket/folder")
    assert "s3cr3t" not in str(caught.value)
