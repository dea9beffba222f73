"""From a checkpoint, some GPUs and a wish to one launch: an engine, its settings and their reasons. Nothing is started.

What is known of engines is data (`data/*.yaml`); what is computed is how many GPUs share a matrix, whether the KV cache
is split by tokens, and the longest context that fits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.serve import settings
from halfbyte.serve.conditions import version_key
from halfbyte.serve.draft import Draft
from halfbyte.serve.draft_choice import draft_facts, draft_notes, draft_size
from halfbyte.serve.facts import NONE, Wish, checkpoint_facts, chosen_facts, machine_facts, parallel_facts
from halfbyte.serve.fit import BLOCK, UTILIZATION, Fit, Load, fit
from halfbyte.serve.given import overrides
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.host_memory import refuse_too_large
from halfbyte.serve.knowledge import Build, Container, Engine, engine, engines, minimum_version, rules
from halfbyte.serve.parallel import Parallel
from halfbyte.serve.served import Served
from halfbyte.serve.settings import Note, Setting

CPU = Gpus(count=1, name="cpu", memory_nbytes=0, vendor="cpu", arch="cpu", interconnect=NONE)
MODEL_IN_CONTAINER = "/model"
_CPU_CONTEXT = 4096
_SHORTEST = 4096  # a context below this is of no use to an agent
_CONTEXT_STEP = 4096
_MAX_PORT = 65_535
# As packages are numbered: 0.19.2rc1, 0.17.1+bd67d66a.nvinternal, 0.32.1.dev5
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([.\-_][a-z0-9]+)*)?", re.ASCII)
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@[0-9a-f]{40})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one engine. `folder` is None where the engine loads `model` from the Hub."""

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
    fit: Fit | None  # None on a CPU, where only the weights are counted
    draft: str | None = None

    @property
    def words(self) -> list[str]:
        """Return the command as a program gets it."""
        start = [word.replace("{model}", self.model) for word in self.command]
        return [*start, *(word for row in self.arguments for word in row.words), self.port_flag, str(self.port)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        return {
            "engine": self.engine,
            "version": self.version,
            "model": self.model,
            "served_name": self.name,
            "gpus": str(self.gpus),
            "image": self.container.image,
            "port": self.port,
            "command": self.words,
            "environment": {row.flag: row.value for row in self.environment},
            "settings": [row.as_dict() for row in (*self.environment, *self.arguments)],
            "warnings": [{"warning": note.text, "source": note.source} for note in self.warnings],
            "fit": self.fit.as_dict() if self.fit else None,
        }


def engines_for(gpus: Gpus) -> list[str]:
    """Return the engines for GPUs of this vendor; the first is the one to try first."""
    return [name for name, row in engines().items() if gpus.vendor in row.vendor]


def launch(served: Served, gpus: Gpus, wish: Wish) -> Launch:
    """Decide one launch; UsageError for what cannot work, CheckFailedError for what does not fit."""
    name = wish.engine or engines_for(gpus)[0]
    row = engine(name)
    _refuse_wishes(served, gpus, wish, name, row)
    build = row.builds.get(wish.version or "")
    version = build.version if build else wish.version or row.version
    given = overrides(wish.given, name, row)
    if not wish.draft and any(setting.startswith("speculative") for setting in given):
        fix = "add --draft auto, or --draft MODEL"
        raise UsageError("without --draft the fit would not count what the draft takes", where="--set", fix=fix)
    facts = {**checkpoint_facts(served, wish), **machine_facts(gpus)}
    facts |= {"engine": name, "version": version, "build": wish.version if build else NONE}
    facts |= draft_facts(served.family, wish.draft)
    if not build:
        _refuse_old(row, version, facts)
    decided, fitted = _decide(served, gpus, wish, row, given, facts)
    chosen = settings.choose(rules(), decided, row, given)
    decided |= chosen_facts(chosen)
    model = facts["hub_name"] or str(served.folder.absolute())
    extra = [] if gpus.count == decided["tp"] else [_left_over(gpus, decided["tp"])]
    extra += [_machines(gpus, decided["tp"])] if gpus.count > gpus.box else []
    container = build or row.vendors.get(gpus.vendor) or Container(image=row.image, docker=row.docker)
    return Launch(
        engine=name,
        title=row.title,
        version=version,
        model=model,
        folder=None if wish.hub else served.folder.absolute(),
        name=str(given.get("served_name") or facts["name"]),
        gpus=replace(gpus, count=decided["tp"]),
        command=row.command,
        container=container.model_copy(update={"image": container.image.replace("{version}", version)}),
        container_command=build.args if isinstance(build, Build) else row.args,
        environment=tuple(settings.environment(rules(), decided, given)),
        arguments=tuple(chosen),
        warnings=(*settings.warnings(rules(), decided), *draft_notes(facts["draft"]), *extra),
        port_flag=row.port.flag,
        port=wish.port or row.port.default,
        fit=fitted,
        draft=facts["draft"],
    )


def _refuse_wishes(served: Served, gpus: Gpus, wish: Wish, name: str, row: Engine) -> None:
    """Refuse what no rule need be asked for."""
    if gpus.vendor not in row.vendor:
        fix = f"choose one of {', '.join(engines_for(gpus))}"
        raise UsageError(f"{row.title} does not run on {gpus.name}", where="--engine", fix=fix)
    if wish.version and not _VERSION.fullmatch(wish.version) and wish.version not in (*row.builds, row.version):
        known = ", ".join(row.builds) or "none"
        fix = f"write a version, as in {name}=={row.version}, or a build: {known}"
        raise UsageError(f"'{wish.version}' is no version of {row.title}", where="--engine", fix=fix)
    if wish.hub and not _HUB_NAME.fullmatch(wish.hub):
        fix = "write organisation/name, or organisation/name@COMMIT with the 40 digits of a commit: a branch can move"
        raise UsageError(f"'{wish.hub}' is no name on the Hub", where="--hub", fix=fix)
    if wish.port is not None and not 0 < wish.port <= _MAX_PORT:
        raise UsageError(f"there is no port {wish.port}", where="--port", fix=f"choose one of 1 to {_MAX_PORT}")
    if not wish.context and not served.context and gpus.vendor != CPU.vendor:
        what = "config.json does not say how long a context may be (max_position_embeddings)"
        raise UsageError(what, where=str(served.folder), fix="say it with --context N")
    if wish.context and served.context and wish.context > served.context:
        what = f"the model's context is {served.context:,} tokens, {wish.context:,} were asked for"
        raise UsageError(what, where="--context", fix=f"at most --context {served.context}")
    if wish.tp and wish.tp > gpus.count:
        raise UsageError(f"--tp {wish.tp} needs more than {gpus}", where="--tp", fix=f"at most --tp {gpus.count}")
    if wish.tp and served.heads and served.heads % wish.tp:
        choices = ", ".join(str(tp) for tp in _sharing(gpus, served.heads))
        what = f"{served.heads} attention heads cannot be split over {wish.tp} GPUs"
        raise UsageError(what, where="--tp", fix=f"choose one of {choices}")


def _refuse_old(row: Engine, version: str, facts: Mapping[str, Any]) -> None:
    minimum = minimum_version(row, facts)
    if minimum and version_key(version) < version_key(minimum.version):
        how = " with --emulate" if facts["emulate"] else " with a draft" if facts["draft"] else ""
        what = f"{row.title} {version} is too old for {facts['family']}{how}: {minimum.version} is the oldest"
        raise UsageError(what, where=minimum.source, fix=f"take {row.title} {row.version}")


def _draft(name: str | None, chosen: Mapping[str, Any]) -> Draft | None:
    """Return what the draft takes, with as many guesses as the engine is told."""
    size = draft_size(name)
    told = chosen.get("speculative", {}).get("num_speculative_tokens")
    if "speculative_tokens" in chosen:  # SGLang counts the token before the guesses as well
        told = chosen["speculative_tokens"] - 1
    return replace(size, tokens=told) if size and told else size


def _load(
    served: Served, context: int | None, chosen: Mapping[str, Any], draft: Draft | None, build: Build | None
) -> Load:
    """Return what the engine is told to take at once, so that the fit and the script are of one server."""
    default = Load()
    return Load(
        batched_tokens=chosen.get("max_num_batched_tokens", default.batched_tokens),
        sequences=chosen.get("max_num_seqs", default.sequences),
        context=context or served.context or default.context,
        speculative_tokens=draft.tokens if draft else 0,
        splits=build.splits if build else None,
    )


def _refuse_requests(wish: Wish, row: Engine, chosen: Mapping[str, Any]) -> None:
    """Refuse numbers of requests that contradict each other."""
    requests, tokens = chosen.get("max_num_seqs", 0), chosen.get("max_num_batched_tokens", 0)
    if wish.concurrency and requests < wish.concurrency:
        what = f"--concurrency {wish.concurrency} cannot be with max_num_seqs={requests}"
        raise UsageError(what, where="--set", fix=f"at least max_num_seqs={wish.concurrency}, or leave it out")
    if tokens and tokens < requests and "decode_context_parallel" in row.flags:  # vLLM's own check
        what = f"{row.title} refuses fewer batched tokens ({tokens:,}) than requests at once ({requests:,})"
        fix = f"at least --set max_num_batched_tokens={requests}, or fewer requests"
        raise UsageError(what, where="--set", fix=fix)


def _decide(
    served: Served, gpus: Gpus, wish: Wish, row: Engine, given: Mapping[str, Any], facts: Mapping[str, Any]
) -> tuple[dict[str, Any], Fit | None]:
    """Choose how many GPUs share a matrix, whether they share the cache, and the context; refuse what cannot work."""
    sizes = [wish.tp] if wish.tp else sorted(_sharing(gpus, served.heads), reverse=True)
    for tp in sizes:
        if wish.dcp and tp % wish.dcp:
            what = f"--dcp {wish.dcp} does not divide the {tp} GPUs that share a matrix"
            raise UsageError(what, where="--dcp", fix=f"choose one of {', '.join(map(str, _divisors(tp)))}")
        tried = {**facts, **parallel_facts(served, tp, wish.dcp or 1), "context": wish.context}
        tried |= chosen_facts(settings.choose(rules(), tried, row, given))
        rule = settings.refusal(rules(), tried, given)
        if rule is None:
            return _with_context(served, replace(gpus, count=tp), wish, row, given, tried)
        if not rule.or_fewer_gpus or tp == sizes[-1]:
            raise settings.refused(rule, tried)
    raise AssertionError("one GPU is always among those that are tried")


def _with_context(
    served: Served, gpus: Gpus, wish: Wish, row: Engine, given: Mapping[str, Any], facts: dict[str, Any]
) -> tuple[dict[str, Any], Fit | None]:
    if wish.emulate:
        served = replace(served, needs=served.needs.expanded_to_bf16())
    if gpus.vendor == CPU.vendor:
        refuse_too_large(served.needs, gpus, emulate=wish.emulate, dtype=_dtype(row, given, facts))
        context = wish.context or min(served.context or _CPU_CONTEXT, _CPU_CONTEXT)
        why = "asked for with --context" if wish.context else "short, for a CPU; --context asks for more"
        return {**facts, "context": context, "context_reason": why}, None
    chosen = {one.name: one.value for one in settings.choose(rules(), facts, row, given)}
    draft = _draft(facts["draft"], chosen)
    _refuse_requests(wish, row, chosen)
    if row.text_half or chosen.get("language_model_only"):
        served = replace(served, needs=served.needs.without_vision())
    question: dict[str, Any] = {
        "kv_dtype": str(chosen.get("kv_cache_dtype", "auto")),
        "utilization": float(chosen.get("gpu_memory_utilization", UTILIZATION)),
        "concurrency": wish.concurrency,
        "draft": draft,
        "block": chosen.get("block_size", BLOCK),
        "reserve_outside": row.reserve_outside,
    }
    # What vLLM does where it is not told; of the others it is not known.
    vision = str(chosen.get("mm_encoder_tp_mode", "weights" if "mm_encoder_tp_mode" in row.flags else "data"))
    build = row.builds.get(facts["build"])
    wanted = (wish.context or served.context or 0) * (wish.concurrency or 1)
    can_split = "decode_context_parallel" in row.flags and served.needs.latent is not None
    sizes = [wish.dcp] if wish.dcp else [1, gpus.count] if can_split and gpus.count > 1 else [1]
    load = _load(served, wish.context, chosen, draft, build)
    ways = [Parallel(gpus.count, wish.ep, dcp, vision) for dcp in sizes]
    fits = [fit(served, gpus, parallel=way, context=wish.context, load=load, **question) for way in ways]
    found = next((one for one in fits if one.fits and (one.kv_tokens or 0) >= wanted), fits[-1])
    if not found.fits:
        raise CheckFailedError(f"it does not fit {gpus}: {found.problem}", where="--gpus", fix=found.advice)
    context, why = _context(served, wish, found)
    load = _load(served, context, chosen, draft, build)
    shown = fit(served, gpus, parallel=found.parallel, context=context, load=load, **question)
    return {**facts, "dcp": found.parallel.decode_context, "context": context, "context_reason": why}, shown


def _dtype(row: Engine, given: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """Return the type that the engine is told to compute in."""
    return next((one.value for one in settings.choose(rules(), facts, row, given) if one.name == "dtype"), None)


def _context(served: Served, wish: Wish, found: Fit) -> tuple[int | None, str]:
    """Return the context to serve: as asked, or the longest that fits so many requests at once."""
    most, share = wish.context or served.context, wish.concurrency or 1
    if found.kv_tokens is None or most is None:
        return most, "asked for with --context" if wish.context else "the model's own"
    room = found.kv_tokens // share
    if room >= most:
        held = (
            f"the cache has room for {found.kv_tokens:,} tokens, {found.kv_tokens / most:.1f} requests of full length"
        )
        return most, held if wish.context else f"the model's own; {held}"
    context = room // _CONTEXT_STEP * _CONTEXT_STEP
    if wish.context or context < _SHORTEST:
        what = f"the KV cache has room for {found.kv_tokens:,} tokens, not for {share} times {most:,}"
        fix = f"--context {max(context, 1)} would fit; or fewer at once, more GPUs, or fewer experts"
        raise CheckFailedError(f"it does not fit {found.gpus}: {what}", where="--context", fix=fix)
    return context, f"of the model's {most:,} tokens, what the cache has room for ({found.kv_tokens:,} for {share})"


def _sharing(gpus: Gpus, heads: int | None) -> list[int]:
    """Return the numbers of GPUs of one machine that can share a matrix: powers of two where heads are not known."""
    most = min(gpus.count, gpus.box)
    return [tp for tp in range(1, most + 1) if (heads % tp == 0 if heads else tp & (tp - 1) == 0)]


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _left_over(gpus: Gpus, tp: int) -> Note:
    """Say what becomes of the GPUs that this launch does not use."""
    copies, free = divmod(gpus.count, tp)
    text = f"{tp} of {gpus} are used"
    if copies > 1:
        text += f": start {copies} copies on ports of their own, each on its GPUs"
    if free:
        text += f"{' and' if copies > 1 else ':'} {free} {'GPU stays' if free == 1 else 'GPUs stay'} free"
    return Note(text, "halfbyte")


def _machines(gpus: Gpus, tp: int) -> Note:
    """Warn of more GPUs than one machine has: a script starts on one."""
    number = -(-gpus.count // gpus.box)
    text = f"{gpus} are usually {number} machines with {gpus.box} GPUs each, and this script is for one machine: "
    if tp > gpus.box:
        text += f"--tp {tp} over several needs the engine's own cluster, which is not set up here"
    else:
        text += "run it on each of them"
    return Note(text, "data/gpus.yaml")
