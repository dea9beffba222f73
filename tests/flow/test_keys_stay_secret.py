"""API keys come from the environment and are sent only to their server: not to a terminal, a file or a command line.

The server echoes them in every possible way, and the commands run with -v, which shows tracebacks.
"""

import os
import sys
from pathlib import Path

import pytest
from echoing import echoing, watch

REPOSITORY = Path(__file__).parents[2]
KEY = "sk-canary-4b1d8f0e2a7c9356-of-a-very-long-key"
TOKEN = "hf_canaryQwErTyUiOpAsDfGhJkLzXcVbNm"


@pytest.fixture(params=["401", "500", "200", "hang up"])
def echo(request):
    """A server that echoes requests."""
    with echoing(request.param) as served:
        yield served


COMMANDS = {
    "probe": ("probe", "{url}/v1", "-o", "{out}"),
    "eval": ("eval", "{url}/v1", "--suite", "mini", "--data-dir", str(REPOSITORY), "-o", "{out}"),
    "bench": ("bench", "{url}", "-o", "{out}", "--shape", "8:4", "--concurrency", "1"),
    "inspect": ("inspect", "hf://somebody/something"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_is_shown_to_nobody(echo, tmp_path, name):
    url, handler = echo
    out = tmp_path / "out"
    argv = [word.format(url=url, out=out) for word in COMMANDS[name]]
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "HALFBYTE_API_KEY": KEY, "OPENAI_API_KEY": KEY,
        "HF_TOKEN": TOKEN, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    }  # fmt: skip
    done = watch([sys.executable, "-m", "halfbyte", "-v", *argv], environment, tmp_path / "words.txt", 30)
    assert done.code != 0
    assert any(KEY in sent or TOKEN in sent for sent in handler.seen), "the key was never sent: nothing is tested"
    for secret in (KEY, TOKEN):
        for path in (path for path in tmp_path.rglob("*") if path.is_file()):
            assert secret.encode() not in path.read_bytes(), path
        assert not any(secret.encode() in line for line in done.lines)
