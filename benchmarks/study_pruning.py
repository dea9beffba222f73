"""What pruning costs kimi-mini: how many experts stay, by which criterion, chosen on which text, and what repairs it.

    PYTHONPATH=src python -m halfbyte calibrate models/kimi-mini -r kimi-k2.6-nvfp4-reap192 \\
        --data '{source}=data/calibration/instructions.jsonl' --samples 144 --set calibrate.sequence_length=1024 \\
        --set prune.keep=16 --set calibrate.public_reap=true -o STATS              the statistics, once, on a CPU
    PYTHONPATH=src python -m benchmarks.study_pruning STATS -o benchmarks/results/pruning_kimi-mini_202611.json
    PYTHONPATH=src python -m benchmarks.study_pruning_report benchmarks/results/pruning_kimi-mini_202611.json

Every build answers the same held-out items of every domain greedily (scores are paired with the whole model's), writes
open-ended texts at temperatures 0 and 0.7 (how many loop), and predicts the same unseen documents (KL, by domain, with
intervals over documents). Results are written after each build; the most informative builds are first.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.study_pruning_builds import Build, Statistics, builds
from training import chat, compare, corpus, make_sets, mixture, score, step, tokenizer, tune_router, variants
from training.compare import Answers
from training.domains import stories
from training.generate import generate
from training.model import Mini
from training.sample import Item
from training.shape import CONTEXT, MINI

from halfbyte.calibrate.store import stats_file
from halfbyte.compare.report import ratio
from halfbyte.degeneracy.loop_test import open_prompts
from halfbyte.degeneracy.watch import has_loop
from halfbyte.statistics.proportions import wilson

TEMPERATURES = (0.0, 0.7)
LONG = "needle"  # prompts of thousands of tokens, answers of a few: a batch of its own
LONG_TOKENS = 32
KL_DOCUMENTS = {"needle": 12}
BASE = "all experts"
TUNING_SHARD, FIRST_TUNING_SHARD = 1 << 19, 2_000_000_000  # tokens of a shard, and its number: held out


# --- measurements -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Documents:
    """Unseen text of all domains in one stream, and the document of every token."""

    batch: step.Batch
    document: np.ndarray  # of each learned token
    domain: list[str]  # of each document

    @staticmethod
    def make(count: int, device: str) -> Documents:
        """Generate `count` documents of each domain, fewer of the long ones."""
        encoder = corpus.Encoder()
        ids: list[int] = []
        marks: list[bool] = []
        starts, domain = [0], []
        for name, module in mixture.modules().items():
            rng = random.Random(f"{compare.UNSEEN_SHARD}/{name}")
            for _ in range(min(count, KL_DOCUMENTS.get(name, count))):
                found, learned = encoder.encode(module.train_sample(rng))
                ids, marks = ids + found, marks + learned
                starts.append(len(ids))
                domain.append(name)
        shard = corpus.Shard(np.array(ids, np.uint16), np.array(marks), np.array(starts, np.int32))
        batch = step.to_batch(shard, device)
        places = np.flatnonzero(batch.learned.cpu().numpy())
        return Documents(batch, np.searchsorted(shard.starts, places, side="right") - 1, domain)


class Study:
    """The whole model's answers, and the same questions for every build."""

    def __init__(self, base: variants.State, settings: argparse.Namespace, device: str) -> None:
        self.base, self.settings, self.device = base, settings, device
        self.items = mixture.test_items(settings.items, make_sets.TEST_SEED)
        self.prompts = open_prompts(settings.prompts)
        self.documents = Documents.make(settings.documents, device)
        self.teacher = compare.model_of(base, device)
        self.wanted = self._log_probabilities(self.teacher)
        self.answers: dict[str, Answers] | None = None

    @torch.no_grad()
    def _log_probabilities(self, model: Mini) -> torch.Tensor:
        batch = self.documents.batch
        hidden, _ = model(batch.tokens, batch.documents)
        return model.logits(hidden[batch.learned]).float().log_softmax(-1)

    def measure(self, state: variants.State) -> dict[str, Any]:
        """Return all numbers of one build; the first is the whole model itself."""
        since = time.monotonic()
        model = compare.model_of(state, self.device)
        found, texts = self._written(model)
        answers = {name: self._judged(name, outputs) for name, outputs in found.items()}
        self.answers = self.answers or answers
        pairs = {name: answer.against(self.answers[name]).as_dict() for name, answer in answers.items()}
        whole = compare.together(list(answers.values())).against(compare.together(list(self.answers.values())))
        return {
            "domains": pairs | {compare.ALL: whole.as_dict()},
            "loops": self._loops(texts),
            "kl": self._kl(model),
            "seconds": round(time.monotonic() - since, 2),
        }

    def _judged(self, name: str, outputs: list[str]) -> Answers:
        module = mixture.modules()[name]
        pairs = zip(self.items[name], outputs, strict=True)
        return Answers(outputs, [score.is_right(module, item, output) for item, output in pairs])

    def _written(self, model: Mini) -> tuple[dict[str, list[str]], list[str]]:
        """Let the model answer everything in two batches: a step costs the same for one prompt as for hundreds."""
        short = [name for name in self.items if name != LONG]
        asked = [chat.prompt(item) for name in short for item in self.items[name]]
        open_ended = [chat.prompt(Item("", "", messages=({"role": "user", "content": text},))) for text in self.prompts]
        heat = [0.0] * len(asked) + [one for one in TEMPERATURES for _ in open_ended]
        outputs = iter(_texts(model, asked + open_ended * len(TEMPERATURES), self.settings.tokens, heat))
        found = {name: [next(outputs) for _ in self.items[name]] for name in short}
        texts = list(outputs)
        if LONG in self.items:
            prompts = [chat.prompt(item) for item in self.items[LONG]]
            found[LONG] = _texts(model, prompts, min(LONG_TOKENS, self.settings.tokens), [0.0] * len(prompts))
        return {name: found[name] for name in self.items}, texts

    def _loops(self, texts: Sequence[str]) -> dict[str, Any]:
        loops = [has_loop(text.removesuffix(chat.END), cut=not text.endswith(chat.END)) for text in texts]
        each = len(self.prompts)
        low, high = wilson(sum(loops), len(loops))
        return {
            "texts": len(texts),
            "loops": sum(loops),
            "low": low,
            "high": high,
            "short": sum(_is_short(text) for text in texts),
            "unfinished": sum(
                not text.endswith(chat.END) and not loop for text, loop in zip(texts, loops, strict=True)
            ),
            "by_temperature": {str(heat): sum(loops[at * each :][:each]) for at, heat in enumerate(TEMPERATURES)},
            "example": next((text[-160:] for text, loop in zip(texts, loops, strict=True) if loop), None),
        }

    def _kl(self, model: Mini) -> dict[str, Any]:
        found = self._log_probabilities(model)
        kl = (self.wanted.exp() * (self.wanted - found)).sum(-1).double().cpu().numpy()
        count = len(self.documents.domain)
        sums = np.bincount(self.documents.document, kl, count)
        tokens = np.bincount(self.documents.document, minlength=count).astype(np.float64)
        names = np.array(self.documents.domain)
        by_domain = {
            name: asdict(ratio(sums[names == name], tokens[names == name], (0.0, float("inf"))))
            for name in dict.fromkeys(self.documents.domain)
        }
        worst = max(by_domain, key=lambda name: by_domain[name]["value"] or 0.0)
        same = (found.argmax(-1) == self.wanted.argmax(-1)).double().mean()
        whole = asdict(ratio(sums, tokens, (0.0, float("inf"))))
        return {"all": whole, "worst": worst, "top1": float(same), "domains": by_domain}


def _is_short(text: str) -> bool:
    """Whether a text ended after a few words, which is how small models fail without looping."""
    return text.endswith(chat.END) and len(text.removesuffix(chat.END).split()) < stories.MIN_WORDS


def _texts(model: Mini, prompts: list[str], tokens: int, heat: list[float]) -> list[str]:
    known = tokenizer.load()
    ids = [found[-(CONTEXT - 32) :] for found in tokenizer.encode(known, prompts)]
    return [known.decode(row, skip_special_tokens=False) for row in generate(model, ids, tokens, heat)]


# --- the run ----------------------------------------------------------------------------------------------------------


@contextmanager
def tuning_text(shards: int, tokens: int) -> Iterator[Callable[[], list[corpus.Shard]]]:
    """Make text for router tuning in other processes, while builds are measured."""
    if shards == 0:  # small settings: at once
        yield lambda: [corpus.make_shard(FIRST_TUNING_SHARD, tokens)]
        return
    with ProcessPoolExecutor(shards, get_context("spawn")) as pool:
        made: list[Future[corpus.Shard]] = [
            pool.submit(corpus.make_shard, FIRST_TUNING_SHARD + number, tokens) for number in range(shards)
        ]
        yield lambda: [shard.result() for shard in made]


class Results:
    """The file of results, whole after each build."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.rows: list[dict[str, Any]] = []
        self.known: dict[str, str] = {}

    def same(self, build: Build) -> str | None:
        """Return the name of a build with the same experts, if one was measured."""
        key = json.dumps([sorted((layer, list(kept)) for layer, kept in build.kept.items()), build.tune])
        return None if (first := self.known.setdefault(key, build.name)) == build.name else first

    def add(self, build: Build, found: dict[str, Any]) -> None:
        """Record a measurement, and print it in one line."""
        row = {
            "name": build.name,
            "keep": build.keep,
            "method": build.method,
            "calibration": build.calibration,
            "tuned": build.tune,
            "worst_coverage": build.coverage,
            "kept": {str(layer): list(kept) for layer, kept in build.kept.items()},
            **found,
        }
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.about | {"builds": self.rows}, indent=1, ensure_ascii=False) + "\n")
        if "same_as" in found:
            print(f"{build.name}: the same experts as {found['same_as']}", flush=True)
            return
        right = found["domains"][compare.ALL]["score"]
        kl, loops = found["kl"]["all"]["value"], found["loops"]
        print(
            f"{build.name}: {100 * right:.1f} % right, KL {kl:.4f}, worst {found['kl']['worst']},"
            f" loops {loops['loops']}, short {loops['short']} of {loops['texts']}, {found['seconds']} s",
            flush=True,
        )


def run(settings: argparse.Namespace) -> None:
    """Measure the whole model and every build, until the time is over."""
    since = time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    statistics = Statistics(settings.statistics)
    study = Study(variants.as_released(settings.model), settings, device)
    results = Results(settings.out, _about(settings, statistics, device))
    everyone = {layer: tuple(range(MINI.experts)) for layer in statistics.moe}
    results.add(Build(100, BASE, "", everyone, 1.0), study.measure(study.base))
    wanted = [build for build in builds(statistics) if not settings.only or build.name in settings.only]
    with tuning_text(settings.tuning_shards, settings.tuning_tokens) as shards:
        for build in wanted:
            if time.monotonic() - since > 60 * settings.minutes:
                print(f"the time is over: {build.name} and what follows it were not measured", flush=True)
                break
            if (same := results.same(build)) is not None:
                results.add(build, {"same_as": same})
                continue
            state, extra = variants.with_kept(study.base, build.kept), {}
            if build.tune:
                begun = time.monotonic()
                text = shards()
                state, losses = tune_router.tuned(
                    study.teacher, state, text, steps=settings.steps, batch_tokens=settings.batch_tokens
                )
                extra = {
                    "tuning_s": round(time.monotonic() - begun, 2),
                    "tuning_loss": losses[:: max(1, len(losses) // 20)],
                }
            results.add(build, study.measure(state) | extra)
    print(f"{time.monotonic() - since:.0f} s in all", flush=True)


def _about(settings: argparse.Namespace, statistics: Statistics, device: str) -> dict[str, Any]:
    names = ("items", "prompts", "documents", "tokens", "steps", "batch_tokens", "tuning_shards", "tuning_tokens")
    return {
        "command": " ".join(["python -m benchmarks.study_pruning", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "settings": {name: getattr(settings, name) for name in names},
        "statistics": {"file": stats_file(settings.statistics).name, "about": statistics.about},
        "domains": {
            name: len(items) for name, items in mixture.test_items(settings.items, make_sets.TEST_SEED).items()
        },
    }


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("statistics", type=Path, help="of `halfbyte calibrate` on kimi-mini: the folder or the file")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the JSON file of results")
    parser.add_argument("--model", type=Path, default=Path("models/kimi-mini"))
    parser.add_argument("--items", type=int, default=48, help="of every domain")
    parser.add_argument("--prompts", type=int, default=64, help="for open-ended texts, each at two temperatures")
    parser.add_argument("--documents", type=int, default=32, help="of every domain, for KL")
    parser.add_argument("--tokens", type=int, default=320, help="the longest answer")
    parser.add_argument("--steps", type=int, default=tune_router.STEPS, help="of router tuning")
    parser.add_argument("--batch-tokens", type=int, default=tune_router.BATCH_TOKENS)
    parser.add_argument("--tuning-shards", type=int, default=6, help="made in as many processes; 0: one, at once")
    parser.add_argument("--tuning-tokens", type=int, default=TUNING_SHARD, help="in a shard")
    parser.add_argument("--minutes", type=float, default=9.0, help="no build starts after that")
    parser.add_argument("--only", nargs="*", help="builds by their names")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)  # before any work: the results need a folder
    run(given)


if __name__ == "__main__":
    main()
