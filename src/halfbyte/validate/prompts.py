"""Prompts for open-ended text: stories and explanations in plain words, which kimi-mini can answer as well as Kimi."""

from __future__ import annotations

from importlib.resources import files

from halfbyte.errors import UsageError

_FILE = "open_ended.txt"


def open_prompts(count: int | None = None) -> list[str]:
    """Return the prompts that come with the package: stories and explanations, as many as are wanted."""
    text = (files("halfbyte.validate") / "data" / _FILE).read_text(encoding="utf-8")
    prompts = text.splitlines()
    if count is not None and not 1 <= count <= len(prompts):
        raise UsageError(f"there are {len(prompts)} prompts, not {count}", fix=f"ask for 1 to {len(prompts)}")
    if count is None or count == len(prompts):
        return prompts
    return [prompts[at * len(prompts) // count] for at in range(count)]  # evenly: forms follow each other
