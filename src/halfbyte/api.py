"""The Python API: the commands as functions, with typed results and no terminal output.

    from halfbyte import api

    plan = api.plan("hf://moonshotai/Kimi-K2.6", "kimi-k2.6-mxfp4-wafer")
    result = api.quantize("SRC", "OUT", "kimi-k2.6-mxfp4-wafer")
    audit = api.audit("OUT", against="SRC")

Five of these functions share their name with a package (`halfbyte.audit` and others), so they are attributes of this
module and not of `halfbyte`. Every error is a HalfbyteError with the `what`, `where`, `fix` and `exit_code` of the
command line. A failed check is a result, not an error.

Importing this module does not import NumPy or PyTorch.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeAlias, cast

from halfbyte.errors import HalfbyteError, UsageError
from halfbyte.options.check import AuditOptions, CompareOptions
from halfbyte.options.convert import PruneOptions, QuantizeOptions
from halfbyte.options.declare import Group, Option, declared
from halfbyte.options.inspect import InspectOptions, PlanOptions
from halfbyte.options.shared import Placement, RecipeChanges, ShardCache, Upload

if TYPE_CHECKING:
    from halfbyte.audit.findings import Audit
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.compare.report import Report
    from halfbyte.compare.stream import Step
    from halfbyte.degeneracy.loop_test import LoopTest
    from halfbyte.engine.pipeline import Result
    from halfbyte.engine.runner import Progress
    from halfbyte.inspect.inspection import Inspection
    from halfbyte.plan.manifest import Plan
    from halfbyte.recipe.decisions import Recipe

__all__ = ["audit", "compare", "example", "inspect", "plan", "prune", "quantize"]

Folder: TypeAlias = "str | os.PathLike[str]"
Source: TypeAlias = "str | os.PathLike[str] | Checkpoint"
AnyRecipe: TypeAlias = "str | os.PathLike[str] | Recipe"
Data: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]]"
Overrides: TypeAlias = "str | Sequence[str] | Mapping[str, object]"

_ADDRESS_AS_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")  # pathlib turns hf:// into hf:/
_COMMANDS = {
    "inspect": InspectOptions, "plan": PlanOptions, "quantize": QuantizeOptions, "prune": PruneOptions,
    "audit": AuditOptions, "compare": CompareOptions,
}  # fmt: skip
_OTHER_NAMES = {  # options of the command line whose argument has another name
    "-r": "recipe",
    "--set": "overrides",
    "--example": "name",
    "--no-verify": "verify_source=False",
    "--no-loops": "loops=False",
}
_VALUE = r"[A-Z]{2,}\b|cpu\b|cuda\b|vllm\b|answers\b|[^\s,;]*[\d=][^\s,;]*|[\w-]+\.json"
_COMMAND_OR_OPTION = re.compile(
    rf"(?P<command>\b(?:halfbyte|hf) [a-z][^,;)\n]*)|(?<![\w-])(?P<option>-r|--[a-z][a-z-]*)(?: (?P<value>{_VALUE}))?"
)


@contextmanager
def _halfbyte_errors() -> Generator[None]:
    """Convert OS and out-of-memory errors to HalfbyteError.

    Every HalfbyteError names arguments of the API in place of command-line options.
    """
    from halfbyte.machine.os_errors import os_error, out_of_memory_error  # deferred until a call

    try:
        yield
    except HalfbyteError as error:
        error.what, error.fix = _with_arguments(error.what), _with_arguments(error.fix)
        if error.where.startswith("-"):
            error.where = _with_arguments(error.where)
        elif error.where.removeprefix("halfbyte ") in __all__:
            error.where = f"api.{error.where.removeprefix('halfbyte ')}"
        error.args = (error.what,)
        raise
    except OSError as error:
        raise os_error(error) from error
    except Exception as error:
        if (lack := out_of_memory_error(error)) is not None:
            raise lack from error
        raise


def _with_arguments(text: str) -> str:
    """Replace `-r` with `recipe` and `--keep 192` with `keep=192`, except in commands."""

    def replaced(match: re.Match[str]) -> str:
        name, value = _arguments().get(match["option"]), match["value"]
        if match["command"] or name is None:
            return match[0]
        if value is None:
            return name
        return f"{name}='{value}'" if "=" in value else f"{name}={value}"

    return _COMMAND_OR_OPTION.sub(replaced, text)


@functools.cache
def _options(function: str) -> Mapping[str, Option]:
    """Return the options of a function's command, by the name of the argument."""
    return {option.flag.removeprefix("--").replace("-", "_"): option for option in _flat(_COMMANDS[function])}


def _flat(model: type) -> Iterator[Option]:
    for item in declared(model):
        if isinstance(item, Group):
            yield from _flat(item.model)
        elif item.declaration.flags:
            yield item


@functools.cache
def _arguments() -> Mapping[str, str]:
    """Return the argument of the API for each option of the command line."""
    same = {
        option.flag: name
        for function in _COMMANDS
        for name, option in _options(function).items()
        if name in signature(globals()[function]).parameters and name != "out"  # --out is a file, `out` a checkpoint
    }
    return same | _OTHER_NAMES


@_halfbyte_errors()
def inspect(source: Source, *, cache_dir: Folder | None = None) -> Inspection:
    """Describe a checkpoint from its headers: roles, formats, sizes, and the output size of each built-in recipe.

    Args:
        source: a folder, an address (`hf://organization/name@revision`, `s3://bucket/folder`), or a Checkpoint.
        cache_dir: cache folder for a remote source's headers; $HALFBYTE_CACHE or ~/.cache/halfbyte by default.

    Returns:
        An Inspection; `as_dict()` is the output of `halfbyte inspect --json`.

    Raises:
        HalfbyteError: the checkpoint is incomplete, inconsistent or unreachable.
    """
    from halfbyte.inspect.inspection import inspect as describe

    return describe(_open(source, cache_dir))


@_halfbyte_errors()
def plan(  # noqa: PLR0913 - keyword-only, as on the command line
    source: Source,
    recipe: AnyRecipe,
    *,
    overrides: Overrides = (),
    layers: int | None = None,
    data: Data = (),
    samples: int | None = None,
    cache_dir: Folder | None = None,
) -> Plan:
    """Return the plan that `quantize` would execute. Reads only headers and writes nothing.

    Args:
        source: a folder, an address, or a Checkpoint, as in `inspect`.
        recipe: a built-in recipe's name, a path to a recipe file, or a Recipe.
        overrides: recipe overrides: {"path.to.key": value}, "path.to.key=value", or a list of such strings.
        layers: use only the first N layers, for a small checkpoint.
        data: calibration files instead of the recipe's data sets, as in `quantize`.
        samples: number of samples, taken evenly from the files of `data`.
        cache_dir: cache folder for a remote source's headers.

    Returns:
        A Plan with `shards`, `read_nbytes`, `write_nbytes` and `fingerprint()`. Equal fingerprints mean equal bytes.

    Raises:
        HalfbyteError: the recipe is invalid or does not apply to this checkpoint.
    """
    from halfbyte.engine.pipeline import plan as make_plan
    from halfbyte.machine.interrupts import gc_paused
    from halfbyte.plan.manifest import refuse_nothing_to_prune

    _check("plan", layers=layers, samples=samples)
    with gc_paused():
        chosen = _recipe(recipe, overrides, data, samples)
        planned = make_plan(_open(source, cache_dir), chosen, layers=layers)
        refuse_nothing_to_prune(planned)
        return planned


@_halfbyte_errors()
def quantize(  # noqa: PLR0913 - keyword-only, as on the command line
    source: Source,
    out: Folder,
    recipe: AnyRecipe | None = None,
    *,
    plan: Folder | None = None,
    overrides: Overrides = (),
    layers: int | None = None,
    data: Data = (),
    samples: int | None = None,
    stats: Folder | None = None,
    device: str = "cpu",
    device_memory: int | str | None = None,
    ray: str | None = None,
    threads: int | None = None,
    verify_source: bool = True,
    cache: str | None = None,
    cache_dir: Folder | None = None,
    push: str | None = None,
    evict: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Quantize a checkpoint. The same call resumes an interrupted run.

    Args:
        source: a folder, an address whose shards are downloaded as needed, or a Checkpoint.
        out: output folder: new, empty, or from an earlier run of the same plan.
        recipe: a built-in recipe's name, a path to a recipe file, or a Recipe.
        plan: instead of `recipe`: a file from `halfbyte plan -o`, which contains its recipe.
        overrides: recipe overrides: {"path.to.key": value}, "path.to.key=value", or a list of such strings.
        layers: use only the first N layers, for a small checkpoint.
        data: calibration files instead of the recipe's data sets: {"domain": "file.jsonl"},
            "domain=file.jsonl:column,column", a path, or a list of such strings and paths.
        samples: number of samples, taken evenly from the files of `data`.
        stats: statistics from `halfbyte calibrate`, instead of calibrating in this run.
        device: "cpu", "cuda", "cuda:1", or "cuda:0,cuda:1" for several GPUs.
        device_memory: memory limit of each GPU, in bytes or as a string, e.g. "24GB".
        ray: address of a Ray cluster to run on.
        threads: threads for reading, computing and writing; cores + 2 by default.
        verify_source: compare shards with their known SHA-256 first.
        cache: size limit of the cache for a remote source, e.g. "60GB".
        cache_dir: folder of that cache.
        push: private Hub repository to upload finished shards to during the run.
        evict: with `push`: delete local shards once the Hub confirms their hash.
        progress: called with a Progress after each step.

    Returns:
        A Result: shards, bytes, seconds, shards kept from an earlier run, calibration coverage.

    Raises:
        HalfbyteError: the recipe, the source, the output folder or this machine is unsuitable. Preflight errors are
            raised before anything is written.
    """
    from halfbyte.checkpoint.output_folder import FOLDER
    from halfbyte.cli.load_options import chosen_plan, refuse_data_beside_statistics
    from halfbyte.engine import pipeline

    _check("quantize", layers=layers, samples=samples, threads=threads, device=device, ray=ray, cache=cache, push=push)
    folder, pairs, overridden = _local(out, "out"), _pairs(data), _changes(overrides)
    changes = RecipeChanges(overrides=overridden, layers=layers, data=pairs, samples=samples)
    refuse_data_beside_statistics(stats, changes)
    planned = chosen_plan(recipe, None if plan is None else _local(plan, "plan"), changes)
    decided = planned.recipe if planned else _recipe(recipe, overridden, pairs, samples)
    return pipeline.quantize(
        _source(source, folder / FOLDER, cache, cache_dir, verify=verify_source),
        folder,
        decided,
        layers=layers or (planned.layers if planned else None),
        planned=planned,
        stats=None if stats is None else _local(stats, "stats"),
        threads=threads,
        device=_device(device),
        device_memory=_device_memory(device_memory, device),
        ray=ray,
        verify_source=verify_source,
        push=_push(folder, push, evict=evict),
        progress=progress,
    )


@_halfbyte_errors()
def prune(  # noqa: PLR0913 - keyword-only, as on the command line
    source: Source,
    out: Folder,
    *,
    keep: int | None = None,
    drop: float | str | None = None,
    stats: Folder | None = None,
    data: Data = (),
    samples: int | None = None,
    length: int | None = None,
    plan: Folder | None = None,
    restore: int | None = None,
    spread: bool = False,
    method: str | None = None,
    select: str | None = None,
    blend: Mapping[str, float] | str | None = None,
    protect: bool | None = None,
    min_tokens: int | None = None,
    layers: int | None = None,
    shards: str = "layers",
    loops: int | bool | None = None,
    ray: str | None = None,
    threads: int | None = None,
    verify_source: bool = True,
    cache: str | None = None,
    cache_dir: Folder | None = None,
    push: str | None = None,
    evict: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Drop routed experts. Kept tensors are copied byte for byte. The same call resumes an interrupted run.

    One of `stats`, `data` and `plan` selects the kept experts. With `stats` or `data`, `keep` or `drop` sets their
    number.

    Args:
        source: a folder, an address, or a Checkpoint.
        out: output folder.
        keep: routed experts to keep in each layer.
        drop: instead of `keep`: the share of experts to drop, 0.25 or "25%".
        stats: statistics from `halfbyte calibrate`, measured on `source`.
        data: instead of `stats`: texts to measure on, as in `quantize`.
        samples: number of samples from `data`.
        length: tokens per row of `data`.
        plan: instead of both: a prune-plan.json, or a keep list.
        restore: with `plan`: number of dropped experts to restore in each layer, best first.
        spread: same total, but more experts in the layers that need them; stock vLLM cannot load it.
        method: scoring criterion, "reap" by default.
        select: "mean" over domains by default, or "max_min".
        blend: weight of each domain, e.g. {"code": 2, "prose": 1}.
        protect: always keep super experts; True by default.
        min_tokens: keep experts that saw fewer tokens than this; 1 by default.
        layers: use only the first N layers.
        shards: "layers", or a size, e.g. "5GB".
        loops: number of prompts of the loop test; None runs 16 if that takes seconds, False skips the test.
        ray: address of a Ray cluster to run on.
        threads: threads for reading and writing.
        verify_source: compare shards with their known SHA-256 first.
        cache: size limit of the cache for a remote source, e.g. "60GB".
        cache_dir: folder of that cache.
        push: private Hub repository to upload finished shards to.
        evict: with `push`: delete local shards once the Hub confirms their hash.
        progress: called with a Progress after each step.

    Returns:
        A Result with the kept experts in `pruned` and the loop test, or None, in `loops`.

    Raises:
        HalfbyteError: the arguments contradict each other or do not apply to this checkpoint.
    """
    from halfbyte.checkpoint.output_folder import FOLDER
    from halfbyte.engine import pipeline
    from halfbyte.prune.options import plan_and_recipe, refuse_contradictions
    from halfbyte.prune.plan_source import open_model

    folder, prompts = _local(out, "out"), None if isinstance(loops, bool) else loops
    _check(
        "prune", keep=keep, samples=samples, restore=restore, layers=layers, threads=threads, length=length,
        min_tokens=min_tokens, method=method, select=select, shards=shards, ray=ray, cache=cache, push=push,
        loops=prompts,
    )  # fmt: skip
    options = PruneOptions(
        source="", out_folder=folder, keep=keep, drop=None if drop is None else str(drop), spread=spread or None,
        stats=None if stats is None else _local(stats, "stats"), data=_pairs(data), samples=samples, length=length,
        plan=None if plan is None else _local(plan, "plan"), restore=restore,
        method=cast("Any", method), select=cast("Any", select),
        blend=_blend(blend), protect=protect, min_tokens=min_tokens, layers=layers, shards=shards, loops=prompts,
        no_loops=loops is False,
    )  # fmt: skip
    refuse_contradictions(options)
    opened = _source(source, folder / FOLDER, cache, cache_dir, verify=verify_source)
    checkpoint, model = open_model(opened)
    chosen, recipe = plan_and_recipe(options, checkpoint, model)
    result = pipeline.quantize(
        opened,
        folder,
        recipe,
        layers=layers,
        stats=options.stats,
        prune_plan=chosen,
        threads=threads,
        ray=ray,
        verify_source=verify_source,
        push=_push(folder, push, evict=evict),
        progress=progress,
    )
    return result if loops is False else replace(result, loops=_loop_test(result, opened, prompts))


@_halfbyte_errors()
def audit(
    out: Folder, *, against: Folder | None = None, sample: int = 2, engine: str | None = None, save: bool = True
) -> Audit:
    """Check that a checkpoint matches its plan and that engines will load it correctly.

    Args:
        out: folder of the checkpoint.
        against: folder of its source; without it, checks that compare bytes are skipped.
        sample: groups of linears per layer to encode again and compare.
        engine: "vllm", to check that the installed vLLM accepts every tensor name; no weights are read.
        save: write the result to OUT/halfbyte/audit.json, which cards and releases read.

    Returns:
        An Audit with `findings`, one per check, and `failed`, the names of the failed checks.

    Raises:
        HalfbyteError: the folder does not contain a checkpoint, or vLLM is requested but not installed.
    """
    from halfbyte.audit.run import audit as run_checks
    from halfbyte.audit.run import save as write

    _check("audit", sample=sample, engine=engine)
    folder, source = _local(out, "out"), None if against is None else _local(against, "against")
    result = run_checks(folder, against=source, sample=sample, engine=engine)
    if save:
        write(result)
    return result


@_halfbyte_errors()
def compare(  # noqa: PLR0913 - keyword-only, as on the command line
    source: Folder,
    out: Folder | None = None,
    data: Data = (),
    *,
    recipe: AnyRecipe | None = None,
    overrides: Overrides = (),
    stats: Folder | None = None,
    samples: int | None = None,
    length: int = 512,
    rows: Literal["packed", "padded"] = "packed",
    score: Literal["all", "answers"] = "all",
    dtype: Literal["float32", "bfloat16"] = "float32",
    activations: Literal["off", "as-served"] = "off",
    kv: Literal["off", "fp8", "fp8-scaled"] = "off",
    by_layer: bool = False,
    device: Literal["cpu", "cuda"] = "cpu",
    threads: int | None = None,
    progress: Callable[[Step], None] | None = None,
) -> Report:
    """Run two checkpoints on the same tokens, layer by layer, and compare the outputs.

    Args:
        source: folder of the reference.
        out: folder of the checkpoint to compare with it; None with `recipe`.
        data: texts to run on: {"domain": "file.jsonl"}, "domain=file.jsonl:column,column", or a list of such strings.
        recipe: instead of `out`: encode each layer of `source` with this recipe in memory, and write no checkpoint.
        overrides: with `recipe`: keys to override, e.g. {"quantize.scales": "mse"}.
        stats: with `recipe`: statistics from `halfbyte calibrate`, for calibrated scales and pruning.
        samples: rows, taken evenly from the files; up to 128 by default.
        length: tokens per row.
        rows: "packed" (full rows of several texts) or "padded" (one text per row).
        score: "all" tokens, or only the assistant's "answers".
        dtype: "float32", or "bfloat16", which adds rounding in both models.
        activations: "as-served" quantizes the activations of `out` as engines do.
        kv: FP8 KV cache of `out`: "fp8" casts, "fp8-scaled" applies its k_scale.
        by_layer: also measure the error that each layer adds, by running it on the source's hidden states.
        device: "cpu" or "cuda".
        threads: compute threads; the number of cores by default.
        progress: called with a Step after each layer.

    Returns:
        A Report: error per layer (`layers`); KL, top-1 agreement and perplexity with intervals (`total`, `domains`).

    Raises:
        HalfbyteError: the checkpoints or the data are incompatible.
    """
    _check(
        "compare", samples=samples, threads=threads, length=length, rows=rows, score=score, dtype=dtype,
        activations=activations, kv=kv,
    )  # fmt: skip
    _one_of("device", device, ("cpu", "cuda"))
    pairs = _pairs(data)
    if not pairs:
        raise UsageError("no data specified", where="data", fix='pass texts, e.g. {"news": "articles.jsonl"}')
    from halfbyte.cli.load_options import refuse_unclear_comparison

    overridden = _changes(overrides)
    options = CompareOptions(
        source=_local(source, "source"), out_folder=None if out is None else _local(out, "out"), overrides=overridden,
        stats=None if stats is None else _local(stats, "stats"), data=pairs, samples=samples, length=length, rows=rows,
        score=score, dtype=dtype, activations=activations, kv=kv, by_layer=by_layer, device=device, threads=threads,
    )  # fmt: skip
    refuse_unclear_comparison(options, recipe)
    from halfbyte.compare.stream import compare_checkpoints

    decided = None if recipe is None else _recipe(recipe, overridden, (), None)
    return compare_checkpoints(options, progress or _no_progress, recipe=decided)


@_halfbyte_errors()
def example(name: str = "kimi-k2.6") -> Checkpoint:
    """Return a published checkpoint from built-in headers, for inspecting and planning without its files.

    Args:
        name: "kimi-k2.6".
    """
    from halfbyte.families.examples import example as built_in

    return built_in(name)


def _open(source: Source, cache_dir: Folder | None) -> Checkpoint:
    from halfbyte.checkpoint.folder import open_checkpoint

    opened = _source(source, None, None, cache_dir)
    return open_checkpoint(opened) if isinstance(opened, Path) else opened


def _source(
    source: Source, run_folder: Path | None, cache: str | None, cache_dir: Folder | None, *, verify: bool = True
) -> Path | Checkpoint:
    """Return a folder, or an open checkpoint if the source is remote or already open."""
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.checkpoint.remote.address import is_remote, refuse_hub_id
    from halfbyte.cli.load_options import chosen_source

    if isinstance(source, Checkpoint):
        return source
    text = _text(source, "source")
    folder = None if cache_dir is None else _local(cache_dir, "cache_dir")
    if run_folder is None and not is_remote(text):
        refuse_hub_id(text)
        return Path(text)  # `inspect` and `plan` accept a cache_dir with any source, as the commands do
    return chosen_source(text, run_folder, ShardCache(size=cache, folder=folder), verify=verify)


def _text(value: object, name: str) -> str:
    """Return a path or an address as a string."""
    text: object = os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        fix = "pass a str or a pathlib.Path"
        raise UsageError(
            f"'{name}' is {type(cast('object', value)).__name__}, not a path or an address", where=name, fix=fix
        )
    if not text:
        raise UsageError(f"'{name}' is empty", where=name, fix="pass a path; '.' is the current folder")
    if not isinstance(value, str) and _ADDRESS_AS_PATH.match(text):
        what = f"pathlib changed the address to '{text}'"
        raise UsageError(what, where=name, fix="pass the address as a str")
    return text


def _local(value: object, name: str) -> Path:
    """Return a local path. Refuse an address, which would become a folder named `hf:`."""
    from halfbyte.checkpoint.remote.address import is_remote

    text = _text(value, name)
    if is_remote(text):
        what = f"'{name}' must be a local folder or file, not the address '{text}'"
        raise UsageError(what, where=name, fix="pass a local path; `hf download` downloads a repository")
    return Path(text)


def _recipe(recipe: object, overrides: Overrides, data: Data, samples: int | None) -> Recipe:
    from halfbyte.calibrate.datasets import with_data
    from halfbyte.recipe.decisions import Recipe
    from halfbyte.recipe.load import load_recipe, recipe_names

    if isinstance(recipe, Recipe):
        if overrides:
            fix = "use dataclasses.replace, or pass the recipe's name or file"
            raise UsageError("overrides cannot change a Recipe object", where="overrides", fix=fix)
        chosen = recipe
    elif isinstance(recipe, (str, os.PathLike)):
        text = _text(cast("object", recipe), "recipe")
        by_name = isinstance(recipe, str) or (text in recipe_names() and not Path(text).exists())
        chosen = load_recipe(text if by_name else Path(text), _changes(overrides))
    else:
        fix = "pass a name from halfbyte.recipe_names(), a path to a recipe file, or a Recipe"
        raise UsageError(f"'recipe' is {type(recipe).__name__}, not a recipe", where="recipe", fix=fix)
    return with_data(chosen, _pairs(data), samples)


def _pairs(data: Data) -> tuple[str, ...]:
    """Return data as `domain=file`, the form of --data."""
    if isinstance(data, (str, os.PathLike)):
        return (_data(cast("object", data)),)
    if isinstance(data, Mapping):
        return tuple(f"{domain}={_local(file, 'data')}" for domain, file in data.items())
    return tuple(_data(item) for item in _several(data, "data", 'a path, or {"domain": "file.jsonl"}'))


def _data(item: object) -> str:
    return item if isinstance(item, str) else str(_local(item, "data"))


def _changes(overrides: Overrides) -> tuple[str, ...]:
    """Return overrides as `path.to.key=value`, the form of --set."""
    if isinstance(overrides, str):
        return (overrides,)
    if isinstance(overrides, Mapping):
        return tuple(f"{key}={_yaml(value, key)}" for key, value in overrides.items())
    form = '"path.to.key=value", or {"path.to.key": value}'
    items = _several(overrides, "overrides", form)
    wrong = next((item for item in items if not isinstance(item, str)), None)
    if wrong is not None:
        what = f"'overrides' contains {wrong!r}, which is {type(wrong).__name__}"
        raise UsageError(what, where="overrides", fix=f"pass {form}")
    return cast("tuple[str, ...]", items)


def _yaml(value: object, key: str) -> str:
    """Return a value as JSON, which is valid YAML."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        what = f"'{key}' cannot be {value!r}"
        fix = "pass a str, a number, a bool, None, or a list or dict of them"
        raise UsageError(what, where="overrides", fix=fix) from error


def _several(value: object, name: str, form: str) -> tuple[object, ...]:
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise UsageError(f"'{name}' is {type(value).__name__}", where=name, fix=f"pass {form}, or a list of them")
    return tuple(cast("Iterable[object]", value))


def _blend(blend: Mapping[str, float] | str | None) -> str | None:
    return ",".join(f"{domain}={weight}" for domain, weight in blend.items()) if isinstance(blend, Mapping) else blend


def _device(device: str) -> str:
    from halfbyte.machine.device_option import device_names

    return ",".join(device_names(device))


def _device_memory(limit: int | str | None, device: str) -> int | None:
    from halfbyte.cli.load_options import chosen_device_memory

    text = f"{limit}B" if isinstance(limit, int) else limit
    return chosen_device_memory(Placement(device=device, memory=text))


def _push(out: Path, repo: str | None, *, evict: bool) -> Any:
    from halfbyte.cli.load_options import chosen_push

    return chosen_push(out, Upload(repo=repo, evict=evict))


def _loop_test(result: Result, source: Path | Checkpoint, prompts: int | None) -> LoopTest:
    from halfbyte.degeneracy.loop_test import loop_test

    return loop_test(result.out, source if isinstance(source, Path) else None, prompts)


def _check(function: str, **values: object) -> None:
    """Raise unless the arguments fit the declarations of the command's options."""
    for name, value in values.items():
        option = _options(function)[name]
        if option.choices:
            _one_of(name, value, (*((None,) if option.default is None else ()), *option.choices))
        elif value is not None and option.type is int:
            _within(int(option.declaration.least or 0), option.declaration.most, name, value)
        elif value is not None and not isinstance(value, str):
            what = f"'{name}' is {value!r}, which is {type(value).__name__}"
            raise UsageError(what, where=name, fix="pass a str")


def _within(least: int, most: float | None, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        what = f"'{name}' is {value!r}, which is {type(value).__name__}"
        raise UsageError(what, where=name, fix=f"pass an int, {least} or more")
    if value.__index__() < least:
        raise UsageError(f"'{name}' is {value}", where=name, fix=f"pass {least} or more")
    if most is not None and value.__index__() > most:
        raise UsageError(f"'{name}' is {value}", where=name, fix=f"pass {most:g} or less")


def _one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise UsageError(f"'{name}' is {value!r}", where=name, fix=f"pass {' or '.join(map(repr, known))}")


def _no_progress(_: Step) -> None:
    """Ignore progress."""
