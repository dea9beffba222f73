"""Run lm-evaluation-harness as a library: check its requirements first, then run one task at a time."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import json
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.endpoint.sending import Sender
from halfbyte.errors import MachineError, UsageError
from halfbyte.evaluate.preflight import Preflight
from halfbyte.evaluate.programs import use_sandbox
from halfbyte.evaluate.samples import Sample, Scope, Side, Store, read_samples
from halfbyte.evaluate.suites import Seeds, Suite, Task, suite_hash
from halfbyte.machine.extras import install_extra

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_QUIET = {"TQDM_DISABLE": "1"}


@dataclass(frozen=True, slots=True)
class Harness:
    """lm-eval with the tasks of a suite loaded."""

    suite: Suite
    hash: str
    version: str
    task_files: dict[str, str]  # file -> SHA-256
    data: dict[str, str]  # task -> hash of its rows
    data_folder: Path
    managers: dict[str, Any]  # by task folder
    cache: tempfile.TemporaryDirectory[str] | None  # kept alive by this object
    sandbox: str | None  # description of the sandbox


def load_harness(suite: Suite, data_dir: Path | None) -> Harness:
    """Import lm-eval and load the suite's tasks and data. Raise if something is missing."""
    folder = (data_dir or Path()).resolve()
    local = data_dir is not None or all(task.folder.startswith("./") for task in suite.tasks)
    if local:
        _find_data(suite, folder)
    with _environment(_OFFLINE | _QUIET if local else _QUIET):
        return _loaded(suite, folder, local=local)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Generator[None]:
    """Set environment variables while libraries are imported, then restore the environment.

    Variables that the libraries set are removed too.
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
    # After each task, lm-eval lists all installed packages and calls git. Both are slow, and the results are not used.
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
    digests = {path.name: file_sha256(path) for path in files}
    version = importlib.metadata.version("lm_eval")
    return Harness(suite, suite_hash(suite, files), version, digests, data, folder, managers, cache, sandbox)


def _own_cache() -> tempfile.TemporaryDirectory[str]:
    """Use a temporary `datasets` cache for local files.

    Offline, `datasets` finds cached data by name, so it could use a `gsm8k` from another folder.
    """
    folder = tempfile.TemporaryDirectory(prefix="halfbyte-eval-")
    _import("datasets.config").HF_DATASETS_CACHE = Path(folder.name)
    return folder


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        what = f"lm-evaluation-harness is not installed ({error.name or error} is missing)"
        raise MachineError(what, where="halfbyte eval", fix=install_extra("eval")) from None


def _find_data(suite: Suite, folder: Path) -> None:
    for task in suite.tasks:
        for name in [*task.datasets, *([task.folder] if task.folder.startswith("./") else [])]:
            if not (folder / name).exists():
                raise _no_data(name, task, folder)


def _no_data(name: str, task: Task, folder: Path | None, why: str = "") -> UsageError:
    if task.folder.startswith("./"):
        fix = "run the command in halfbyte's repository, or pass the repository as --data-dir"
        return UsageError(f"{task.task} needs {name}, which does not exist", where=str(folder), fix=fix)
    what = f"{task.task} needs the data set {name}, which " + (
        f"cannot be read from {folder or 'the Hub'}"
        if why
        else f"is not in {folder}"
        if folder
        else "cannot be downloaded"
    )
    fix = (
        f"pass --data-dir DIR with DIR/{name}/: files with the original columns, and a README.md whose front matter "
        "lists `configs` (config_name, data_files with split and path)"
    )
    return UsageError(what + why, where=task.task, fix=fix)


def _load(manager: Any, task: Task, folder: Path | None) -> dict[str, Any]:
    """Load a task's data, from the network if needed, and return its parts. Raise if data is missing."""
    if task.task not in manager.all_tasks:
        what = f"this version of lm-eval has no task '{task.task}'"
        raise MachineError(what, where=task.folder, fix="pip install 'lm_eval[api]==0.4.13'")
    try:
        return manager.load([task.task])["tasks"]
    except Exception as error:  # lm-eval and datasets raise any exception
        cause = error.__cause__ or error
        why = f" ({type(cause).__name__}: {' '.join(str(cause).split())[:200]})"
        raise _no_data(", ".join(task.datasets), task, folder, why) from None


@contextmanager
def inside(folder: Path) -> Generator[None]:
    """Change the working directory temporarily. `datasets` looks for a folder of that name before the Hub."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the two sides: an endpoint that passed the preflight, and its settings."""

    side: Side
    ready: Preflight
    fingerprint: str
    again: bool  # the other side has the same fingerprint, and its answers must not be reused
    concurrency: int
    store: Store
    progress: Callable[[str, int, int], None]  # title, finished, total

    def soon(self, seconds: float) -> Arm:
        """Return a copy with a shorter request timeout."""
        return replace(self, ready=replace(self.ready, endpoint=replace(self.ready.endpoint, timeout_s=seconds)))


@dataclass(frozen=True, slots=True)
class Pass:
    """One task with one set of seeds."""

    task: Task
    seeds: Seeds
    limit: int | None

    @property
    def title(self) -> str:
        """The title in progress lines."""
        return f"{self.task.task}, seed {self.seeds.fewshot}"


def run_pass(harness: Harness, arm: Arm, task_pass: Pass, sent: list[str]) -> list[Sample]:
    """Run one pass of a task and return its items. The keys of sent requests are added to `sent`."""
    recording: Any = importlib.import_module("halfbyte.evaluate.recording")
    simple_evaluate: Any = importlib.import_module("lm_eval").simple_evaluate
    task, identity = task_pass.task, arm.ready.identity
    fingerprint = f"{arm.fingerprint} again" if arm.again else arm.fingerprint
    scope = Scope(identity.url, identity.model, fingerprint, harness.suite.name, task.task, task_pass.seeds.fewshot)
    recorder = recording.Recorder(
        Sender(arm.ready.endpoint, arm.concurrency),
        arm.store,
        scope,
        identity.max_context,
        arm.ready.tokens,
        functools.partial(arm.progress, f"{arm.side}: {task_pass.title}"),
        sent=sent,
    )
    model_class = recording.RecordingChat if task.api == "chat" else recording.RecordingCompletions
    with inside(harness.data_folder):
        result = simple_evaluate(
            model=model_class(recorder, request_seed=harness.suite.request_seed),
            tasks=[task.task],
            task_manager=harness.managers[task.folder],
            num_fewshot=task.shots,
            gen_kwargs=dict(task.generation) or None,
            limit=task_pass.limit,
            bootstrap_iters=0,
            log_samples=True,
            apply_chat_template=task.api == "chat",
            fewshot_as_multiturn=task.multiturn,
            random_seed=task_pass.seeds.python,
            numpy_random_seed=task_pass.seeds.numpy,
            torch_random_seed=task_pass.seeds.torch,
            fewshot_random_seed=task_pass.seeds.fewshot,
            confirm_run_unsafe_code=harness.sandbox is not None,
        )
    arm.store.sync()
    samples: list[Sample] = []
    for subtask, rows in result["samples"].items():
        about = {"side": arm.side, "task": task.task, "subtask": subtask, "seed": task_pass.seeds.fewshot}
        samples += read_samples(rows, recorder.records, about, task.cluster)
    return samples


def as_reference(samples: list[Sample]) -> list[Sample]:
    """Return the candidate's items of an earlier run as reference items."""
    return [replace(sample, side="reference") for sample in samples if sample.side == "candidate"]


# Check and hash the rows of a task before the first request.
#
# Runs with equal hashes use the same items and draw few-shot examples from the same rows.


def data_hash(loaded: dict[str, Any], where: str) -> str:
    """Return the hash of the rows of a task's parts, loaded by lm-eval."""
    digest = hashlib.sha256()
    for name in sorted(loaded):
        part: Any = loaded[name]
        rows = list(part.eval_docs)
        if not rows:
            raise UsageError(f"{name} has no rows", where=where, fix="check its files; each line is one row")
        _try_columns(part, rows[0], name, where)
        digest.update(name.encode() + b"\0")
        for row in (*rows, *_shown(part)):
            line = json.dumps(row, ensure_ascii=False, sort_keys=True, default=str) + "\n"
            digest.update(line.encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _try_columns(part: Any, row: Any, name: str, where: str) -> None:
    """Build the prompt and target of the first row, so that a missing column fails before the run."""
    try:
        part.doc_to_text(row)
        part.doc_to_target(row)
    except Exception as error:  # lm-eval's templates and task functions raise any exception
        columns = ", ".join(cast("dict[str, Any]", row)) if isinstance(row, dict) else type(row).__name__
        what = f"{name}: cannot build a prompt from the first row ({type(error).__name__}: {error}); columns: {columns}"
        fix = "use files with the original columns"
        raise UsageError(what, where=where, fix=fix) from None


def _shown(part: Any) -> Iterable[Any]:
    """Return the rows for few-shot examples, if any."""
    try:
        return part.fewshot_docs() or ()
    except Exception:  # no such split, or a custom sampler; the task's file is hashed too
        return ()
