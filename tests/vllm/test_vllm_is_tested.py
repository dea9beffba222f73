"""The vLLM of these tests has the version in constraints.txt."""

from importlib.metadata import version
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


def test_the_installed_vllm_is_the_pinned_one():
    release = version("vllm").partition("+")[0]
    assert f"\nvllm=={release}\n" in CONSTRAINTS.read_text()
