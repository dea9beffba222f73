"""Published commands beside our own recommendation: every difference, with its reason."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfbyte.inspect.inspection import open_source
from halfbyte.pipeline import plan
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.facts import Wish
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.knowledge import Published
from halfbyte.serve.launch import Launch, launch
from halfbyte.serve.needs import needs
from halfbyte.serve.served import Served

_ALIASES = {"-tp": "--tensor-parallel-size"}
_NOT_SETTINGS = ("--model", "--port", "--server-port", "--served-model-name")  # which every launch has its own of
_ENGINE_STARTS = re.compile(r"-m \S+\.openai\S*|vllm serve")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_NOTHING = "-"
_INTRODUCTION = """
What the publishers of Kimi checkpoints wrote on their cards (`halfbyte serve --like NAME` prints it), and where
`halfbyte serve` would do otherwise for the same checkpoint, GPUs and wishes. None of ours was run on these GPUs here:
each line gives its reason, and `--set` changes it. Written by `scripts/serve_differences.py` from
`src/halfbyte/serve/data/`.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """One flag or variable that is not the same."""

    flag: str
    theirs: str
    ours: str
    reason: str


def recommended(row: Published) -> Launch:
    """Return our own launch for the checkpoint, the GPUs and the wishes of a published command."""
    options = dict(row.options)
    return launch(compared(row), parse_gpus(row.gpus), Wish(engine=row.engine, **options))


def compared(row: Published) -> Served:
    """Return what a launcher would know of the published checkpoint; its files are not needed."""
    made = plan(open_source(None, row.model.example), load_recipe(row.model.recipe))
    asked = needs(made)
    return Served(
        folder=Path("/path/to/model"),
        family=row.model.family,
        architecture="KimiK25ForConditionalGeneration",
        quantization=row.model.quantization,
        activations=row.model.activations,
        kv_dtype=row.model.kv_dtype,
        experts=row.model.experts,
        uneven=False,
        source_experts=row.model.source_experts,
        vision=True,
        remote_tokenizer=True,  # Kimi's releases have tiktoken's files only
        revision=None,
        context=asked.context,
        heads=asked.heads,
        needs=asked,
    )


def differences(row: Published, ours: Launch) -> list[Difference]:
    """Return what differs, in the order of the published command and then of our own."""
    theirs = flags_of(row.command)
    mine = {_ALIASES.get(one.flag, one.flag): one for one in (*ours.environment, *ours.arguments)}
    found: list[Difference] = []
    for flag in [*theirs, *(flag for flag in mine if flag not in theirs)]:
        if flag in _NOT_SETTINGS:
            continue
        said = theirs.get(flag)
        here = mine.get(flag)
        now = None if here is None else " ".join(here.words[1:])
        if said is None or now is None or not _same(said, now):
            reason = row.instead.get(flag) or (here.reason if here else "")
            found.append(Difference(flag, _shown(said), _shown(now), reason))
    return found


def words_of(command: str) -> list[str]:
    """Return a command's words as a shell sees them."""
    return shlex.split(command.replace("\\\n", " "), comments=True)  # shlex would keep the newline as a word


def flags_of(command: str) -> dict[str, str]:
    """Return the variables and the engine's flags of a published command, with their values; a switch has none."""
    words = words_of(command)
    start = next(index for index in range(len(words) - 1) if _ENGINE_STARTS.fullmatch(" ".join(words[index:][:2])))
    found = dict(word.split("=", 1) for word in words[:start] if _VARIABLE.match(word))
    flag = ""
    for word in words[start + 2 :]:
        if word.startswith("-"):
            flag = _ALIASES.get(word, word)
            found[flag] = ""
        elif flag:
            found[flag] = f"{found[flag]} {word}".strip()
    return found


def _same(a: str, b: str) -> bool:
    """Whether two values mean the same: 0.90 is 0.9, and blocks are compared by what they hold."""
    try:
        return bool(json.loads(a) == json.loads(b))
    except ValueError:
        return a == b


def _shown(value: str | None) -> str:
    return _NOTHING if value is None else value or "on"


def differences_page(compared: Mapping[str, tuple[Published, Launch]]) -> str:
    """Return a page in Markdown: each published command, where it is from, and every difference with its reason."""
    parts = ["# Published commands and ours\n", _INTRODUCTION]
    for name, (row, ours) in compared.items():
        options = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in row.options.items())
        parts.append(f"\n## {name}\n\n{row.title}: {row.source}, on {row.gpus}. {row.note}".rstrip() + "\n")
        parts.append(f"\n```bash\n{row.command}```\n")
        wish = f"`--gpus '{row.gpus}' --engine {row.engine} {options}`".replace(" True", "")
        parts.append(f"\nOurs, {ours.title} {ours.version} for {wish}:\n\n{_table(differences(row, ours))}\n")
    return "".join(parts)


def _table(rows: Sequence[Difference]) -> str:
    lines = ["| flag | published | halfbyte | why |", "|---|---|---|---|"]
    cells = [(f"`{row.flag}`", _code(row.theirs), _code(row.ours), row.reason) for row in rows]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)])


def _code(value: str) -> str:
    return value if value == _NOTHING else f"`{value}`"
