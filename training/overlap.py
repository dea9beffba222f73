"""How much of the test items is in the training data: runs of 13 words that both have.

`python -m training.overlap` draws words of every domain as training does and looks up every run of 13 of them among the
runs of the test items: question and answer of an item, without its boilerplate (fixed instructions, declarations). An
item may say itself what must be new about it (`fields["specific"]`: of a haystack, the needle). The exit status is 1 if
any run is shared. Images are not compared: there the picture is new and not the words, and a test looks at those.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training import mixture
from training.domains import shapes
from training.make_sets import COUNTS, test_set
from training.sample import Item, Message, Sample

RUN = 13
TRAINING_SEED = 77
DOMAINS = tuple(domain for domain in COUNTS if domain != shapes.DOMAIN)
_WORD = re.compile(r"(?:[-+*/%<>=!]+ ?)?\w+")  # with an operator before it: x + 4 is not x * 4

Run = tuple[str, ...]


class Row(NamedTuple):
    """What was found about one domain."""

    domain: str
    items: int
    runs: int
    shared_runs: int
    touched_items: int
    example: str


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case, without punctuation."""
    return _WORD.findall(text.lower())


def runs_of(text: str) -> Iterator[Run]:
    """Yield every 13 words in a row."""
    words = words_of(text)
    for start in range(len(words) - RUN + 1):
        yield tuple(words[start : start + RUN])


def _said(messages: Sequence[Message]) -> str:
    """Return all that is said in a chat; images say nothing."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = " ".join(part.get("text", "") for part in content)
        parts += [message.get("reasoning_content") or "", content]
        parts += [_as_text(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return "\n".join(parts)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def item_texts(item: Item) -> list[str]:
    """Return what must be new of an item: its own words between the boilerplate."""
    specific = item.fields.get("specific")
    if specific:
        return list(specific)
    whole = item.fields.get("answer")  # a solution, where there is one; of multiple choice it is only a number
    answer = whole if isinstance(whole, str) else item.answer
    texts = [f"{item.prompt}{_said(item.messages)} {'' if answer is None else _as_text(answer)}"]
    for fixed in item.fields.get("boilerplate", ()):
        texts = [part for text in texts for part in (text.split(fixed) if fixed.strip() else [text])]
    return texts


def sample_text(sample: Sample) -> str:
    """Return all that a sample says."""
    return sample.text or _said(sample.messages)


def report(tests: Mapping[str, Sequence[Item]], training_words: int) -> tuple[list[Row], dict[str, int]]:
    """Return a row for each domain, and the words read of each domain's training data."""
    owners: dict[Run, list[tuple[str, str]]] = {}
    for domain, items in tests.items():
        for item in items:
            for text in item_texts(item):
                for run in runs_of(text):
                    owners.setdefault(run, []).append((domain, item.id))
    shared: set[Run] = set()
    read: dict[str, int] = {}
    modules = mixture.modules()
    for name, module in modules.items():
        rng, read[name] = random.Random(TRAINING_SEED), 0
        while read[name] < training_words // len(modules):
            text = sample_text(module.train_sample(rng))
            read[name] += len(words_of(text))
            shared.update(run for run in runs_of(text) if run in owners)
    return [_row(domain, len(items), owners, shared) for domain, items in tests.items()], read


def _row(domain: str, items: int, owners: Mapping[Run, list[tuple[str, str]]], shared: set[Run]) -> Row:
    runs = sum(any(owner == domain for owner, _ in found) for found in owners.values())
    mine = sorted(run for run in shared if any(owner == domain for owner, _ in owners[run]))
    touched = {item for run in mine for owner, item in owners[run] if owner == domain}
    return Row(domain, items, runs, len(mine), len(touched), " ".join(mine[0]) if mine else "")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--million-words", type=float, default=8.0, help="training words to read, all domains together")
    parser.add_argument("--only", nargs="+", choices=DOMAINS, default=DOMAINS, help="domains whose items to look at")
    parser.add_argument("--out", type=Path, help="a folder for overlap.json")
    options = parser.parse_args()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    tests = {domain: test_set(domain) for domain in options.only}
    rows, read = report(tests, int(options.million_words * 1e6))
    print(f"{'domain':14} {'items':>6} {'13-word runs':>13} {'shared':>7} {'items touched':>14} {'training words':>15}")
    for row in rows:
        words = f"{read.get(row.domain, 0):,}"
        print(f"{row.domain:14} {row.items:6,} {row.runs:13,} {row.shared_runs:7,} {row.touched_items:14,} {words:>15}")
        if row.example:
            print(f"{'':14} for example: {row.example}")
    shared = sum(row.shared_runs for row in rows)
    print(f"{sum(read.values()):,} training words read; {shared:,} runs of {RUN} words shared")
    if options.out:
        found = {"words": read, "domains": {row.domain: row._asdict() for row in rows}}
        (options.out / "overlap.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return 1 if shared else 0


if __name__ == "__main__":
    sys.exit(main())
