"""Open-ended prompts: stories and explanations in plain words, which both kimi-mini and Kimi can answer."""

from __future__ import annotations

from importlib.resources import files

from halfbyte.errors import UsageError

_FILE = "open_ended.txt"


def open_prompts(count: int | None = None) -> list[str]:
    """Return `count` of the built-in prompts, or all of them."""
    text = (files("halfbyte.degeneracy") / "data" / _FILE).read_text(encoding="utf-8")
    prompts = text.splitlines()
    if count is not None and not 1 <= count <= len(prompts):
        raise UsageError(f"{count} prompts requested, but there are {len(prompts)}", fix=f"request 1 to {len(prompts)}")
    if count is None or count == len(prompts):
        return prompts
    return [prompts[at * len(prompts) // count] for at in range(count)]  # evenly spaced: similar prompts are adjacent
