"""Check the requirements of every stage of a release before the first byte is written.

Each row has the stage, its requirement, the state of this machine, and the fix. Stages that are kept, and
those after --stop-after, are not checked. The checks call the code of the stages where possible: the
plan, the launch arithmetic, the first sample of each data set, the suite's tasks. Nothing is written, no server is
started and no weight is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from halfbyte.audit.findings import count
from halfbyte.audit.vllm_check import vllm_version
from halfbyte.bench.records import points
from halfbyte.calibrate.chat import load_template
from halfbyte.calibrate.datasets import FILES, read_texts
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.output_folder import (
    FOLDER,
    PLAN,
    is_foreign,
    nearest,
    read_plan,
    refuse_nested,
    refuse_unwritable,
)
from halfbyte.compare.tokens import LENGTH, SAMPLES, rows_of
from halfbyte.doctor.facts import examine
from halfbyte.endpoint.client import EndpointError, parse_url
from halfbyte.engine.backends.support import Request, Resources, refuse_unsupported
from halfbyte.engine.pipeline import plan
from halfbyte.errors import (
    EXIT_MACHINE,
    EXIT_USAGE,
    CheckFailedError,
    CheckpointError,
    HalfbyteError,
    MachineError,
    RecipeError,
    TensorError,
    UsageError,
)
from halfbyte.evaluate.suites import load_suite, suite_names
from halfbyte.formats.registry import FORMATS
from halfbyte.inspect.inspection import inspect
from halfbyte.machine.device_option import CPU, device_names
from halfbyte.machine.interrupts import gc_paused
from halfbyte.machine.os_errors import os_error
from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.machine.resources import memory_facts, refuse_few_addresses
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.options.server_tests import BenchOptions
from halfbyte.plan.manifest import refuse_nothing_to_prune
from halfbyte.plan.summary import peak_memory_nbytes, source_nbytes
from halfbyte.probe.budget import parse_budget
from halfbyte.probe.profiles import load_profile
from halfbyte.probe.run import chosen
from halfbyte.prune.plan_source import refuse_unclear
from halfbyte.publish.hub.hub import check_name
from halfbyte.release.stages import SERVE, VERDICT, ReleaseRequest
from halfbyte.serve import checkpoint_facts as served
from halfbyte.serve import needs
from halfbyte.serve.gpus import parse_gpus
from halfbyte.serve.installed import engine_environment, engine_here, gpus_here, installed
from halfbyte.serve.launch import launch
from halfbyte.serve.launch_data import engine
from halfbyte.serve.launch_facts import LaunchOptions
from halfbyte.serve.ports import next_free_port
from halfbyte.statistics.power import ENOUGH, FLIP_RATE, HOPELESS, chance_to_pass
from halfbyte.statistics.verdicts import MARGIN
from halfbyte.ui.suggest import did_you_mean
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.plan.manifest import Plan
    from halfbyte.recipe.decisions import Recipe
    from halfbyte.release.run import Release
    from halfbyte.serve.checkpoint_facts import Served
    from halfbyte.serve.installed import Installed
    from halfbyte.ui.console import Level

_REFUSALS = (CheckFailedError, CheckpointError, MachineError, RecipeError, TensorError, UsageError)  # rows, not exits
HUB_ANSWERS_WITHIN_S = 5.0
SERVER_ANSWERS_WITHIN_S = 5.0
_SPARE_NBYTES = 1 << 28  # non-weight files
_BF16_NBYTES, _FP32_NBYTES = 2, 4
_LOOPS_ROOM = 1.25  # times the decoded weights, as degeneracy/generate.py requires
_PLUGINS = "vllm.general_plugins"
_RECIPE_OPTIONS = ("--context", "--set", "--engine")  # options that come from the recipe
_REMOTE = "use a server on another machine with --url"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a stage, and whether this machine meets it."""

    stage: str
    needs: str
    here: str
    level: Level = "good"  # bad: the stage would fail; note: not known yet
    fix: str = ""
    exit_code: int = 0  # if bad: 2 for the recipe and the command line, 3 for this machine

    def as_dict(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return asdict(self)


def infeasible(requirements: Sequence[Requirement], order: Sequence[str]) -> HalfbyteError | None:
    """Return the error of a release that cannot complete on this machine, or None. Recipe errors take precedence."""
    bad = [requirement for requirement in requirements if requirement.level == "bad"]
    if not bad:
        return None
    first = min(bad, key=lambda requirement: requirement.exit_code)
    missing = f"{first.stage}: {first.needs}: {first.here}"
    what = f"INFEASIBLE: {len(bad)} of {len(requirements)} requirements are not met; {missing}"
    stage = min((requirement.stage for requirement in bad), key=order.index)
    before = [name for name in order[: order.index(stage)] if name != VERDICT]
    fix = first.fix + (f"; --stop-after {before[-1]} runs the stages before {stage}" if before else "")
    kind = MachineError if first.exit_code == EXIT_MACHINE else UsageError
    return kind(what, where="preflight; nothing was written", fix=fix.removeprefix("; "))


class Preflight:
    """Checks the requirements of the stages that a release would run."""

    def __init__(self, release: Release, asked: ReleaseRequest, recipe: Recipe, layers: int | None) -> None:
        self._release, self._asked, self._recipe, self._layers = release, asked, recipe, layers
        self._source, self._out = release.folders.source, release.folders.out
        self._requirements: list[Requirement] = []
        self._engines: dict[str, Installed] = {}  # cached, because reading a version can take seconds

    def run(self) -> list[Requirement]:
        """Return every requirement, in the order of the stages."""
        self._requirements = []
        with ExitStack() as held:
            runs = self._runs()
            loading = held.enter_context(self._loading_suite()) if {"eval", "source"} & set(runs) else None
            importing = held.enter_context(self._importing_engine(runs))
            for name in runs:
                if name == "quantize" and not self._quantize():
                    break  # all other checks need the source and the plan
                for check in self._checks(name, importing):
                    check()
                if loading is not None and name in ("source", "eval"):
                    suite = self._asked.block["eval"]["suite"]
                    self._check("eval", f"suite {suite}: tasks and data", partial(self._suite, loading))
                    loading = None  # both stages use the same suite
        return self._requirements

    def _runs(self) -> list[str]:
        """Return the stages that would run, up to --stop-after; all of them if the source cannot be read."""
        names = [stage.name for stage in self._release.stages]
        if self._source.is_dir():
            names = [stage.name for stage, state in self._release.outlook() if state == "run"]
        stop = self._release.stop_after
        order = [stage.name for stage in self._release.stages]
        return [name for name in names if stop is None or order.index(name) <= order.index(stop)]

    def _checks(self, name: str, importing: _Child | None) -> Iterator[Callable[[], object]]:
        """Yield the checks of a stage. `run` calls those of `quantize` before these, and the suite check after them."""
        if name == "audit" and self._asked.block["audit"].get("engine"):
            yield lambda: self._check(name, "vLLM in this environment", self._vllm)
        elif name == "loops":
            yield lambda: self._check(name, "the decoded model in memory", self._loops_memory)
        elif name == "compare":
            for pair in self._asked.block["compare"]["data"]:
                yield lambda pair=pair: self._check(name, f"data {pair.partition('=')[2]}", lambda: self._texts(pair))
            yield from self._device(name)
        elif name == "scripts":
            gpus = self._asked.block["scripts"]["gpus"]
            yield lambda: self._check(name, f"the output fits {gpus}", self._scripts)
        elif name in ("source", SERVE):
            yield lambda: self._serve(name, importing)
        if name == "probe":
            yield lambda: self._check(name, "profile and probes", self._probes)
        if name == "bench":
            yield lambda: self._check(name, "vLLM's load generator", lambda: _engine_words(self._installed("vllm")))
            yield lambda: self._check(name, "shapes within the context", self._shapes)
        if name == "eval":
            yield self._eval_gate
        if name in URL_COMMANDS:
            yield from self._servers(name)
        if name == "publish":
            yield lambda: self._check(name, "a Hub token with write access", self._token)

    def _check(self, stage: str, needs: str, check: Callable[[], str], *, fix: str = "") -> bool:
        """Add a row from a check's return value or error; return whether the requirement is met."""
        try:
            self._requirements.append(Requirement(stage, needs, check()))
        except OSError as error:
            raised: HalfbyteError = os_error(error)
        except _REFUSALS as error:
            raised = error
        else:
            return True
        code = EXIT_MACHINE if isinstance(raised, (MachineError, CheckFailedError)) else raised.exit_code
        self._requirements.append(Requirement(stage, needs, raised.what, "bad", fix or raised.fix, code))
        return False

    # quantize

    def _quantize(self) -> bool:
        """Check `quantize`; return whether there is a plan, which the checks of other stages need."""
        name, recipe = "quantize", self._recipe
        if not self._check(name, f"source {self._source}", self._source_words):
            return False
        self._check(name, f"output folder {self._out}", self._folder)
        if not self._check(name, f"recipe {recipe.name} for this source", self._plan_words):
            return False
        self._check(name, f"{size(self._disk_nbytes())} of disk", self._disk)
        self._check(name, f"{size(self._memory_nbytes())} of memory", self._memory)
        for check in self._device(name):
            check()
        if recipe.calibrate is not None and self._check(name, "tokenizer of the source", self._tokenizer):
            for dataset in recipe.calibrate.datasets:
                columns = f" ({', '.join(dataset.columns)})" if dataset.columns else ""
                self._check(name, f"data set {dataset.source}{columns}", lambda dataset=dataset: self._dataset(dataset))
        return True

    def _source_words(self) -> str:
        if str(self._source).partition(":/")[0] in ("hf", "s3", "gs") and not self._source.exists():
            address = str(self._source).partition(":/")[2].strip("/")
            fix = f"hf download {address} --local-dir SRC, then halfbyte release SRC OUT ..."
            raise UsageError("a release reads its source several times and needs a local folder", fix=fix)
        shards = self._checkpoint.shards
        return f"{count(len(shards), 'shard')}, {size(sum(shards.values()))}"

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return open_checkpoint(self._source)

    @cached_property
    def _plan(self) -> Plan:
        with gc_paused():
            planned = plan(self._checkpoint, self._recipe, layers=self._layers)
            refuse_nothing_to_prune(planned)
            return planned

    def _plan_words(self) -> str:
        resources, measures = Resources(device=self._asked.device), self._recipe.calibrate is not None
        refuse_unsupported(Request(recipe=self._recipe, resources=resources, measures=measures))
        if self._recipe.prune is not None:
            refuse_unclear(self._plan, None, has_statistics=False)
        plan = self._plan
        return f"{size(source_nbytes(plan))} -> {size(plan.write_nbytes)} in {count(len(plan.shards), 'shard')}"

    def _folder(self) -> str:
        out = self._out
        refuse_nested(self._source, out)
        refuse_unwritable(out)
        if (out / FOLDER / PLAN).is_file():
            if read_plan(out)["parts"].get("recipe") != self._release.fingerprint:
                fix = "use a new folder, or the recipe that created this one"
                raise UsageError("the folder contains the output of another recipe", where=str(out), fix=fix)
            return "resumes an earlier run of this recipe"
        if out.is_dir() and any(map(is_foreign, out.iterdir())):
            raise UsageError("the output folder is not empty", where=str(out), fix="use a new folder")
        return "writable"

    def _hidden_nbytes(self) -> int:
        """Return the size of all calibration tokens' hidden states between two layers, in BF16."""
        calibrate = self._recipe.calibrate
        width = self._plan.model.family.number(self._checkpoint.config, "width")
        if calibrate is None or width is None:
            return 0
        return calibrate.samples * calibrate.sequence_length * width * _BF16_NBYTES

    def _disk_nbytes(self) -> int:
        """Return the disk space needed for unwritten shards and, with calibration, two sets of hidden states."""
        there = {path.name: path.stat().st_size for path in self._out.glob("*.safetensors")}
        shards = sum(shard.nbytes for shard in self._plan.shards if there.get(shard.name) != shard.nbytes)
        return shards + 2 * self._hidden_nbytes() + _SPARE_NBYTES

    def _disk(self) -> str:
        free = shutil.disk_usage(nearest(self._out)).free
        if free < self._disk_nbytes():
            fix = "free some space, or use a folder on another disk"
            raise MachineError(f"{size(free)} free", where=str(self._out), fix=fix)
        return f"{size(free)} free"

    def _memory_nbytes(self) -> int:
        """Return a lower bound of the peak memory: jobs in flight, or two layers and the hidden states."""
        jobs = peak_memory_nbytes(self._plan)
        if self._recipe.calibrate is None:
            return jobs
        layers: dict[int, int] = {}
        for job in self._plan.jobs:
            if job.layer is not None:
                layers[job.layer] = layers.get(job.layer, 0) + job.read_nbytes
        return max(jobs, 2 * max(layers.values(), default=0) + self._hidden_nbytes())

    def _memory(self) -> str:
        refuse_few_addresses(self._memory_nbytes(), None, measures=self._recipe.calibrate is not None)
        return _memory_words(self._memory_nbytes())

    def _tokenizer(self) -> str:
        vocabulary = load_vocabulary(self._source)
        if vocabulary.pad is None:
            raise UsageError("it has neither a pad token nor an EOS token", fix="set eos_token in its config")
        return "loads"

    def _dataset(self, dataset: Any) -> str:
        """Read the first sample, with its columns and the chat template."""
        local = Path(dataset.source).suffix in FILES or Path(dataset.source).is_file()
        if not local and (problem := self._hub) is not None:
            fix = f"connect this machine to the network, or use a local file: --data {dataset.domain}=FILE"
            raise MachineError(f"it is on the Hub, and {problem}", where=dataset.source, fix=fix)
        template = None
        if dataset.chat_template:
            template = load_template(self._source, load_vocabulary(self._source).named)
        texts = read_texts(dataset, None, template)
        try:
            if next(texts, None) is None:
                raise UsageError("no sample contains text", where=dataset.source, fix="check the columns")
        finally:
            cast("Generator[Any]", texts).close()
        return "first sample read"

    @cached_property
    def _hub(self) -> str | None:
        """Return why the Hub is unavailable, or None."""
        return hub_problem()

    def _device(self, stage: str) -> Iterator[Callable[[], object]]:
        if self._asked.device != CPU:
            fix = "check the driver (nvidia-smi) and that PyTorch is a CUDA build, or use --device cpu"
            yield lambda: self._check(stage, f"--device {self._asked.device}", self._gpu, fix=fix)

    @cached_property
    def _torch_gpus(self) -> Sequence[Any]:
        return examine(None).gpus or ()

    def _gpu(self) -> str:
        last = max(int(name.partition(":")[2] or 0) for name in device_names(self._asked.device))
        if last >= len(self._torch_gpus):
            raise MachineError(f"PyTorch sees {len(self._torch_gpus) or 'no'} CUDA devices")
        return f"{len(self._torch_gpus)}x {self._torch_gpus[0].name}"

    # stages that read files

    def _vllm(self) -> str:
        return f"vLLM {vllm_version()}"

    def _loops_memory(self) -> str:
        return _memory_words(int(_LOOPS_ROOM * _FP32_NBYTES * inspect(self._checkpoint).parameters))

    def _texts(self, pair: str) -> str:
        """Tokenize the rows of one file, as `compare` does."""
        how = self._asked.block["compare"]
        samples = max(how.get("samples", SAMPLES) // len(how["data"]), 1)
        rows = rows_of([pair], self._source, samples=samples, length=how.get("length", LENGTH))
        return f"{len(rows.tokens)} rows of {rows.tokens.shape[1]} tokens"

    def _scripts(self) -> str:
        how = self._asked.block["scripts"]
        name, _, version = str(how.get("engine") or "").partition("==")
        options = LaunchOptions(engine=name or None, version=version or None, context=how.get("context"))
        launched = launch(self._served(SERVE), parse_gpus(how["gpus"], where="release.scripts.gpus"), options)
        return f"{launched.title} {launched.version}, launch scripts only"

    # servers

    def _served(self, stage: str) -> Served:
        """Return the launch facts of the source, or of the output, which may not exist yet."""
        if stage == "source":
            return served.served(self._source)
        if (self._out / FOLDER / PLAN).is_file():
            with contextlib.suppress(*_REFUSALS):  # an unfinished output: use the plan
                return served.served(self._out)
        plan, source = self._plan, served.served(self._source)
        rules = plan.recipe.quantize
        facts = replace(
            source,
            needs=needs.needs(plan),
            experts=plan.experts,
            source_experts=plan.model.experts if plan.kept is not None else source.source_experts,
        )
        if rules is not None:
            format = FORMATS[rules.format]
            inputs = None if rules.activations in (None, "none") else format.activations
            kv = "fp8" if rules.kv_cache not in (None, "none") else None
            return replace(facts, quantization=format.served_as, kv_dtype=kv,
                           activations="none" if inputs is None else inputs.name)  # fmt: skip
        return replace(facts, quantization=served.BF16, activations="none") if plan.decodes else facts

    def _how(self, stage: str) -> Mapping[str, Any]:
        block = self._asked.block
        return block.get("source", block.get(SERVE, {})) if stage == "source" else block.get(SERVE, {})

    def _installed(self, name: str) -> Installed:
        if name not in self._engines:
            self._engines[name] = installed(name)
        return self._engines[name]

    def _serve(self, stage: str, importing: _Child | None) -> None:
        """Check the engine, the GPUs or emulation, memory and a port, as `serve --run` does."""
        how = self._how(stage)
        name = how.get("engine") or "vllm"
        block = "source" if stage == "source" and "source" in self._asked.block else SERVE  # the one that `_how` reads
        emulate = f"emulate in BF16 with --set release.{block}.emulate=true"
        url = _REMOTE if stage == SERVE else "use a server of the source on another machine with --reference-url"

        def find() -> str:
            engine(name)
            local = self._installed(name)
            engine_here(how.get("engine"), local)
            return _engine_words(local)

        if not self._check(stage, f"{name}, installed", find):
            return
        local = self._installed(name)
        if importing is not None and not self._check(stage, f"{name}, importable", lambda: _imported(importing, name)):
            return
        if (gpus := how.get("gpus")) is not None:
            instead = f"use a machine with these GPUs; or {emulate} --set release.{block}.gpus=null; or {url}"
            if not self._check(stage, f"{gpus} on this machine", lambda: _gpus_here(gpus, local), fix=instead):
                return
        elif how.get("emulate"):
            self._check(stage, "halfbyte's plugin in the engine's environment", lambda: _plugin(local))
        fix = f"{emulate}; or {url}" if not how.get("emulate") else f"use a machine with more memory; or {url}"
        needs = "kernels and memory for this checkpoint" + (", emulated" if how.get("emulate") else "")
        self._check(stage, needs, lambda: self._launch(stage, local, fix))
        self._check(stage, "a free port", _port)

    def _launch(self, stage: str, local: Installed, fix: str) -> str:
        """Plan the launch as `serve --run` does; an error that is not due to a recipe key is a machine error."""
        how = self._how(stage)
        options = LaunchOptions(
            engine=engine_here(how.get("engine"), local),
            version=local.version,
            context=how.get("context"),
            settings=tuple(how.get("settings") or ()),
            emulate=bool(how.get("emulate")),
            activations=how.get("activations"),
        )
        try:
            launched = launch(self._served(stage), gpus_here(how.get("gpus"), local), options)
        except (UsageError, CheckFailedError) as error:
            if error.where in _RECIPE_OPTIONS:
                raise UsageError(error.what, fix=f"change release.{stage}: {error.fix}") from None
            raise MachineError(error.what, fix=fix) from None
        return f"{launched.title} {launched.version} on {launched.gpus}" + (", emulated" if options.emulate else "")

    def _servers(self, stage: str) -> Iterator[Callable[[], object]]:
        """Check servers on other machines. A server of the output cannot run before the output exists."""
        earlier = [name for name in self._runs() if name not in (*URL_COMMANDS, VERDICT)]
        for option, url in (("--url", self._asked.url), ("--reference-url", self._asked.reference_url)):
            if url is None or any(row.needs == f"the server of {option}" for row in self._requirements):
                continue
            yield lambda option=option, url=url: self._server(stage, option, url, waits=bool(earlier))

    def _server(self, stage: str, option: str, url: str, *, waits: bool) -> None:
        needs = f"the server of {option}"

        def ask() -> str:
            endpoint = parse_url(url, SERVER_ANSWERS_WITHIN_S)
            try:
                endpoint.get("/v1/models", SERVER_ANSWERS_WITHIN_S)
            except EndpointError as error:
                if waits:
                    return ""
                raise MachineError(f"it does not answer: {error}", fix="start it, or correct its URL") from None
            return "answers"

        if self._check(stage, needs, ask) and not self._requirements[-1].here:
            fix = f"start it before {stage}"
            self._requirements[-1] = Requirement(stage, needs, "does not answer yet", "note", fix)

    # probe, eval, bench, publish

    def _probes(self) -> str:
        how = self._asked.block["probe"]
        probes = chosen(how.get("only", ()), how.get("skip", ()))
        if not probes:
            raise UsageError("release.probe.only and .skip select no probes", fix="see halfbyte probe --list")
        gate = self._release.gates.get("probe")
        named: Sequence[str] = () if gate in (None, "passed") else gate["groups"]
        groups = {probe.group for probe in probes}
        for group in named:
            if group not in groups:
                what = f"release.gates.probe names the group '{group}', which has no selected probe"
                raise UsageError(what, fix=did_you_mean(group, sorted(groups)))
        parse_budget(how.get("budget"))
        return f"profile {load_profile(how.get('profile', 'kimi')).name}, {len(probes)} probes"

    @contextmanager
    def _loading_suite(self) -> Generator[_Child]:
        """Load the suite in a child process while other checks run; offline if the Hub is unavailable."""
        how = self._asked.block["eval"]
        name, local = how["suite"], how.get("data_dir") is not None
        if name in suite_names():
            local = local or all(task.folder.startswith("./") for task in load_suite(name).tasks)
        offline = {} if local or self._hub is None else _OFFLINE
        words = [
            *OWN_PYTHON,
            "-m",
            "halfbyte.release.suite_check",
            name,
            *([how["data_dir"]] if "data_dir" in how else []),
        ]
        with _child(words, {**os.environ, **offline}) as child:
            yield child

    def _suite(self, loading: _Child) -> str:
        code, text, errors = loading.ended()
        try:
            result: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
        except (ValueError, IndexError):
            last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
            raise MachineError(f"cannot load lm-eval: {last}", fix="see halfbyte doctor") from None
        if "tasks" in result:
            return f"{count(result['tasks'], 'task')} loaded"
        offline = self._hub is not None and "data_dir" not in self._asked.block["eval"]
        what = str(result["what"]) + (f"; {self._hub}" if offline else "")
        kind = MachineError if offline or result["exit_code"] == EXIT_MACHINE else UsageError
        raise kind(what, fix=str(result["fix"]).replace("--data-dir DIR", "--set release.eval.data_dir=DIR"))

    def _eval_gate(self) -> None:
        """Add the chance that an equally good build passes the eval gate. A gate that hardly any passes is an error."""
        how, wanted = self._asked.block["eval"], self._release.gates.get("eval")
        sizes = load_suite(how["suite"]).sizes(how.get("limit")) if how["suite"] in suite_names() else []
        if wanted is None or not sizes:
            return
        margin, flips = how.get("margin", MARGIN), how.get("flip_rate", FLIP_RATE)
        chance = chance_to_pass(sizes, margin, flips, accept=wanted == "accept")
        items = ", ".join(f"{task.task} {task.items:,} items" for task in sizes)
        here = f"{chance:.0%} of equally good builds pass (margin {100 * margin:g} pp, {flips:.1%} flips; {items})"
        fix = "" if chance >= ENOUGH else "raise release.eval.margin or .limit, or set gates.eval to no_regression"
        level: Level = "good" if chance >= ENOUGH else "note" if chance >= HOPELESS else "bad"
        code = EXIT_USAGE if level == "bad" else 0
        self._requirements.append(Requirement("eval", f"a gate '{wanted}' that can be passed", here, level, fix, code))

    def _shapes(self) -> str:
        how = self._asked.block["bench"]
        default = BenchOptions()
        users = ",".join(map(str, how["concurrency"])) if "concurrency" in how else default.concurrency
        sweep = points(how.get("shape", default.shape), users, "random")
        longest, context = max(point.prompt + point.output for point in sweep), self._how(SERVE).get("context")
        if self._asked.url is None and context is not None and longest > context:
            what = f"the longest request has {longest:,} tokens, but release.serve.context is {context:,}"
            raise UsageError(what, fix="shorten release.bench.shape, or raise release.serve.context")
        return f"{len(sweep)} points, at most {longest:,} tokens"

    def _token(self) -> str:
        check_name(self._asked.block["publish"]["repo"], "release.publish.repo")
        import huggingface_hub  # noqa: PLC0415 - only if a release is published

        login = "run hf auth login, or set HF_TOKEN to a token with write access"
        token = huggingface_hub.get_token()
        if token is None:
            raise MachineError("not logged in to the Hub", fix=login)
        if (problem := self._hub) is not None:
            fix = "connect this machine to the network, or publish later: --set release.publish=null"
            raise MachineError(problem, fix=fix)
        try:
            huggingface_hub.HfApi(token=token).whoami()
        except Exception as error:  # from the library or its transport; the message is not shown
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in (401, 403):
                raise MachineError("the Hub does not accept the token", fix=login) from None
            return "present, not confirmed by the Hub"
        return "accepted by the Hub"

    @staticmethod
    @contextmanager
    def _no_child() -> Generator[None]:
        yield None

    def _importing_engine(self, runs: Sequence[str]) -> contextlib.AbstractContextManager[_Child | None]:
        """Import the engine in its own Python while other checks run."""
        stage = next((name for name in ("source", SERVE) if name in runs), None)
        if stage is None:
            return self._no_child()
        try:
            local = self._installed(self._how(stage).get("engine") or "vllm")
        except _REFUSALS:
            return self._no_child()  # reported by its own row
        python = local.command.with_name("python")
        if not python.exists():
            return self._no_child()
        words = [str(python), *OWN_PYTHON[1:], "-c", f"import {local.engine}"]
        return _child(words, engine_environment(local.command, {}))


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[str]

    def ended(self) -> tuple[int, str, str]:
        """Wait; return the exit code, stdout and stderr."""
        if self.process.stdout is not None and self.process.stdout.closed:
            return self.process.returncode, "", ""
        out, errors = self.process.communicate()
        return self.process.returncode, out, errors


@contextmanager
def _child(words: Sequence[str], environment: Mapping[str, str]) -> Generator[_Child]:
    with subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield _Child(process)
        finally:
            process.kill()


def hub_problem() -> str | None:
    """Return why the Hub cannot be reached, or None. Any HTTP response counts as reachable."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return "HF_HUB_OFFLINE is set"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        request = urllib.request.Request(f"{endpoint}/api/models?limit=1", method="HEAD")
        with urllib.request.urlopen(request, timeout=HUB_ANSWERS_WITHIN_S):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"the Hub cannot be reached ({getattr(reason, 'strerror', None) or reason})"


def _memory_words(needed: int) -> str:
    memory = memory_facts()
    there = min((n for n in (memory.available_nbytes, memory.limit_nbytes) if n is not None), default=None)
    if there is not None and there < needed:
        fix = "free some memory, or use a machine with more"
        raise MachineError(f"{size(there)} available, {size(needed)} needed", fix=fix)
    return "unknown" if there is None else f"{size(there)} available"


def _engine_words(local: Installed) -> str:
    return f"{local.engine} {local.version}"


def _imported(importing: _Child, name: str) -> str:
    code, _, errors = importing.ended()
    if code:
        last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
        raise MachineError(f"`import {name}` failed: {last}", fix=f"reinstall {name}")
    return "yes"


def _gpus_here(requested: str, local: Installed) -> str:
    """Return the GPUs of this machine. Raise MachineError if there are too few, or the engine runs on the CPU."""
    wanted = parse_gpus(requested, where="release.serve.gpus")
    count = gpu_count()
    if local.device == CPU:
        raise MachineError(f"{count or 'no'} GPUs, and {_engine_words(local)} runs on the CPU")
    if count < wanted.count:
        raise MachineError(f"{count or 'no'} GPUs")
    return f"{count} GPUs"


def gpu_count(root: Path = Path("/")) -> int:
    """Return the number of GPUs that an engine can use, from driver devices and CUDA_VISIBLE_DEVICES."""
    nvidia = len([path for path in (root / "dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])
    nodes = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
    count = nvidia or sum(path.read_text().strip() != "0" for path in nodes)
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if chosen is None else min(count, len([device for device in chosen.split(",") if device.strip()]))


def _plugin(local: Installed) -> str:
    """Check that halfbyte's vLLM plugin is installed in the engine's environment."""
    if local.command.parent.resolve() == Path(sys.executable).parent.resolve():
        points = [point.name for point in metadata.entry_points(group=_PLUGINS)]
    else:
        folders = [str(folder) for folder in local.command.parent.parent.glob("lib/python3*/site-packages")]
        points = [point.name for found in metadata.distributions(path=folders) for point in found.entry_points
                  if point.group == _PLUGINS]  # fmt: skip
    if "halfbyte" not in points:
        fix = f"run {local.command.with_name('python')} -m pip install . in a checkout of halfbyte"
        raise MachineError("halfbyte is not installed in the engine's environment", fix=fix)
    return "installed"


def _port() -> str:
    port = next_free_port()
    if port is None:
        raise MachineError("no free port from 8000 to 8099", fix="stop a server")
    return str(port)
