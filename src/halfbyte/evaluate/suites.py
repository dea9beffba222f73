"""Load evaluation suites: lm-eval tasks, their prompts and seeds, and a hash of the suite."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from halfbyte.errors import UsageError
from halfbyte.statistics.power import TaskSize
from halfbyte.ui.suggest import did_you_mean

_FOLDER = files("halfbyte.evaluate") / "data" / "suites"
_NOT_QUESTIONS: Any = {
    "description": True,
    "notes": True,
    "tasks": {"__all__": {"items", "clusters", "limit_by_cluster"}},
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Seeds(_Strict):
    """The seeds of one pass. They select few-shot examples and do not affect the server's decoding."""

    python: int
    numpy: int
    torch: int
    fewshot: int


class Task(_Strict):
    """An lm-eval task, with the facts that our checks need."""

    task: str
    folder: str  # below lm_eval/tasks, or, with a leading "./", below the data folder
    datasets: list[str]  # names used by the task; with --data-dir, folders or files below it
    primary: str  # the predefined metric and filter that decide the verdict
    api: Literal["completions", "chat"] = "completions"
    kind: Literal["generate", "choose"] = "generate"
    shots: int | None = None
    generation: dict[str, Any] = Field(default_factory=dict)  # overrides of the task's generation_kwargs
    chance: float = 0.0
    cluster: str | None = None  # column: items with the same value are not independent
    items: int | None = None  # in the test split; the preflight of a release computes the chance to pass with it
    clusters: int | None = None  # different values of `cluster`
    limit_by_cluster: bool = False  # a group of lm-eval tasks: --limit counts the items of each
    generative: str | None = None  # alternative suite for servers without prompt log-probabilities
    short_answer: bool = False  # a single letter: equal answers are normal, other text does not count
    few_tokens: bool = False  # the token limit is so small that truncation is normal
    multiturn: bool = False

    def size(self, limit: int | None) -> TaskSize:
        """Return the number of items with --limit."""
        items, clusters = self.items or 0, self.clusters
        if limit is not None:
            items = min(items, limit * (clusters or 1) if self.limit_by_cluster else limit)
        return TaskSize(self.task, items, clusters)


class Suite(_Strict):
    """An evaluation suite."""

    name: str
    description: str
    concurrency: int
    request_seed: int  # sent with every request; no effect at temperature 0
    passes: list[Seeds] = Field(min_length=1)
    tasks: list[Task] = Field(min_length=1)
    notes: list[str] = Field(default_factory=list)
    needs_sandbox: bool = False  # answers are programs to execute

    def sizes(self, limit: int | None) -> list[TaskSize]:
        """Return the number of items of each task with --limit; none if a task does not state it."""
        if any(task.items is None for task in self.tasks):
            return []
        return [task.size(limit) for task in self.tasks]

    @property
    def apis(self) -> list[str]:
        """The APIs that this suite uses."""
        return sorted({task.api for task in self.tasks}, reverse=True)


def suite_names() -> list[str]:
    """Return the names of all suites."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir() if path.name.endswith(".yaml"))


def load_suite(name: str) -> Suite:
    """Return a suite."""
    if name not in suite_names():
        raise UsageError(f"unknown suite '{name}'", where="--suite", fix=did_you_mean(name, suite_names()))
    return parse_suite((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), name)


def parse_suite(text: str, where: str) -> Suite:
    """Parse a suite. Raise on unknown keys."""
    try:
        return Suite.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"suite: {first['msg']}", where=f"{where}: {place}", fix="correct the suite's file") from None


def suite_hash(suite: Suite, task_files: list[Path]) -> str:
    """Return the hash of a suite and its task files. Equal hashes mean equal questions."""
    digest = hashlib.sha256(suite.model_dump_json(exclude=_NOT_QUESTIONS).encode())
    for path in sorted(task_files, key=lambda path: path.name):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
