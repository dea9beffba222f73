"""Keys of the Hub, of object stores and of servers during fetching, building, releasing and publishing.

The server echoes every key. The tests search stdout and stderr with -v, every written file, and the command lines of
all processes while they run.
"""

import os
import sys
from pathlib import Path

import pytest
from echoing import echoing, watch
from release_folder import copy_folder, make_folder, skip_probes

from halfbyte.publish.provenance import write_provenance

REPOSITORY = Path(__file__).parents[2]
KEY = "sk-canary-4b1d8f0e2a7c9356-of-a-very-long-key"
TOKEN = "hf_canaryQwErTyUiOpAsDfGhJkLzXcVbNm"
AWS = "canary+AWS+secret+9f8e7d6c5b4a3210+40chars"
SESSION = "canary-session-token-a1b2c3d4e5f6a7b8c9d0"
RECIPE = "kimi-k2.6-nvfp4a16"
SECONDS = 15  # publishing tries for minutes
SECONDS_OF_RELEASE = 60
RELEASE = """
release:
  audit: {sample: 1}
  probe: {budget: 30s}
  gates: {audit: passed, probe: passed}
  provenance: true
  card: true
  report: true
  publish: {repo: maker/model}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folders(made, tmp_path, monkeypatch):
    skip_probes(monkeypatch)
    source, out = copy_folder(made, tmp_path)
    write_provenance(out, source)
    shipped = REPOSITORY / "src" / "halfbyte" / "recipes" / f"{RECIPE}.yaml"
    (tmp_path / "release.yaml").write_text(shipped.read_text(encoding="utf-8") + RELEASE)
    return tmp_path


@pytest.fixture(params=["401", "500", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("200", "hang up"))])
def echo(request):
    """A server that echoes requests."""
    with echoing(request.param) as served:
        yield served


COMMANDS = {
    "publish": ("publish", "{at}/out", "maker/kimi-4bit"),
    "push": ("quantize", "{at}/source", "{at}/new", "-r", RECIPE, "--push", "maker/model"),
    "hub": ("quantize", "hf://maker/model", "{at}/new", "-r", RECIPE),
    "s3": ("quantize", "s3://bucket/model", "{at}/new", "-r", RECIPE),
    "release": ("release", "{at}/source", "{at}/new", "-r", "{at}/release.yaml", "--url", "{url}/v1", "--force"),
    "release unpublished": (
        "release", "{at}/source", "{at}/new", "-r", "{at}/release.yaml", "--url", "{url}/v1", "--stop-after", "report",
    ),
}  # fmt: skip
RUNS_STAGES = "release unpublished"  # with 401 the preflight rejects the Hub token before any stage starts a process


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_is_shown_to_nobody(echo, folders, name):
    url, handler = echo
    argv = [word.format(url=url, at=folders) for word in COMMANDS[name]]
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "HALFBYTE_API_KEY": KEY, "OPENAI_API_KEY": KEY,
        "HF_TOKEN": TOKEN, "HF_ENDPOINT": url, "HF_HOME": str(folders / "hub"), "HF_HUB_DOWNLOAD_TIMEOUT": "2",
        "AWS_ACCESS_KEY_ID": "AKIACANARYCANARY1234", "AWS_SECRET_ACCESS_KEY": AWS, "AWS_SESSION_TOKEN": SESSION,
        "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1", "HALFBYTE_CACHE": str(folders / "cache"),
    }  # fmt: skip
    seconds = SECONDS_OF_RELEASE if name.startswith("release") else SECONDS
    done = watch([sys.executable, "-m", "halfbyte", "-v", *argv], environment, folders / "words.txt", seconds)
    assert done.code != 0
    sent = [one for one in (KEY, TOKEN, SESSION) if any(one in heard for heard in handler.seen)]
    assert sent, "no key was ever sent: nothing is tested"
    assert len(done.lines) > (1 if name == RUNS_STAGES else 0)
    for secret in (KEY, TOKEN, AWS, SESSION):
        for path in (path for path in folders.rglob("*") if path.is_file()):
            assert secret.encode() not in path.read_bytes(), (path, path.read_bytes().decode(errors="replace")[-1500:])
        assert not any(secret.encode() in line for line in done.lines)
