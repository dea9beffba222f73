"""How well the model does on held-out items of every domain.

python -m training.score models/kimi-mini                     a checkpoint in the release's layout (INT4 as stored)
python -m training.score RUN --items 200                      the weights-NN.safetensors of a training run
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from training import chat, make_sets, mixture, pieces, tokenizer
from training.generate import generate
from training.model import Mini
from training.output import END_OF_THINKING
from training.sample import Item
from training.shape import CONTEXT

NEW_TOKENS = 512
BATCH_TOKENS = 400_000  # prompts and room for answers that are held in the cache at once


def score(model: Mini, count: int | None, *, seed: int = 0, only: list[str] | None = None) -> dict[str, Any]:
    """Return scores by domain, with a binomial error, and a few answers to look at; None: the sets of evals/."""
    results: dict[str, Any] = {}
    for name, module in mixture.modules().items():
        if only and name not in only:
            continue
        since = time.monotonic()
        items = module.test_items(count, seed) if count else make_sets.test_set(name)
        outputs = answers(model, items)
        right = [is_right(module, item, output) for item, output in zip(items, outputs, strict=True)]
        share = sum(right) / len(right)
        results[name] = {
            "items": len(items),
            "score": share,
            "error": math.sqrt(share * (1 - share) / len(right)),
            "seconds": round(time.monotonic() - since, 1),
            "ended": sum(output.endswith(chat.END) for output in outputs) / len(outputs),
            "by_form": _by_form(items, right),
            "wrong": _some_wrong(items, outputs, right),
        }
    return results


def is_right(module: ModuleType, item: Item, output: str) -> bool:
    """Return the domain's verdict; an answer that its scorer stumbles over is wrong, and says so.

    Who was asked to think and never ends the thought has not answered: a server would show no content.
    """
    if item.thinking and END_OF_THINKING not in output:
        return False
    try:
        return bool(module.score(item, output))
    except Exception as error:
        print(f"{item.id}: {type(error).__name__}: {error}", flush=True)
        return False


def _by_form(items: list[Item], right: list[bool]) -> dict[str, list[int]]:
    """Return [right, all] for each form of question that a domain distinguishes."""
    forms: dict[str, list[int]] = {}
    for item, ok in zip(items, right, strict=True):
        form = str(item.fields.get("form", "")) + (" thinking" if item.thinking else "")
        counts = forms.setdefault(form.strip(), [0, 0])
        counts[0] += ok
        counts[1] += 1
    return forms


def _some_wrong(items: list[Item], outputs: list[str], right: list[bool], most: int = 6) -> list[dict[str, str]]:
    wrong = [(item, output) for item, output, ok in zip(items, outputs, right, strict=True) if not ok][:most]
    return [
        {"prompt": chat.prompt(item)[-300:], "output": output[-300:], "answer": str(item.answer)[:200]}
        for item, output in wrong
    ]


def answers(model: Mini, items: list[Item], new_tokens: int = NEW_TOKENS) -> list[str]:
    """Return what the model writes after each item's prompt, special tokens included."""
    known = tokenizer.load()
    prompts = tokenizer.encode(known, [chat.prompt(item) for item in items])
    prompts = [prompt[-(CONTEXT - 32) :] for prompt in prompts]
    by_length = sorted(range(len(items)), key=lambda at: len(prompts[at]))
    found: dict[int, str] = {}
    while by_length:
        size = max(BATCH_TOKENS // (len(prompts[by_length[-1]]) + new_tokens), 1)
        batch, by_length = by_length[-size:], by_length[:-size]
        for at, ids in zip(batch, generate(model, [prompts[at] for at in batch], new_tokens), strict=True):
            found[at] = known.decode(ids, skip_special_tokens=False)
    return [found[at] for at in range(len(items))]


def table(results: dict[str, Any]) -> str:
    """Return the scores as lines."""
    lines: list[str] = []
    for name, found in results.items():
        forms = ", ".join(f"{form or 'all'} {good}/{count}" for form, (good, count) in found["by_form"].items())
        share = f"{100 * found['score']:5.1f} % +- {100 * found['error']:3.1f}"
        lines.append(f"{name:18} {share}  of {found['items']}  {found['seconds']} s  {forms}")
    return "\n".join(lines)


def main() -> None:
    """Score a run or a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=int, help="of every domain; without it, the sets of evals/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--domains", nargs="*")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)  # before any work
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Mini(dtype=getattr(torch, arguments.dtype))
    if (arguments.folder / "config.json").exists():
        from training import restore  # noqa: PLC0415 - a training run has no use for halfbyte's codecs

        model.load_state_dict(restore.state(arguments.folder))
    else:
        model.load_state_dict(pieces.load(arguments.folder))
        model.int4 = True
    results = score(model.to(device), arguments.items, seed=arguments.seed, only=arguments.domains)
    print(table(results))
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
