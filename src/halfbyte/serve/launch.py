"""Choose a launch for a checkpoint, GPUs and options: an engine, its settings and their reasons. Nothing is started.

Knowledge about engines is data (`data/*.yaml`). This module computes the tensor parallelism, whether to use decode
context parallelism, and the longest context that fits. A plan determines the output's config and headers, so
`plan --fit` and `serve` run the same code and agree on the engine, its settings, the parallelism and the KV cache size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.evidence.launches import LaunchCommand, LaunchWarning
from halfbyte.evidence.record import plain
from halfbyte.families.model import describe
from halfbyte.plan.manifest import Plan
from halfbyte.plan.quantization_config import modelopt_file, output_config
from halfbyte.serve import settings
from halfbyte.serve.checkpoint_facts import Served, served_checkpoint
from halfbyte.serve.fit import BLOCK, UTILIZATION, Fit, Load, fit, refuse_too_large
from halfbyte.serve.gpus import UNKNOWN_ARCH, Gpus
from halfbyte.serve.launch_data import Build, Container, Engine, engine, engines, minimum_version, rules, version_key
from halfbyte.serve.launch_facts import (
    NONE,
    LaunchOptions,
    checkpoint_facts,
    chosen_facts,
    draft_facts,
    draft_notes,
    draft_size,
    machine_facts,
    parallel_facts,
)
from halfbyte.serve.memory_per_gpu import Parallel
from halfbyte.serve.needs import Draft
from halfbyte.serve.settings import Note, Setting, overrides

CPU = Gpus(count=1, name="cpu", memory_nbytes=0, vendor="cpu", arch="cpu", interconnect=NONE)
MODEL_IN_CONTAINER = "/model"
_CPU_CONTEXT = 4096
_SHORTEST = 4096  # shorter contexts are useless for agents
_CONTEXT_STEP = 4096
_MAX_PORT = 65_535
# Package versions: 0.19.2rc1, 0.17.1+bd67d66a.nvinternal, 0.32.1.dev5
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([.\-_][a-z0-9]+)*)?", re.ASCII)
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[0-9a-f]{40})?", re.ASCII)


class DoesNotFitError(CheckFailedError):
    """A checkpoint does not fit on the GPUs; `fit` has the arithmetic."""

    def __init__(self, fit: Fit, problem: str, *, engine: str, where: str, fix: str) -> None:
        super().__init__(f"it does not fit on {fit.gpus}: {problem}", where=where, fix=fix)
        self.fit, self.problem, self.engine = fit, problem, engine


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one engine. `folder` is None if the engine loads `model` from the Hub."""

    engine: str
    title: str
    version: str
    model: str
    folder: Path | None
    name: str
    gpus: Gpus
    command: tuple[str, ...]  # with {model}
    container: Container
    container_command: tuple[str, ...]
    environment: tuple[Setting, ...]
    arguments: tuple[Setting, ...]
    warnings: tuple[Note, ...]
    port_flag: str
    port: int
    fit: Fit | None  # None on a CPU, where only the weights are checked
    draft: str | None = None

    @property
    def words(self) -> list[str]:
        """Return the command as a list of words."""
        start = [word.replace("{model}", self.model) for word in self.command]
        return [*start, *(word for row in self.arguments for word in row.words), self.port_flag, str(self.port)]

    def record(self, docker: Sequence[str] | None) -> LaunchCommand:
        """Return the launch for serve.json; `docker` is its command in docker, or None if it cannot run there."""
        return LaunchCommand(
            engine=self.engine,
            version=self.version,
            model=self.model,
            served_name=self.name,
            gpus=str(self.gpus),
            image=self.container.image,
            port=self.port,
            command=tuple(self.words),
            environment={row.flag: row.value for row in self.environment},
            settings=tuple(row.record() for row in (*self.environment, *self.arguments)),
            warnings=tuple(LaunchWarning(warning=note.text, source=note.source) for note in self.warnings),
            fit=self.fit.record() if self.fit else None,
            docker=None if docker is None else tuple(docker),
        )


def engines_for(gpus: Gpus) -> list[str]:
    """Return the engines for GPUs of this vendor, best first."""
    return [name for name, row in engines().items() if gpus.vendor in row.vendor]


def launch(served: Served, gpus: Gpus, options: LaunchOptions) -> Launch:
    """Choose a launch; raise UsageError if it cannot work and CheckFailedError if it does not fit."""
    name = options.engine or engines_for(gpus)[0]
    row = engine(name)
    _refuse_options(served, gpus, options, name, row)
    build = row.builds.get(options.version or "")
    version = build.version if build else options.version or row.version
    user_settings = overrides(options.settings, name, row)
    if not options.draft and any(setting.startswith("speculative") for setting in user_settings):
        fix = "add --draft auto, or --draft MODEL"
        raise UsageError("without --draft the fit would not include the draft's memory", where="--set", fix=fix)
    facts = {**checkpoint_facts(served, options), **machine_facts(gpus)}
    facts |= {"engine": name, "version": version, "build": options.version if build else NONE}
    facts |= draft_facts(served.family, options.draft)
    if not build:
        _refuse_old(row, version, facts)
    decided, fitted = _decide(served, gpus, options, row, user_settings, facts)
    chosen = settings.choose(rules(), decided, row, user_settings)
    decided |= chosen_facts(chosen)
    model = facts["hub_name"] or str(served.folder.absolute())
    extra = [] if gpus.count == decided["tp"] else [_left_over(gpus, decided["tp"])]
    extra += [_machines(gpus, decided["tp"])] if gpus.count > gpus.box else []
    extra += [_only_memory(gpus)] if gpus.arch == UNKNOWN_ARCH else []
    container = build or row.vendors.get(gpus.vendor) or Container(image=row.image, docker=row.docker)
    return Launch(
        engine=name,
        title=row.title,
        version=version,
        model=model,
        folder=None if options.hub else served.folder.absolute(),
        name=str(user_settings.get("served_name") or facts["name"]),
        gpus=replace(gpus, count=decided["tp"]),
        command=row.command,
        container=container.model_copy(update={"image": container.image.replace("{version}", version)}),
        container_command=build.args if isinstance(build, Build) else row.args,
        environment=tuple(settings.environment(rules(), decided, user_settings)),
        arguments=tuple(chosen),
        warnings=(*settings.warnings(rules(), decided), *draft_notes(facts["draft"]), *extra),
        port_flag=row.port.flag,
        port=options.port or row.port.default,
        fit=fitted,
        draft=facts["draft"],
    )


def _refuse_options(served: Served, gpus: Gpus, options: LaunchOptions, name: str, row: Engine) -> None:
    """Refuse invalid options before rules are evaluated."""
    if gpus.vendor not in row.vendor:
        fix = f"choose one of {', '.join(engines_for(gpus))}"
        raise UsageError(f"{row.title} does not run on {gpus.name}", where="--engine", fix=fix)
    if (
        options.version
        and not _VERSION.fullmatch(options.version)
        and options.version not in (*row.builds, row.version)
    ):
        known = ", ".join(row.builds) or "none"
        fix = f"use a version, e.g. {name}=={row.version}, or a build: {known}"
        raise UsageError(f"'{options.version}' is not a valid version of {row.title}", where="--engine", fix=fix)
    if options.hub and not _HUB_NAME.fullmatch(options.hub):
        fix = "use organization/name, or organization/name@COMMIT with a full commit hash: branches can move"
        raise UsageError(f"'{options.hub}' is not a valid Hub name", where="--hub", fix=fix)
    if options.port is not None and not 0 < options.port <= _MAX_PORT:
        raise UsageError(f"invalid port {options.port}", where="--port", fix=f"use a port from 1 to {_MAX_PORT}")
    if not options.context and not served.context and gpus.vendor != CPU.vendor:
        what = "config.json has no maximum context length (max_position_embeddings)"
        raise UsageError(what, where=str(served.folder), fix="set it with --context N")
    if options.context and served.context and options.context > served.context:
        what = f"--context {options.context:,} exceeds the model's context of {served.context:,} tokens"
        raise UsageError(what, where="--context", fix=f"use at most --context {served.context}")
    if options.tp and options.tp > gpus.count:
        raise UsageError(
            f"--tp {options.tp} needs more than {gpus}", where="--tp", fix=f"use at most --tp {gpus.count}"
        )
    if options.tp and served.heads and served.heads % options.tp:
        choices = ", ".join(str(tp) for tp in _sharing(gpus, served.heads))
        what = f"{served.heads} attention heads cannot be split over {options.tp} GPUs"
        raise UsageError(what, where="--tp", fix=f"choose one of {choices}")


def _refuse_old(row: Engine, version: str, facts: Mapping[str, Any]) -> None:
    minimum = minimum_version(row, facts)
    if minimum and version_key(version) < version_key(minimum.version):
        how = " with --emulate" if facts["emulate"] else " with a draft" if facts["draft"] else ""
        what = f"{row.title} {version} is too old for {facts['family']}{how}, which needs {minimum.version} or newer"
        raise UsageError(what, where=minimum.source, fix=f"use {row.title} {row.version}")


def _draft(name: str | None, chosen: Mapping[str, Any]) -> Draft | None:
    """Return the draft's size with the chosen number of speculative tokens."""
    size = draft_size(name)
    tokens = chosen.get("speculative", {}).get("num_speculative_tokens")
    if "speculative_tokens" in chosen:  # SGLang's number includes the token before the draft's
        tokens = chosen["speculative_tokens"] - 1
    return replace(size, tokens=tokens) if size and tokens else size


def _load(
    served: Served, context: int | None, chosen: Mapping[str, Any], draft: Draft | None, build: Build | None
) -> Load:
    """Return the limits of the server as chosen in its settings, so that fit and script agree."""
    default = Load()
    return Load(
        batched_tokens=chosen.get("max_num_batched_tokens", default.batched_tokens),
        sequences=chosen.get("max_num_seqs", default.sequences),
        context=context or served.context or default.context,
        speculative_tokens=draft.tokens if draft else 0,
        splits=build.splits if build else None,
    )


def _refuse_requests(options: LaunchOptions, row: Engine, chosen: Mapping[str, Any]) -> None:
    """Refuse contradictory limits on requests."""
    requests, tokens = chosen.get("max_num_seqs", 0), chosen.get("max_num_batched_tokens", 0)
    if options.concurrency and requests < options.concurrency:
        what = f"--concurrency {options.concurrency} exceeds max_num_seqs={requests}"
        raise UsageError(what, where="--set", fix=f"use at least max_num_seqs={options.concurrency}, or leave it out")
    if tokens and tokens < requests and "decode_context_parallel" in row.flags:  # as vLLM checks it
        what = f"{row.title} refuses fewer batched tokens ({tokens:,}) than concurrent requests ({requests:,})"
        fix = f"use at least --set max_num_batched_tokens={requests}, or fewer requests"
        raise UsageError(what, where="--set", fix=fix)


def _decide(
    served: Served,
    gpus: Gpus,
    options: LaunchOptions,
    row: Engine,
    user_settings: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> tuple[dict[str, Any], Fit | None]:
    """Choose tensor parallelism, decode context parallelism and context; raise an error if nothing works."""
    sizes = [options.tp] if options.tp else sorted(_sharing(gpus, served.heads), reverse=True)
    for tp in sizes:
        if options.dcp and tp % options.dcp:
            what = f"--dcp {options.dcp} does not divide the {tp} GPUs of tensor parallelism"
            raise UsageError(what, where="--dcp", fix=f"choose one of {', '.join(map(str, _divisors(tp)))}")
        tried = {**facts, **parallel_facts(served, tp, options.dcp or 1), "context": options.context}
        tried |= chosen_facts(settings.choose(rules(), tried, row, user_settings))
        rule = settings.refusal(rules(), tried, user_settings)
        if rule is None:
            return _with_context(served, replace(gpus, count=tp), options, row, user_settings, tried)
        if not rule.or_fewer_gpus or tp == sizes[-1]:
            raise settings.refused(rule, tried)
    raise AssertionError("unreachable: the last size returns or raises")


def _with_context(
    served: Served,
    gpus: Gpus,
    options: LaunchOptions,
    row: Engine,
    user_settings: Mapping[str, Any],
    facts: dict[str, Any],
) -> tuple[dict[str, Any], Fit | None]:
    if options.emulate:
        served = replace(served, needs=served.needs.expanded_to_bf16())
    if gpus.vendor == CPU.vendor:
        refuse_too_large(served.needs, gpus, emulate=options.emulate, dtype=_dtype(row, user_settings, facts))
        context = options.context or min(served.context or _CPU_CONTEXT, _CPU_CONTEXT)
        why = "requested with --context" if options.context else "short, for a CPU; --context sets another"
        return {**facts, "context": context, "context_reason": why}, None
    chosen = {setting.name: setting.value for setting in settings.choose(rules(), facts, row, user_settings)}
    draft = _draft(facts["draft"], chosen)
    _refuse_requests(options, row, chosen)
    if row.text_half or chosen.get("language_model_only"):
        served = replace(served, needs=served.needs.without_vision())
    fit_options: dict[str, Any] = {
        "kv_dtype": str(chosen.get("kv_cache_dtype", "auto")),
        "utilization": float(chosen.get("gpu_memory_utilization", UTILIZATION)),
        "concurrency": options.concurrency,
        "draft": draft,
        "block": chosen.get("block_size", BLOCK),
        "reserve_outside": row.reserve_outside,
    }
    # vLLM's default is "weights"; the default of other engines is unknown.
    vision = str(chosen.get("mm_encoder_tp_mode", "weights" if "mm_encoder_tp_mode" in row.flags else "data"))
    build = row.builds.get(facts["build"])
    wanted = (options.context or served.context or 0) * (options.concurrency or 1)
    can_split = "decode_context_parallel" in row.flags and served.needs.latent is not None
    sizes = [options.dcp] if options.dcp else [1, gpus.count] if can_split and gpus.count > 1 else [1]
    load = _load(served, options.context, chosen, draft, build)
    candidates = [Parallel(gpus.count, options.ep, dcp, vision) for dcp in sizes]
    fits = [
        fit(served, gpus, parallel=parallel, context=options.context, load=load, **fit_options)
        for parallel in candidates
    ]
    best = next((result for result in fits if result.fits and (result.kv_tokens or 0) >= wanted), fits[-1])
    engine = f"{row.title} {facts['version']}"
    if best.problem is not None:
        raise DoesNotFitError(best, best.problem, engine=engine, where="--gpus", fix=best.advice)
    context, why = _context(served, options, best, engine)
    load = _load(served, context, chosen, draft, build)
    shown = fit(served, gpus, parallel=best.parallel, context=context, load=load, **fit_options)
    return {**facts, "dcp": best.parallel.decode_context, "context": context, "context_reason": why}, shown


def _dtype(row: Engine, user_settings: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return the chosen dtype."""
    chosen = settings.choose(rules(), facts, row, user_settings)
    return next((setting.value for setting in chosen if setting.name == "dtype"), None)


def _context(served: Served, options: LaunchOptions, fit_result: Fit, engine: str) -> tuple[int | None, str]:
    """Return the requested context, or the longest that fits the concurrency, and the reason."""
    most, share = options.context or served.context, options.concurrency or 1
    if fit_result.kv_tokens is None or most is None:
        return most, "requested with --context" if options.context else "the model's maximum"
    room = fit_result.kv_tokens // share
    if room >= most:
        requests = f"{fit_result.kv_tokens / most:.1f} full-length requests"
        held = f"the cache has room for {fit_result.kv_tokens:,} tokens, {requests}"
        return most, held if options.context else f"the model's maximum; {held}"
    context = room // _CONTEXT_STEP * _CONTEXT_STEP
    if options.context or context < _SHORTEST:
        what = f"the KV cache has room for {fit_result.kv_tokens:,} tokens, not for {share} times {most:,}"
        fix = f"use --context {max(context, 1)}, fewer concurrent requests, more GPUs, or fewer experts"
        raise DoesNotFitError(fit_result, what, engine=engine, where="--context", fix=fix)
    limit = f"the cache has room for {fit_result.kv_tokens:,} tokens at concurrency {share}"
    return context, f"shorter than the model's {most:,}: {limit}"


def _sharing(gpus: Gpus, heads: int | None) -> list[int]:
    """Return the possible tensor parallel sizes on one machine: powers of two if the number of heads is unknown."""
    most = min(gpus.count, gpus.box)
    return [tp for tp in range(1, most + 1) if (heads % tp == 0 if heads else tp & (tp - 1) == 0)]


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _left_over(gpus: Gpus, tp: int) -> Note:
    """Warn that this launch does not use all GPUs."""
    copies, free = divmod(gpus.count, tp)
    text = f"{tp} of {gpus} are used"
    if copies > 1:
        text += f": start {copies} copies on different ports and GPUs"
    if free:
        text += f"{' and' if copies > 1 else ':'} {free} {'GPU stays' if free == 1 else 'GPUs stay'} unused"
    return Note(text, "halfbyte")


def _only_memory(gpus: Gpus) -> Note:
    """Warn that no settings for the kind of GPU are chosen."""
    text = f"{gpus} specifies only the memory, so the engine chooses the kernels. Name the GPU, e.g. 8xH100"
    return Note(text, "data/gpus.yaml")


def _machines(gpus: Gpus, tp: int) -> Note:
    """Warn that the GPUs exceed one machine, for which the script is written."""
    number = -(-gpus.count // gpus.box)
    text = f"{gpus} are usually {number} machines with {gpus.box} GPUs each, and this script is for one machine: "
    if tp > gpus.box:
        text += f"--tp {tp} over several machines needs a cluster, which this script does not set up"
    else:
        text += "run it on each of them"
    return Note(text, "data/gpus.yaml")


@dataclass(frozen=True, slots=True)
class PlannedFit:
    """The result of `plan --fit`. `fit` is None if the launch fails for a reason other than memory."""

    gpus: Gpus
    engine: str  # title and version; empty without a launch
    fit: Fit | None
    problem: str | None
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: the fit as in `serve --json`, with the verdict for all requested GPUs."""
        verdict = {"gpus": str(self.gpus), "fits": self.problem is None, "problem": self.problem, "advice": self.advice}
        return {**(plain(self.fit.record()) if self.fit else {}), **verdict, "engine": self.engine}


def planned_fit(plan: Plan, gpus: Gpus) -> PlannedFit:
    """Return the fit of the launch that `serve` would choose; if it refuses, the error becomes the problem."""
    try:
        chosen = launch(planned_served(plan), gpus, LaunchOptions())
    except DoesNotFitError as error:
        return PlannedFit(gpus, error.engine, error.fit, error.problem, error.fix)
    except (CheckFailedError, UsageError) as error:
        return PlannedFit(gpus, "", None, error.what, error.fix)
    return PlannedFit(gpus, f"{chosen.title} {chosen.version}", chosen.fit, None)


def planned_served(plan: Plan) -> Served:
    """Return the facts of the planned output, from its planned config and headers."""
    tensors = {tensor.name: tensor for shard in plan.shards for tensor in shard.tensors}
    sizes = {shard.name: shard.nbytes for shard in plan.shards}
    output = Checkpoint(plan.checkpoint.root, output_config(plan), tensors, sizes)
    file = modelopt_file(plan)
    served = served_checkpoint(output, describe(output, uneven=True), modelopt=file["quantization"] if file else {})
    return served if plan.kept is None else replace(served, source_experts=plan.model.experts)
