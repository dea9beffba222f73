"""The stages of a release as data: which command each of them is, what it leaves, and what it rests on.

Every stage but the verdict is a command that anybody can type. A word of it may hold `<out>`, `<source>` or `<url>`,
which are known or said differently from one run to the next: what a stage was done with is compared without them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.machine.own_python import OWN_PYTHON

OUT, SOURCE, URL = "<out>", "<source>", "<url>"
HALFBYTE = (*OWN_PYTHON, "-m", "halfbyte")
_PROVENANCE = ("-m", "halfbyte.release.write_provenance")  # which is no command of `halfbyte`, and is typed as it is
PROVENANCE = (*OWN_PYTHON, *_PROVENANCE)
_MARK = re.compile(f"{OUT}|{SOURCE}|{URL}")
VERDICT = "verdict"
SERVE = "serve"
ASKS_SERVER = ("probe", "eval", "bench")  # inside one start of the engine
AFTER_VERDICT = ("provenance", "card", "report", "publish")
_MADE = ("quantize",)
_LOGS = f"{OUT}/halfbyte/release"

Words = tuple["str | tuple[str, ...]", ...]  # a tuple is a command inside a word, as --then takes it


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of a release."""

    name: str
    words: Words
    result: str | None = None  # the file below OUT that says it is done; None: only its exit code does
    folder: str | None = None  # below OUT: what it goes on with after an end; removed when it is asked for otherwise
    needs: tuple[str, ...] = ()  # stages that must be done before, in this run or an earlier one
    after: tuple[str, ...] = ()  # stages whose result it reads where there is one
    reads: tuple[Path, ...] = ()  # files that it reads
    of_source: bool = False  # whether it reads the source's weights
    of_weights: bool = True  # whether it reads the result's weights
    of_evidence: bool = False  # whether it reads whatever was measured
    program: tuple[str, ...] = HALFBYTE
    typed: tuple[str, ...] = ("halfbyte",)  # what somebody types for the program

    def command(self, places: Mapping[str, str]) -> list[str]:
        """Return the words as they are typed after the program."""
        return [_filled(word, places) for word in self.words]

    def typed_command(self, places: Mapping[str, str]) -> list[str]:
        """Return all words that somebody types; none where the stage is no command."""
        return [*self.typed, *self.command(places)] if self.words else []


def _filled(word: str | tuple[str, ...], places: Mapping[str, str]) -> str:
    if isinstance(word, tuple):
        return shlex.join(_filled(inner, places) for inner in word)
    return _MARK.sub(lambda found: places.get(found[0], found[0]), word)  # at once: a folder may be named like a mark


def shown(stage: Stage, places: Mapping[str, str]) -> str:
    """Return a stage's command as somebody would type it; nothing where it is none."""
    words = stage.typed_command(places)
    return " ".join(word if word in (URL, "URL") else shlex.quote(word) for word in words)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line and the recipe's release block say."""

    recipe: str
    block: Mapping[str, Any]
    quantize: tuple[str, ...] = ()  # words of its command after `-r RECIPE`
    device: str = "cpu"
    reads: tuple[Path, ...] = ()  # local calibration files
    url: str | None = None
    reference_url: str | None = None
    force: bool = False


def make_stages(asked: Asked) -> list[Stage]:
    """Return the stages that a release block asks for, in the order of the work."""
    block = asked.block
    quantize = Stage("quantize", ("quantize", SOURCE, OUT, "-r", asked.recipe, *asked.quantize),
                     result="halfbyte/plan.json", reads=asked.reads, of_source=True, of_weights=False)  # fmt: skip
    stages = [quantize, *_of_files(asked), *_served(asked), Stage(VERDICT, (), of_evidence=True)]
    if block.get("provenance"):
        words = (OUT, SOURCE)
        stages.append(Stage("provenance", words, "halfbyte/provenance.json", needs=_MADE, of_source=True,
                            of_evidence=True, program=PROVENANCE, typed=("python", *_PROVENANCE)))  # fmt: skip
    if block.get("card"):
        stages.append(Stage("card", ("card", OUT), "README.md", needs=_MADE, of_evidence=True))
    if block.get("report"):
        stages.append(Stage("report", ("report", OUT), "halfbyte/report.html", needs=_MADE, of_evidence=True))
    if "publish" in block:
        words = ("publish", OUT, block["publish"]["repo"], *_flags(block["publish"], "private"))
        words += ("--force",) if asked.force else ()
        stages.append(Stage("publish", words, after=("card", "report"), needs=_MADE, of_evidence=True))
    return stages


def _of_files(asked: Asked) -> list[Stage]:
    """Return the stages that need no server."""
    block, stages = asked.block, list[Stage]()
    if "audit" in block:
        words = ("audit", OUT, "--against", SOURCE, *_options(block["audit"], "sample", "engine"))
        stages.append(Stage("audit", words, "halfbyte/audit.json", of_source=True, needs=_MADE))
    if "loops" in block:
        words = ("loops", OUT, "--against", SOURCE, *_options(block["loops"], "prompts", "tokens"))
        stages.append(Stage("loops", words, "halfbyte/loops.json", of_source=True, needs=_MADE))
    if "compare" in block:
        data = block["compare"]["data"]
        words = ("compare", SOURCE, OUT, *(word for pair in data for word in ("--data", pair)))
        words += _options(block["compare"], "samples", "length", "activations", "kv")
        words += () if asked.device == "cpu" else ("--device", "cuda")
        words += ("-o", f"{OUT}/halfbyte/compare.json")
        stages.append(Stage("compare", words, "halfbyte/compare.json", reads=_files(data), of_source=True, needs=_MADE))
    if "scripts" in block:
        words = ("serve", OUT, *_options(block["scripts"], "gpus", "engine", "context"))
        words += ("--write", f"{OUT}/halfbyte/serve")
        stages.append(Stage("scripts", words, "halfbyte/serve/serve.json", needs=_MADE))
    return stages


def _served(asked: Asked) -> list[Stage]:
    """Return the stages that ask a server, after those that start one."""
    block, stages = asked.block, list[Stage]()
    inside = [name for name in ASKS_SERVER if name in block]
    against_source = "eval" in block and block["eval"]["against"] == "source"
    own_source = against_source and asked.reference_url is None
    if own_source:
        then = ("eval", *_eval_options(block["eval"]), "-o", f"{OUT}/halfbyte/eval-source")
        how = block.get("source", block.get("serve", {}))
        words = ("serve", SOURCE, "--run", *_server(how), "--log", f"{_LOGS}/engine-source.log", "--then", then)
        folder = "halfbyte/eval-source"
        stages.append(Stage("source", words, f"{folder}/eval.json", folder, _MADE, of_source=True,
                            of_weights=False))  # fmt: skip
    if inside and asked.url is None:
        words = ("serve", OUT, "--run", *_server(block.get("serve", {})), "--log", f"{_LOGS}/engine.log", "--json")
        stages.append(Stage(SERVE, words, needs=_MADE))
    url = asked.url or URL
    beside = ("--against", asked.reference_url) if asked.reference_url else ()
    needs = _MADE if asked.url else (*_MADE, SERVE)
    if "probe" in block:
        words = ("probe", url, *_options(block["probe"], "profile", "budget", "only", "skip"), *beside)
        words += ("-o", f"{OUT}/halfbyte/probe")
        stages.append(Stage("probe", words, "halfbyte/probe/probe.json", "halfbyte/probe", needs=needs))
    if "eval" in block:
        words = ("eval", url, *_eval_options(block["eval"]), *_options(block["eval"], "margin"))
        words += beside if against_source else ()
        words += ("--baseline", f"{OUT}/halfbyte/eval-source") if own_source else ()
        words += ("-o", f"{OUT}/halfbyte/eval")
        after = ("source",) if own_source else ()
        stages.append(Stage("eval", words, "halfbyte/eval/eval.json", "halfbyte/eval", after=after, needs=needs))
    if "bench" in block:
        words = ("bench", url, *_bench_options(asked), "-o", f"{OUT}/halfbyte/bench")
        stages.append(Stage("bench", words, "halfbyte/bench/bench.json", "halfbyte/bench", needs=needs))
    return stages


def without_baseline(stage: Stage) -> Stage:
    """Return a stage that does not compare: what it would compare with is not there."""
    if "--baseline" not in stage.words:
        return stage
    at = stage.words.index("--baseline")
    return Stage(stage.name, (*stage.words[:at], *stage.words[at + 2 :]), stage.result, stage.folder, stage.needs,
                 program=stage.program)  # fmt: skip


def _server(how: Mapping[str, Any]) -> tuple[str, ...]:
    words = _options(how, "gpus", "engine", "context") + _flags(how, "emulate") + _options(how, "activations")
    return words + tuple(word for setting in how.get("settings", ()) for word in ("--set", setting))


def _eval_options(how: Mapping[str, Any]) -> tuple[str, ...]:
    folder = ("--data-dir", how["data_dir"]) if "data_dir" in how else ()
    return (*_options(how, "suite", "limit"), *folder)


def _bench_options(asked: Asked) -> tuple[str, ...]:
    how, serve = asked.block["bench"], asked.block.get("serve", {})
    words = _options(how, "shape", "blocks") + _flags(how, "trust_remote_code")
    if "concurrency" in how:
        words += ("--concurrency", ",".join(map(str, how["concurrency"])))
    if asked.url is not None:
        return (*words, "--tokenizer", OUT)
    return words + _options(serve, "gpus") + (("--emulated",) if serve.get("emulate") else ())


def _options(how: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    """Return the options that are given; a list is an option for each of its items."""
    words: list[str] = []
    for name in names:
        if name in how:
            values: Sequence[Any] = how[name] if isinstance(how[name], (list, tuple)) else [how[name]]
            for value in values:
                words += [f"--{name.replace('_', '-')}", str(value)]
    return tuple(words)


def _flags(how: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(f"--{name.replace('_', '-')}" for name in names if how.get(name))


def _files(data: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of DOMAIN=FILE[:COLUMNS]."""
    named = [pair.partition("=")[2] for pair in data]
    return tuple(Path(one if Path(one).exists() else one.rpartition(":")[0] or one) for one in named)
