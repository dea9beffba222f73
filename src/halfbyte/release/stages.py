"""The stages of a release as data: each stage's command, result and dependencies.

Every stage except the verdict is a command. An argument may contain the placeholders `<out>`, `<source>` or `<url>`,
whose values can change between runs and are therefore not part of a stage's key.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.options.declare import to_argv
from halfbyte.options.serve import URL_COMMANDS
from halfbyte.options.server_tests import BenchOptions
from halfbyte.options.stages import stage_argv

OUT, SOURCE, URL = "<out>", "<source>", "<url>"
HALFBYTE = (*OWN_PYTHON, "-m", "halfbyte")
_PROVENANCE = ("-m", "halfbyte.release.write_provenance")
PROVENANCE = (*OWN_PYTHON, *_PROVENANCE)
_MARK = re.compile(f"{OUT}|{SOURCE}|{URL}")
VERDICT = "verdict"
SERVE = "serve"
AFTER_VERDICT = ("provenance", "card", "report", "publish")
_MADE = ("quantize",)
_LOGS = f"{OUT}/halfbyte/release"

Words = tuple["str | tuple[str, ...]", ...]  # an inner tuple is a nested command, as for --then


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of a release."""

    name: str
    words: Words
    result: str | None = None  # the file in OUT that it writes; None: only the exit code counts
    folder: str | None = None  # in OUT: partial results to resume from; removed if the stage's key changes
    needs: tuple[str, ...] = ()  # stages that must be done first, in this run or an earlier one
    after: tuple[str, ...] = ()  # stages whose result it reads if there is one
    reads: tuple[Path, ...] = ()  # files that it reads
    of_source: bool = False  # whether it reads the source's weights
    of_weights: bool = True  # whether it reads the output's weights
    of_evidence: bool = False  # whether it reads all evidence
    program: tuple[str, ...] = HALFBYTE
    typed: tuple[str, ...] = ("halfbyte",)  # the program as shown to users

    def command(self, places: Mapping[str, str]) -> list[str]:
        """Return the arguments of the program."""
        return [_filled(word, places) for word in self.words]

    def typed_command(self, places: Mapping[str, str]) -> list[str]:
        """Return the command as shown to users; empty if the stage has none."""
        return [*self.typed, *self.command(places)] if self.words else []


def _filled(word: str | tuple[str, ...], places: Mapping[str, str]) -> str:
    if isinstance(word, tuple):
        return shlex.join(_filled(inner, places) for inner in word)
    return _MARK.sub(lambda mark: places.get(mark[0], mark[0]), word)  # in one pass: a path may contain a placeholder


def shown(stage: Stage, places: Mapping[str, str]) -> str:
    """Return a stage's command as a shell line; empty if the stage has none."""
    words = stage.typed_command(places)
    return " ".join(word if word in (URL, "URL") else shlex.quote(word) for word in words)


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Options from the command line and the recipe's release block."""

    recipe: str
    block: Mapping[str, Any]
    quantize: tuple[str, ...] = ()  # arguments of `quantize` after `-r RECIPE`
    device: str = "cpu"
    reads: tuple[Path, ...] = ()  # local calibration files
    url: str | None = None
    reference_url: str | None = None
    force: bool = False


def make_stages(options: ReleaseRequest) -> list[Stage]:
    """Return the stages of a release block, in execution order."""
    block = options.block
    quantize = Stage("quantize", ("quantize", SOURCE, OUT, "-r", options.recipe, *options.quantize),
                     result="halfbyte/plan.json", reads=options.reads, of_source=True, of_weights=False)  # fmt: skip
    stages = [quantize, *_of_files(options), *_served(options), Stage(VERDICT, (), of_evidence=True)]
    if block.get("provenance"):
        words = (OUT, SOURCE)
        stages.append(Stage("provenance", words, "halfbyte/provenance.json", needs=_MADE, of_source=True,
                            of_evidence=True, program=PROVENANCE, typed=("python", *_PROVENANCE)))  # fmt: skip
    if block.get("card"):
        words = ("card", OUT, *_card_options(block))
        stages.append(Stage("card", words, "README.md", needs=_MADE, of_evidence=True))
    if block.get("report"):
        stages.append(Stage("report", ("report", OUT), "halfbyte/report.html", needs=_MADE, of_evidence=True))
    if "publish" in block:
        words = ("publish", OUT, *stage_argv("publish", block["publish"]))
        words += ("--force",) if options.force else ()
        stages.append(Stage("publish", words, after=("card", "report"), needs=_MADE, of_evidence=True))
    return stages


def _of_files(options: ReleaseRequest) -> list[Stage]:
    """Return the stages that need no server."""
    block, stages = options.block, list[Stage]()
    if "audit" in block:
        words = ("audit", OUT, "--against", SOURCE, *stage_argv("audit", block["audit"]))
        stages.append(Stage("audit", words, "halfbyte/audit.json", of_source=True, needs=_MADE))
    if "loops" in block:
        words = ("loops", OUT, "--against", SOURCE, *stage_argv("loops", block["loops"]))
        stages.append(Stage("loops", words, "halfbyte/loops.json", of_source=True, needs=_MADE))
    if "compare" in block:
        words = ("compare", SOURCE, OUT, *stage_argv("compare", block["compare"]))
        words += () if options.device == "cpu" else ("--device", "cuda")
        words += ("-o", f"{OUT}/halfbyte/compare.json")
        reads = _files(block["compare"]["data"])
        stages.append(Stage("compare", words, "halfbyte/compare.json", reads=reads, of_source=True, needs=_MADE))
    if "scripts" in block:
        words = ("serve", OUT, *stage_argv("scripts", block["scripts"]))
        words += ("--write", f"{OUT}/halfbyte/serve")
        stages.append(Stage("scripts", words, "halfbyte/serve/serve.json", needs=_MADE))
    return stages


def _served(options: ReleaseRequest) -> list[Stage]:
    """Return the stages that start a server, then those that use it."""
    block, stages = options.block, list[Stage]()
    inside = [name for name in URL_COMMANDS if name in block]
    against_source = "eval" in block and block["eval"]["against"] == "source"
    own_source = against_source and options.reference_url is None
    if own_source:
        then = ("eval", *stage_argv("eval", block["eval"], without=("margin",)), "-o", f"{OUT}/halfbyte/eval-source")
        server = stage_argv("source", block.get("source", block.get("serve", {})))
        words = ("serve", SOURCE, "--run", *server, "--log", f"{_LOGS}/engine-source.log", "--then", then)
        folder = "halfbyte/eval-source"
        stages.append(Stage("source", words, f"{folder}/eval.json", folder, _MADE, of_source=True,
                            of_weights=False))  # fmt: skip
    if inside and options.url is None:
        server = stage_argv("serve", block.get("serve", {}))
        words = ("serve", OUT, "--run", *server, "--log", f"{_LOGS}/engine.log", "--json")
        stages.append(Stage(SERVE, words, needs=_MADE))
    url = options.url or URL
    beside = ("--against", options.reference_url) if options.reference_url else ()
    needs = _MADE if options.url else (*_MADE, SERVE)
    if "probe" in block:
        words = ("probe", url, *stage_argv("probe", block["probe"]), *beside)
        words += ("-o", f"{OUT}/halfbyte/probe")
        stages.append(Stage("probe", words, "halfbyte/probe/probe.json", "halfbyte/probe", needs=needs))
    if "eval" in block:
        words = ("eval", url, *stage_argv("eval", block["eval"]))
        words += beside if against_source else ()
        words += ("--baseline", f"{OUT}/halfbyte/eval-source") if own_source else ()
        words += ("-o", f"{OUT}/halfbyte/eval")
        after = ("source",) if own_source else ()
        stages.append(Stage("eval", words, "halfbyte/eval/eval.json", "halfbyte/eval", after=after, needs=needs))
    if "bench" in block:
        words = ("bench", url, *_bench_options(options), "-o", f"{OUT}/halfbyte/bench")
        stages.append(Stage("bench", words, "halfbyte/bench/bench.json", "halfbyte/bench", needs=needs))
    return stages


def without_baseline(stage: Stage) -> Stage:
    """Return a stage without its --baseline option, because the baseline does not exist."""
    if "--baseline" not in stage.words:
        return stage
    at = stage.words.index("--baseline")
    return Stage(stage.name, (*stage.words[:at], *stage.words[at + 2 :]), stage.result, stage.folder, stage.needs,
                 program=stage.program)  # fmt: skip


def _bench_options(options: ReleaseRequest) -> tuple[str, ...]:
    words, serve = stage_argv("bench", options.block["bench"]), options.block.get("serve", {})
    if options.url is not None:
        return (*words, "--tokenizer", OUT)
    server = {"gpus": serve.get("gpus"), "emulated": serve.get("emulate")}
    return words + to_argv(BenchOptions, server, ("gpus", "emulated"))


def _card_options(block: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options of `halfbyte card`; the repository defaults to that of `publish`."""
    card: Mapping[str, Any] = cast("Any", block["card"]) if isinstance(block["card"], Mapping) else {}
    named = {"repo": block["publish"]["repo"]} if "publish" in block else {}
    return stage_argv("card", {**named, **card})


def _files(data: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of DOMAIN=FILE[:COLUMNS]."""
    names = [pair.partition("=")[2] for pair in data]
    return tuple(Path(name if Path(name).exists() else name.rpartition(":")[0] or name) for name in names)
