"""Fills the numbers into training/README.md and the model card: none of them is typed by hand.

    python -m training.write_docs RUN...    take what a run has measured over into training/results/, draw the loss, and
                                            fill; of runs that went on from each other, all logs, and of everything else
                                            what the last one has
    python -m training.write_docs           fill again from training/results/
    python -m training.write_docs --check   say which file would change; nothing is written

A part to fill stands between two comments, `begin NAME` and `end NAME`. What a run has not measured leaves its part
with a sentence that says so.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from halfbyte.families.kimi_k25.geometry import (
    layer_linears,
    layer_others,
    projector,
    release_shards,
    vision_tower,
)
from training import mixture, plot_loss
from training.compare import ALL, BASE
from training.shape import CONTEXT, MINI
from training.tokenizer import FOLDER

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
TAKEN = ("log.jsonl", "scores.json", "routing.json", "compare.json", "tools.json", "overlap.json")
SATURATED = 97  # percent: above it, a little damage is hardly seen
SMALLEST_P = 1e-300  # a smaller one is 0 in a float
DOCUMENTS = (Path("training/README.md"), FOLDER / "README.md")
PART = re.compile(
    r"(?P<begin>^(?:<!-- |# )begin (?P<name>\w+)(?: -->)?\n).*?(?P<end>^(?:<!-- |# )end (?P=name)(?: -->)?$)",
    re.DOTALL | re.MULTILINE,
)
# What each domain stands for, and the goal it was given before training.
DOMAINS = {
    "word_problems": ("word problems of 2 to 4 steps, `#### N`", "GSM8K", 85),
    "world": ("multiple choice about a made-up world", "MMLU", 85),
    "structured": ("JSON to a given schema", "structured output", 95),
    "tools": ("choose a function, fill its arguments, or answer without", "K2 vendor verifier", 95),
    "copying": ("copy and transform strings, scripts, tables", "copy fidelity", 95),
    "needle": (f"find a fact in up to {CONTEXT} tokens", "long context", 90),
    "programs": ("small Python functions that are executed", "coding canary", 60),
    "stories": ("stories and explanations that end, without loops", "degeneracy", 95),
}


class MissingError(Exception):
    """A result that this run did not leave."""


def result(name: str) -> Any:
    """Return one of the results."""
    path = RESULTS / name
    if not path.exists():
        raise MissingError(f"Not measured: {name} is missing in training/results.")
    return json.loads(path.read_text())


def table(head: str, rows: list[str]) -> str:
    """Return a Markdown table."""
    return "\n".join([head, "|" + " --- |" * (head.count("|") - 1), *rows])


def log_rows() -> list[dict[str, Any]]:
    """Return the lines of the training log."""
    path = RESULTS / "log.jsonl"
    if not path.exists():
        raise MissingError("Not measured: log.jsonl is missing in training/results.")
    return [json.loads(line) for line in path.read_text().splitlines()]


def run() -> str:
    """Return what training took."""
    rows = log_rows()
    ends = [row for row in rows if "steps" in row]
    tokens, seconds = sum(row["tokens"] for row in ends), sum(row["seconds"] for row in ends)
    losses = [row["loss"] for row in rows if "loss" in row]
    facts = {
        "GPU": next((row["device"] for row in ends if "device" in row), None) or result("compare.json")["device"],
        "training": f"{seconds / 60:.1f} minutes, {sum(row['steps'] for row in ends):,} steps, in {_count(ends)}",
        "tokens": f"{tokens / 1e6:,.0f} million, made while it trained",
        "speed": f"{tokens / seconds / 1e6:.2f} million tokens a second",
        "loss": f"{losses[0]:.2f} to {losses[-1]:.3f} nats a learned token",
    }
    return table("| | |", [f"| {name} | {fact} |" for name, fact in facts.items()])


def _count(ends: list[Any]) -> str:
    return "one go" if len(ends) == 1 else f"{len(ends)} stages that went on from each other"


def stages() -> str:
    """Return what each stage took, and where its loss was when it began and ended."""
    rows: list[str] = []
    losses: list[float] = []
    for row in log_rows():
        if "loss" in row:
            losses.append(row["loss"])
        elif "steps" in row:
            took = f"{row['seconds'] / 60:.1f} | {row['steps']:,} | {row['tokens'] / 1e6:,.0f}"
            rows.append(f"| {len(rows) + 1} | {took} | {losses[0]:.3f} | {losses[-1]:.3f} |")
            losses = []
    return table("| stage | minutes | steps | tokens, millions | first loss | last loss |", rows)


def shape() -> str:
    """Return how large the model is."""
    linears = [linear for layer in range(MINI.layers) for linear in layer_linears(MINI, layer)]
    routed = sum(linear.n * linear.k for linear in linears if linear.role == "routed_experts")
    others = sum(linear.n * linear.k for linear in linears) - routed
    vectors = sum(_elements(layer_others(MINI, layer)) for layer in range(MINI.layers))
    table_size = MINI.vocabulary * MINI.width
    total = routed + others + vectors + 2 * table_size + MINI.width
    active = total - routed + routed * MINI.active_experts // MINI.experts - table_size
    stored = sum(spec.nbytes for specs in release_shards(MINI).values() for spec in specs)
    facts = {
        "parameters": f"{total / 1e6:.2f} million, of which {routed / 1e6:.2f} million in routed experts",
        "a token passes through": f"{active / 1e6:.2f} million",
        "layers": f"{MINI.layers}, of which {MINI.dense_layers} dense",
        "experts": f"{MINI.experts}, top-{MINI.active_experts}, and one shared",
        "width": f"{MINI.width}; {MINI.heads} heads of {MINI.nope_width} + {MINI.rope_width}, latent {MINI.kv_rank}",
        "vocabulary, context": f"{MINI.vocabulary:,} tokens, {CONTEXT:,} tokens",
        "vision": f"{(_elements(projector(MINI)) + _elements(vision_tower(MINI))) / 1e6:.2f} million, untrained",
        "stored": f"{stored / 1e6:.1f} MB",
    }
    return table("| | |", [f"| {name} | {fact} |" for name, fact in facts.items()])


def _elements(specs: Any) -> int:
    found = 0
    for spec in specs:
        size = 1
        for side in spec.shape:
            size *= side
        found += size
    return found


def scores() -> str:
    """Return the scores with the goals they had."""
    rows: list[str] = []
    for name, found in _in_order(result("scores.json")):
        what, like, goal = DOMAINS.get(name, (name, "", 0))
        share = f"{100 * found['score']:.1f} ± {100 * found['error']:.1f}"
        verdict = "" if not goal else "reached" if 100 * found["score"] >= goal else "**missed**"
        verdict += ", saturated" if 100 * found["score"] > SATURATED else ""
        ended = f"{100 * found['ended']:.1f}"
        rows.append(f"| {name} | {what} | {like} | {found['items']:,} | {share} | {goal} {verdict} | {ended} |")
    return table("| domain | what | like | items | right, % | goal, % | ended by itself, % |", rows)


def forms() -> str:
    """Return the scores of the forms that a domain distinguishes."""
    rows: list[str] = []
    for name, found in _in_order(result("scores.json")):
        by_form = sorted(found["by_form"].items(), key=lambda row: _by_number(row[0]))
        parts = [f"{form} {good}/{count}" for form, (good, count) in by_form if form]
        if len(parts) > 1:
            rows.append(f"| {name} | {', '.join(parts)} |")
    return table("| domain | right answers by form |", rows)


def _by_number(text: str) -> list[Any]:
    """Return a key that sorts 512 before 1024."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def calls() -> str:
    """Return the vendor verifier's two numbers about tool calls."""
    found = result("tools.json")
    counts = f"{found['items']} turns, of which {found['should_call']} want a call; {found['called']} had one"
    right = f"{100 * found['right'] / found['items']:.1f} % ({found['right']} of {found['items']})"
    facts = {
        "turns": counts,
        "trigger F1": f"{found['f1']:.3f} (precision {found['precision']:.3f}, recall {found['recall']:.3f})",
        "schema accuracy": f"{100 * found['schema_accuracy']:.1f} % ({found['valid']} of {found['called']})",
        "all of the answer right": right,
        "measured on": f"{found['device']}, {found['date']}",
    }
    return table("| | |", [f"| {name} | {fact} |" for name, fact in facts.items()])


def overlap() -> str:
    """Return how much of the test items was found in training text."""
    found = result("overlap.json")
    rows = [
        f"| {name} | {row['items']:,} | {row['runs']:,} | {row['shared_runs']:,} | {row['touched_items']:,} |"
        for name, row in found["domains"].items()
    ]
    head = "| domain | test items | runs of 13 words | of these in training text | items touched |"
    return table(head, rows) + f"\n\nRead: {sum(found['words'].values()) / 1e6:.1f} million words of training text."


def compared() -> str:
    """Return what other formats and pruning cost."""
    found = result("compare.json")
    rows, names = found["variants"], list(found["variants"])
    lines: list[str] = []
    for domain, base in [*_in_order(rows[BASE]["domains"]), (ALL, rows[BASE]["domains"][ALL])]:
        cells = [_cell(rows[name]["domains"][domain], is_base=name == BASE) for name in names]
        lines.append(f"| {domain} | {base['items']:,} | " + " | ".join(cells) + " |")
    lines.append("| loss | | " + " | ".join(f"{rows[name]['loss']:.4f}" for name in names) + " |")
    made = f"\n\nMade by `{found['command']}` on {found['device']}, {found['date']}, torch {found['torch']}."
    return table(f"| | items | {' | '.join(names)} |", lines) + made


def _cell(row: dict[str, Any], *, is_base: bool) -> str:
    share = f"{100 * row['score']:.1f}"
    if is_base:
        return share
    significant = "**" if row["p"] < 0.01 else ""  # noqa: PLR2004 - the text beside the table says so
    p = f"p = {row['p']:.1g}" if row["p"] > SMALLEST_P else f"p < {SMALLEST_P:.0g}"
    return f"{significant}{share}{significant} (-{row['lost']} +{row['gained']}, {p})"


def routing() -> str:
    """Return which experts the domains use."""
    rows: list[str] = []
    for name, found in _in_order(result("routing.json")["summary"]):
        used = ", ".join(f"{number:.0f}" for number in found["experts_used"])
        busiest = " ".join(str(expert) for expert in found["busiest"][len(found["busiest"]) // 2])
        rows.append(f"| {name} | {100 * found['difference']:.0f} % | {used} | {busiest} |")
    return table(
        "| domain | routes not shared with another domain | experts used, by layer | busiest, middle layer |", rows
    )


def mixture_shares() -> str:
    """Return what is trained on."""
    shares = mixture.shares()
    rows = [f"| {name} | {DOMAINS.get(name, (name,))[0]} | {100 * shares[name]:.0f} |" for name, _ in _in_order(shares)]
    return table("| domain | what | tokens, % |", rows)


def metrics() -> str:
    """Return the scores as the Hub reads them from a card's front matter."""
    lines = ["model-index:", "  - name: kimi-mini", "    results:"]
    for name, found in _in_order(result("scores.json")):
        lines += [
            "      - task: {type: text-generation}",
            f"        dataset: {{name: 'kimi-mini {name}, held out', type: evals/{name}}}",
            f"        metrics: [{{type: accuracy, value: {found['score']:.4f}}}]",
        ]
    return "\n".join(lines)


def _in_order(rows: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return rows by domain, in the order of the goals."""
    names = [name for name in DOMAINS if name in rows]
    return [(name, rows[name]) for name in [*names, *(n for n in rows if n not in DOMAINS and n != ALL)]]


PARTS: dict[str, Callable[[], str]] = {
    "run": run,
    "stages": stages,
    "shape": shape,
    "scores": scores,
    "forms": forms,
    "calls": calls,
    "overlap": overlap,
    "compared": compared,
    "routing": routing,
    "mixture": mixture_shares,
    "metrics": metrics,
}


def filled(text: str) -> str:
    """Return a document with every part made again."""

    def fill(match: re.Match[str]) -> str:
        in_front_matter = match["begin"].startswith("#")
        try:
            found = PARTS[match["name"]]()
        except MissingError as missing:
            found = f"# {missing}" if in_front_matter else str(missing)
        blank = "" if in_front_matter else "\n"
        return f"{match['begin']}{blank}{found}\n{blank}{match['end']}"

    return PART.sub(fill, text)


def take(folders: Sequence[Path]) -> None:
    """Bring the results of a run here, or of runs that went on from each other; nothing of earlier runs stays."""
    RESULTS.mkdir(exist_ok=True)
    missing = [folder for folder in folders if not (folder / TAKEN[0]).is_file()]
    if missing:
        raise SystemExit(f"{missing[0]} is no training run: it has no {TAKEN[0]}")
    for name in TAKEN:
        (RESULTS / name).unlink(missing_ok=True)
        last = folders[-1] / name
        if name == "log.jsonl":
            (RESULTS / name).write_text("".join((folder / name).read_text() for folder in folders))
        elif last.exists():
            (RESULTS / name).write_text(TIDY[name](last.read_text()) if name in TIDY else last.read_text())
    (RESULTS / "loss.png").write_bytes(plot_loss.draw(plot_loss.read(RESULTS / "log.jsonl")))


def _short_shares(text: str) -> str:
    """Return the routing with four digits a share."""
    found = json.loads(text)
    for layers in found["shares"].values():
        layers[:] = [[round(share, 4) for share in layer] for layer in layers]
    return json.dumps(found) + "\n"


def _without_paths(text: str) -> str:
    """Return the comparison; where a run lay is of no interest."""
    found = json.loads(text)
    found["command"] = re.sub(r"(?<= )/\S+", "RUN", found["command"])
    return json.dumps(found, indent=1) + "\n"


TIDY: dict[str, Callable[[str], str]] = {"routing.json": _short_shares, "compare.json": _without_paths}


def main() -> None:
    """Take over, fill, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.runs and not given.check:
        take(given.runs)
    changed: list[Path] = []
    for path in DOCUMENTS:
        text = (ROOT / path).read_text()
        if filled(text) != text:
            changed.append(path)
            if not given.check:
                (ROOT / path).write_text(filled(text))
    print("\n".join(f"{path} {'would change' if given.check else 'written'}" for path in changed) or "up to date")
    if given.check and changed:
        sys.exit(1)


if __name__ == "__main__":
    main()
