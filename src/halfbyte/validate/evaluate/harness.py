"""lm-evaluation-harness as a library: everything it needs is there before anything is asked, then a task at a time."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.extras import install_extra
from halfbyte.validate.evaluate.data_sets import data_hash
from halfbyte.validate.evaluate.preflight import Preflight
from halfbyte.validate.evaluate.programs import use_sandbox
from halfbyte.validate.evaluate.samples import Sample, Side, read_samples
from halfbyte.validate.evaluate.store import Scope, Store
from halfbyte.validate.evaluate.suites import Seeds, Suite, Task, suite_hash
from halfbyte.validate.sending import Sender

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_QUIET = {"TQDM_DISABLE": "1"}


@dataclass(frozen=True, slots=True)
class Harness:
    """lm-eval with a suite's tasks loaded: their files, data and hash."""

    suite: Suite
    hash: str
    version: str
    task_files: dict[str, str]  # file -> SHA-256
    data: dict[str, str]  # task -> hash of its rows
    data_folder: Path
    managers: dict[str, Any]  # by folder of tasks
    cache: tempfile.TemporaryDirectory[str] | None  # lives as long as this does
    sandbox: str | None  # where programs run, in words


def load_harness(suite: Suite, data_dir: Path | None) -> Harness:
    """Import lm-eval, find the suite's tasks and read their data; what is missing is said here."""
    folder = (data_dir or Path()).resolve()
    local = data_dir is not None or all(task.folder.startswith("./") for task in suite.tasks)
    if local:
        _find_data(suite, folder)
    with _told(_OFFLINE | _QUIET if local else _QUIET):
        return _loaded(suite, folder, local=local)


@contextmanager
def _told(variables: Mapping[str, str]) -> Generator[None]:
    """Tell libraries something that they read when they are imported, and nobody who comes after them.

    Some set variables of their own meanwhile; those go as well.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name not in before]:
            del os.environ[name]
        os.environ.update(before)


def _loaded(suite: Suite, folder: Path, *, local: bool) -> Harness:
    tasks_module, lm_eval = _import("lm_eval.tasks"), _import("lm_eval")
    # After each task it lists every installed package, and git complains where the data is in no repository. Both take
    # time, and nobody reads them here.
    evaluator = _import("lm_eval.evaluator")
    evaluator.add_env_info = lambda _: None  # pyright: ignore[reportUnknownLambdaType]
    evaluator.get_git_commit_hash = lambda: None
    cache = _own_cache() if local else None
    sandbox = use_sandbox().sentence if suite.needs_sandbox else None
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    own = Path(lm_eval.__file__).parent / "tasks"
    managers: dict[str, Any] = {}
    files: list[Path] = []
    data: dict[str, str] = {}
    for task in suite.tasks:
        where = folder / task.folder if task.folder.startswith("./") else own / task.folder
        if task.folder not in managers:
            managers[task.folder] = tasks_module.TaskManager(include_path=[str(where)], include_defaults=False)
            files += sorted(path for path in where.rglob("*") if path.is_file() and "yaml" in path.name)
        with inside(folder):
            loaded = _load(managers[task.folder], task, folder if local else None)
            data[task.task] = data_hash(loaded, str(folder) if local else ", ".join(task.datasets))
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    version = importlib.metadata.version("lm_eval")
    return Harness(suite, suite_hash(suite, files), version, digests, data, folder, managers, cache, sandbox)


def _own_cache() -> tempfile.TemporaryDirectory[str]:
    """Keep what is read from local files apart from the user's cache.

    Without the network `datasets` takes a set from there by its name: a `gsm8k` of another folder, with other rows.
    """
    folder = tempfile.TemporaryDirectory(prefix="halfbyte-eval-")
    _import("datasets.config").HF_DATASETS_CACHE = Path(folder.name)
    return folder


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        what = f"lm-evaluation-harness is not installed here ({error.name or error} is missing)"
        raise MachineError(what, where="halfbyte eval", fix=install_extra("eval")) from None


def _find_data(suite: Suite, folder: Path) -> None:
    for task in suite.tasks:
        for name in [*task.datasets, *([task.folder] if task.folder.startswith("./") else [])]:
            if not (folder / name).exists():
                raise _no_data(name, task, folder)


def _no_data(name: str, task: Task, folder: Path | None, why: str = "") -> UsageError:
    if task.folder.startswith("./"):
        fix = "run it in halfbyte's repository, or give the repository with --data-dir"
        return UsageError(f"{task.task} needs {name}, and it is not here", where=str(folder), fix=fix)
    what = f"{task.task} needs the data set {name}, and it " + (
        f"cannot be read from {folder}" if why else f"is not in {folder}" if folder else "cannot be fetched"
    )
    fix = (
        f"give --data-dir DIR with DIR/{name}/: the files in the original columns, and a README.md whose front matter "
        "lists `configs` (config_name, data_files with split and path)"
    )
    return UsageError(what + why, where=task.task, fix=fix)


def _load(manager: Any, task: Task, folder: Path | None) -> dict[str, Any]:
    """Read a task's data, which is what takes the network, so that what is missing is said now; return its parts."""
    if task.task not in manager.all_tasks:
        what = f"this version of lm-eval has no task '{task.task}'"
        raise MachineError(what, where=task.folder, fix="pip install 'lm_eval[api]==0.4.13'")
    try:
        return manager.load([task.task])["tasks"]
    except Exception as error:  # lm-eval and datasets raise what they like; a missing column is an error of a template
        cause = error.__cause__ or error
        why = f" ({type(cause).__name__}: {' '.join(str(cause).split())[:200]})"
        raise _no_data(", ".join(task.datasets), task, folder, why) from None


@contextmanager
def inside(folder: Path) -> Generator[None]:
    """Work in a folder for a while: a data set's name is a folder there before it is a name on the Hub."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the two sides: an endpoint that passed the pre-flight, and how it is asked."""

    side: Side
    ready: Preflight
    fingerprint: str
    again: bool  # the other side has the same fingerprint: its answers are not taken for this one's
    concurrency: int
    store: Store
    progress: Callable[[str, int, int], None]  # what, finished, of how many

    def soon(self, seconds: float) -> Arm:
        """The same, for somebody who waits no longer than that for an answer."""
        return replace(self, ready=replace(self.ready, endpoint=replace(self.ready.endpoint, timeout_s=seconds)))


@dataclass(frozen=True, slots=True)
class Pass:
    """One task with one set of seeds."""

    task: Task
    seeds: Seeds
    limit: int | None

    @property
    def title(self) -> str:
        """How to call it while it runs."""
        return f"{self.task.task}, seed {self.seeds.fewshot}"


def run_pass(harness: Harness, arm: Arm, one: Pass, sent: list[str]) -> list[Sample]:
    """Ask one task once and return its items; `sent` gets the names of the requests that are sent for it now."""
    recording: Any = importlib.import_module("halfbyte.validate.evaluate.recording")
    simple_evaluate: Any = importlib.import_module("lm_eval").simple_evaluate
    task, identity = one.task, arm.ready.identity
    asked = f"{arm.fingerprint} again" if arm.again else arm.fingerprint
    scope = Scope(identity.url, identity.model, asked, harness.suite.name, task.task, one.seeds.fewshot)
    recorder = recording.Recorder(
        Sender(arm.ready.endpoint, arm.concurrency),
        arm.store,
        scope,
        identity.max_context,
        arm.ready.tokens,
        functools.partial(arm.progress, f"{arm.side}: {one.title}"),
        asked=sent,
    )
    kind = recording.RecordingChat if task.api == "chat" else recording.RecordingCompletions
    with inside(harness.data_folder):
        found = simple_evaluate(
            model=kind(recorder, request_seed=harness.suite.request_seed),
            tasks=[task.task],
            task_manager=harness.managers[task.folder],
            num_fewshot=task.shots,
            gen_kwargs=dict(task.generation) or None,
            limit=one.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=task.api == "chat",
            fewshot_as_multiturn=task.multiturn,
            random_seed=one.seeds.python,
            numpy_random_seed=one.seeds.numpy,
            torch_random_seed=one.seeds.torch,
            fewshot_random_seed=one.seeds.fewshot,
            confirm_run_unsafe_code=harness.sandbox is not None,
        )
    arm.store.sync()
    samples: list[Sample] = []
    for subtask, rows in found["samples"].items():
        about = {"side": arm.side, "task": task.task, "subtask": subtask, "seed": one.seeds.fewshot}
        samples += read_samples(rows, recorder.records, about, task.cluster)
    return samples


def as_reference(samples: list[Sample]) -> list[Sample]:
    """Return an earlier candidate's items as what a new one is compared with."""
    return [replace(one, side="reference") for one in samples if one.side == "candidate"]
