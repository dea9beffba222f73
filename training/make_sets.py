"""Write the test sets (evals/) and the calibration sets (data/calibration/), every byte from seeded generators.

`python -m training.make_sets` writes them; with `--check` it compares them with what is on disk and exits with 1 if a
byte differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training import lm_eval_tasks, mixture
from training.articles import article
from training.domains import shapes
from training.sample import Item, Sample

ROOT = Path(__file__).parents[1]
TEST_SEED = 1
CALIBRATION_SEED = 2
COUNTS = {
    "word_problems": 1319,  # as many as GSM8K
    "world": 2052,  # 36 for each of 57 subjects
    "structured": 400,
    "tools": 400,
    "copying": 480,
    "needle": 120,
    "programs": 300,
    "stories": 200,
    "shapes": 200,
}
# Their test files have the columns of openai/gsm8k and cais/mmlu, so that lm-eval's own tasks read them.
COLUMNS = {"word_problems": ("question", "answer"), "world": ("question", "subject", "choices", "answer")}
SHOTS = {"word_problems": ("train", 64), "world": ("dev", 5 * 57)}
SHUFFLED = ("world",)
CHAIN_SHOTS = 8
ARTICLES = 520  # 512 samples of 512 tokens are usual in calibration
SECTIONS = 4  # of an article: some 600 tokens together
INSTRUCTIONS = 640  # 80 of each domain
LONGEST_INSTRUCTION = 6000  # characters
# What Nemotron's post-training set calls such samples.
NEMOTRON_DOMAINS = {"word_problems": "math", "programs": "code", "world": "stem", "tools": "tool_calling"}
OWNED = ("evals", "data/calibration")  # nothing else may lie in these folders, but a README


def domain_modules() -> dict[str, Any]:
    """Return every domain's module, images included."""
    return {**mixture.modules(), shapes.DOMAIN: shapes}


def test_set(domain: str) -> list[Item]:
    """Return a domain's test items, in the number that is published.

    lm-eval's `--limit` takes the first items, so those of a multiple choice are shuffled: as they are drawn, the first
    57 all have the answer A.
    """
    items: list[Item] = domain_modules()[domain].test_items(COUNTS[domain], TEST_SEED)
    if domain in SHUFFLED:
        random.Random(f"{domain} order {TEST_SEED}").shuffle(items)
    return items


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _test_file(domain: str, items: Iterable[Item]) -> str:
    columns = COLUMNS.get(domain)
    if columns is None:
        return _lines(_without_defaults(item) for item in items)
    return _lines({"id": item.id, **{column: item.fields[column] for column in columns}} for item in items)


def _without_defaults(item: Item) -> dict[str, Any]:
    """Return an item without empty prompt, messages and tools; which of them there are is the same in a whole file."""
    return {key: value for key, value in item.as_dict().items() if value or key not in ("prompt", "messages", "tools")}


def _evals() -> dict[str, str]:
    modules = domain_modules()
    files = {f"evals/{domain}/test.jsonl": _test_file(domain, test_set(domain)) for domain in COUNTS}
    for domain, (split, count) in SHOTS.items():
        files[f"evals/{domain}/{split}.jsonl"] = _lines(modules[domain].few_shot_docs(count, TEST_SEED))
    shots = modules["word_problems"].few_shot_docs(CHAIN_SHOTS, TEST_SEED)
    tasks = {
        "kimi_mini_gsm8k.yaml": lm_eval_tasks.gsm8k("evals/word_problems"),
        "kimi_mini_gsm8k_cot.yaml": lm_eval_tasks.gsm8k_cot("evals/word_problems", shots),
        "kimi_mini_mmlu.yaml": lm_eval_tasks.mmlu("evals/world"),
        "kimi_mini_mmlu_generative.yaml": lm_eval_tasks.mmlu_generative("evals/world"),
        "kimi_mini_copying.yaml": lm_eval_tasks.exact_answer("copying", "evals/copying/test.jsonl", 256),
        "kimi_mini_needle.yaml": lm_eval_tasks.exact_answer("needle", "evals/needle/test.jsonl", 32),
        "kimi_mini_programs.yaml": lm_eval_tasks.tested_program("evals/programs/test.jsonl", 256),
        "programs.py": lm_eval_tasks.PROGRAMS_PY,
        "documents.py": lm_eval_tasks.DOCUMENTS_PY,
    }
    return files | {f"evals/tasks/{name}": text for name, text in tasks.items()}


def _articles() -> str:
    rng = random.Random(CALIBRATION_SEED)
    rows: list[dict[str, str]] = []
    for number in range(ARTICLES):
        sections = [article(rng) for _ in range(SECTIONS)]
        text, highlights = ("\n".join(parts) for parts in zip(*sections, strict=True))
        rows.append({"article": text, "highlights": highlights, "id": f"article-{number:04d}"})
    return _lines(rows)


def instruction(sample: Sample) -> dict[str, Any]:
    """Return a sample as a row of an instruction set."""
    row: dict[str, Any] = {
        "messages": sample.messages,
        "domain": NEMOTRON_DOMAINS.get(sample.domain, "chat"),
        "source": sample.domain,
        "thinking": sample.thinking,
    }
    return {**row, "tools": sample.tools} if sample.tools else row


def _instructions() -> str:
    """Return chats of all domains in turn, drawn as training draws them."""
    rng = random.Random(CALIBRATION_SEED)
    modules = mixture.modules()
    rows: list[dict[str, Any]] = []
    while len(rows) < INSTRUCTIONS:
        sample = modules[list(modules)[len(rows) % len(modules)]].train_sample(rng)
        row = instruction(sample)
        if sample.messages and len(json.dumps(row["messages"])) <= LONGEST_INSTRUCTION:
            rows.append(row)
    return _lines(rows)


def files() -> dict[str, str]:
    """Return every file's text by its path from the root."""
    return {
        **_evals(),
        "data/calibration/articles.jsonl": _articles(),
        "data/calibration/instructions.jsonl": _instructions(),
    }


def differences(wanted: Mapping[str, str], root: Path) -> list[str]:
    """Return what is missing, different or too much on disk, one line each."""
    found: list[str] = []
    for path, text in wanted.items():
        if not (root / path).is_file():
            found.append(f"missing    {path}")
        elif (root / path).read_bytes() != text.encode():
            found.append(f"different  {path}")
    on_disk = [file for folder in OWNED for file in (root / folder).rglob("*") if file.is_file()]
    ignored = {"README.md"}
    names = (
        file.relative_to(root).as_posix() for file in on_disk if file.name not in ignored and file.suffix != ".pyc"
    )
    return found + [f"too much   {name}" for name in sorted(names) if name not in wanted]


def main() -> int:
    """Write the sets, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is on disk and write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that evals/ and data/ lie in")
    options = parser.parse_args()
    wanted = files()
    if options.check:
        found = differences(wanted, options.root)
        print("\n".join(found) if found else f"{len(wanted)} files are what the generators give")
        return 1 if found else 0
    for path, text in wanted.items():
        file = options.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        print(f"{len(text.encode()) / 1e3:9.1f} kB  {path}")
    print(f"{sum(len(text.encode()) for text in wanted.values()) / 1e6:9.2f} MB in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
