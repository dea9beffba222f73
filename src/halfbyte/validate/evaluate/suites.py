"""The suites as data: which tasks of lm-eval, shown and asked how, with which seeds; and a hash of all of it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from halfbyte.errors import UsageError
from halfbyte.terminal.suggest import did_you_mean

_FOLDER = files("halfbyte.validate") / "data" / "suites"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Seeds(_Strict):
    """One pass. They seed lm-eval's generators, which choose the examples shown, not how a server decodes."""

    python: int
    numpy: int
    torch: int
    fewshot: int


class Task(_Strict):
    """One task of lm-eval, and what our checks must know about it."""

    task: str
    folder: str  # below lm_eval/tasks, or, with a leading "./", below the data folder
    datasets: list[str]  # as the task names them; with --data-dir they are folders or files below it
    primary: str  # the metric and filter that decide, chosen beforehand
    api: Literal["completions", "chat"] = "completions"
    kind: Literal["generate", "choose"] = "generate"
    shots: int | None = None
    generation: dict[str, Any] = Field(default_factory=dict)  # on top of the task's own generation_kwargs
    chance: float = 0.0
    cluster: str | None = None  # a column: items with the same value in it are not independent
    generative: str | None = None  # the suite to take where a server cannot compare likelihoods
    short_answer: bool = False  # a letter: equal answers are normal then, and what is no letter is no answer
    few_tokens: bool = False  # so small a limit of tokens that every answer may be cut
    multiturn: bool = False


class Suite(_Strict):
    """What `--suite` names."""

    name: str
    description: str
    concurrency: int
    request_seed: int  # sent with every request; at temperature 0 it changes nothing
    passes: list[Seeds] = Field(min_length=1)
    tasks: list[Task] = Field(min_length=1)
    notes: list[str] = Field(default_factory=list)
    needs_sandbox: bool = False  # its answers are programs, and they are run

    @property
    def apis(self) -> list[str]:
        """The forms in which this suite asks."""
        return sorted({task.api for task in self.tasks}, reverse=True)


def suite_names() -> list[str]:
    """Return the suites that there are."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))


def load_suite(name: str) -> Suite:
    """Return a suite."""
    if name not in suite_names():
        raise UsageError(f"there is no suite '{name}'", where="--suite", fix=did_you_mean(name, suite_names()))
    return parse_suite((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), name)


def parse_suite(text: str, where: str) -> Suite:
    """Read a suite; what nobody would read is an error."""
    try:
        return Suite.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"suite: {first['msg']}", where=f"{where}: {place}", fix="correct the suite's file") from None


def suite_hash(suite: Suite, task_files: list[Path]) -> str:
    """Return one hash of a suite and of the task files that it uses: equal hashes ask the same."""
    digest = hashlib.sha256(suite.model_dump_json(exclude={"description", "notes"}).encode())
    for path in sorted(task_files, key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
