"""What it costs to store kimi-mini's experts in another format, or to drop some: the same held-out items for all.

    PYTHONPATH=src python -m training.compare models/kimi-mini                   on a CPU: minutes
    PYTHONPATH=src python -m training.compare RUN --out RUN                      a training run, on its GPU
    PYTHONPATH=src python -m training.compare models/kimi-mini bf16=FOLDER       another checkpoint as one more variant

Every variant answers the same items greedily, so answers are paired. Whether a variant is worse is decided by the items
on which only one of the two is right (McNemar's test, exact). The loss is the mean cross entropy on samples of the
training mixture that no training has seen. A broken model writes without end: a variant is cut at twice the length of
the longest answer of the base.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from training import corpus, make_sets, mixture, score, step, tokenizer, variants
from training.model import Mini
from training.sample import Item
from training.shape import MINI
from training.variants import State

BASE = "int4"  # as committed
ALL = "all"
USUAL = ["nvfp4", "mxfp4", "prune25"]
UNSEEN_SHARD = 1_000_000_000  # training never comes so far
LOSS_TOKENS = {"cuda": 65_536, "cpu": 16_384}
FULL_ON_CPU = 100
# Reading long prompts is slow on a CPU: these domains get a share of the items there.
SHARE_ON_CPU = {"needle": 0.15, "world": 0.5, "stories": 0.5}


@dataclass(frozen=True, slots=True)
class Pairs:
    """How a variant answers items that the base answers too."""

    items: int
    right: int
    lost: int  # the base is right, the variant is wrong
    gained: int
    same_text: int

    @property
    def score(self) -> float:
        """Return the share of right answers."""
        return self.right / self.items

    @property
    def error(self) -> float:
        """Return the binomial standard error of the score."""
        return math.sqrt(self.score * (1 - self.score) / self.items)

    @property
    def p(self) -> float:
        """Return how likely a difference at least this large is between two equally good models."""
        return mcnemar(self.lost, self.gained)

    def as_dict(self) -> dict[str, Any]:
        """Return what the report holds."""
        return asdict(self) | {"score": self.score, "error": self.error, "p": self.p}


def mcnemar(lost: int, gained: int) -> float:
    """Return the two-sided p of McNemar's exact test: the pairs that differ, each a throw of a coin."""
    throws = lost + gained
    tail = sum(math.comb(throws, heads) for heads in range(min(lost, gained) + 1))
    return min(1.0, float(2 * tail / 2**throws)) if throws else 1.0


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model wrote for the items of one domain, and whether it was right."""

    texts: list[str]
    right: list[bool]

    @property
    def room(self) -> int:
        """Return how many tokens another model may write."""
        longest = max(map(len, tokenizer.encode(tokenizer.load(), self.texts)))
        return min(2 * longest, score.NEW_TOKENS)

    def against(self, base: Answers) -> Pairs:
        """Compare with what the base wrote."""
        both = list(zip(base.right, self.right, strict=True))
        return Pairs(
            items=len(both),
            right=sum(self.right),
            lost=sum(before and not after for before, after in both),
            gained=sum(after and not before for before, after in both),
            same_text=sum(a == b for a, b in zip(base.texts, self.texts, strict=True)),
        )


def together(parts: Sequence[Answers]) -> Answers:
    """Return the answers to the items of all domains."""
    return Answers([text for part in parts for text in part.texts], [ok for part in parts for ok in part.right])


def model_of(state: State, device: str) -> Mini:
    """Return a model with the weights and as many experts as the state has; BF16 on a GPU, FP32 on a CPU."""
    experts = len(state[f"{variants.moe_layers(state)[0]}.gate.weight"])
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = Mini(replace(MINI, experts=experts), dtype=dtype)
    model.load_state_dict(state)
    return model.to(device)


def answered(model: Mini, items: dict[str, list[Item]], base: dict[str, Answers] | None) -> dict[str, Answers]:
    """Let a model answer everything."""
    found: dict[str, Answers] = {}
    for name, module in mixture.modules().items():
        if name in items:
            texts = score.answers(model, items[name], base[name].room if base else score.NEW_TOKENS)
            pairs = zip(items[name], texts, strict=True)
            found[name] = Answers(texts, [score.is_right(module, item, text) for item, text in pairs])
    return found


@torch.no_grad()
def loss(model: Mini, tokens: int) -> float:
    """Return the cross entropy on unseen samples."""
    batch = step.to_batch(corpus.make_shard(UNSEEN_SHARD, tokens), model.embed_tokens.device)
    hidden, _ = model(batch.tokens, batch.documents)
    return float(step.loss_of(hidden, model.lm_head, batch.targets, batch.learned)[1])


def same_weights(first: State, second: State) -> bool:
    """Whether two state dicts are equal, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


class Comparison:
    """The base and its answers; variants come one after another."""

    def __init__(self, base: State, items: dict[str, list[Item]], loss_tokens: int, device: str) -> None:
        self.base, self.items, self.loss_tokens, self.device = base, items, loss_tokens, device
        self.rows: dict[str, dict[str, Any]] = {}
        self.answers = self._measure(BASE, base, None)

    def add(self, name: str, state: State) -> None:
        """Measure one variant; equal weights give equal answers, and are not asked again."""
        if same_weights(state, self.base):
            self.rows[name] = self.rows[BASE] | {"same_weights": True, "seconds": 0.0}
            print(f"{name}: the same weights as {BASE}, bit for bit", flush=True)
            return
        self._measure(name, state, self.answers)

    def _measure(self, name: str, state: State, base: dict[str, Answers] | None) -> dict[str, Answers]:
        since = time.monotonic()
        model = model_of(state, self.device)
        found = answered(model, self.items, base)
        before = base or found
        pairs = {domain: answers.against(before[domain]) for domain, answers in found.items()}
        pairs[ALL] = together(list(found.values())).against(together(list(before.values())))
        self.rows[name] = {
            "same_weights": base is None,
            "loss": loss(model, self.loss_tokens),
            "seconds": round(time.monotonic() - since, 1),
            "domains": {domain: row.as_dict() for domain, row in pairs.items()},
        }
        print(f"{name}: {self.rows[name]['seconds']} s", flush=True)
        return found


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the comparison as Markdown: scores in percent, and by how many items each variant lost or gained."""
    names = list(rows)
    lines = ["| | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for domain, base in rows[BASE]["domains"].items():
        cells = [_cell(rows[name]["domains"][domain], is_base=name == BASE) for name in names]
        lines.append(f"| {domain} ({base['items']}) | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "| loss | " + " | ".join(f"{rows[name]['loss']:.4f}" for name in names) + " |"])


def _cell(row: dict[str, Any], *, is_base: bool) -> str:
    share = f"{100 * row['score']:.1f}"
    if is_base:
        return f"{share} ± {100 * row['error']:.1f}"
    return f"{share} (-{row['lost']} +{row['gained']}, p {row['p']:.2g})"


def item_counts(count: int | None, device: str) -> dict[str, int]:
    """Return how many items each domain gets: fewer of the slow ones where a CPU must answer in minutes."""
    if count is not None:
        return dict.fromkeys(mixture.modules(), count)
    if device == "cuda":
        return {name: make_sets.COUNTS[name] for name in mixture.modules()}
    return {name: round(FULL_ON_CPU * SHARE_ON_CPU.get(name, 1.0)) for name in mixture.modules()}


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a checkpoint with INT4 experts, or a training run")
    parser.add_argument("others", nargs="*", metavar="NAME=FOLDER", help="other checkpoints of the same model")
    parser.add_argument("--items", type=int, help="of every domain; without it, on a GPU, the sets of evals/")
    parser.add_argument("--seed", type=int, default=make_sets.TEST_SEED)
    parser.add_argument("--domains", nargs="*")
    parser.add_argument("--variants", nargs="*", choices=variants.VARIANTS, default=USUAL)
    parser.add_argument("--loss-tokens", type=int)
    parser.add_argument("--out", type=Path, help="a folder for compare.json")
    given = parser.parse_args()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)  # before any work
    return given


def write(comparison: Comparison, folder: Path, loss_tokens: int) -> None:
    """Write compare.json."""
    report = {
        "command": " ".join(["python -m training.compare", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if comparison.device == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "loss_tokens": loss_tokens,
        "variants": comparison.rows,
    }
    (folder / "compare.json").write_text(json.dumps(report, indent=1) + "\n")


def main() -> None:
    """Compare, print a table, write compare.json."""
    given = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    counts = item_counts(given.items, device)
    wanted = {name: count for name, count in counts.items() if not given.domains or name in given.domains}
    items = {name: mixture.modules()[name].test_items(count, given.seed) for name, count in wanted.items()}
    base = variants.as_released(given.folder)
    loss_tokens = given.loss_tokens or LOSS_TOKENS[device]
    comparison = Comparison(base, items, loss_tokens, device)
    for pair in given.others:
        name, _, folder = pair.partition("=")
        comparison.add(name, variants.as_released(Path(folder)))
    for name in given.variants:
        comparison.add(name, variants.VARIANTS[name](base))
        if given.out:
            write(comparison, given.out, loss_tokens)  # after each: a run that is cut off keeps what it has
    print(table(comparison.rows), flush=True)


if __name__ == "__main__":
    main()
