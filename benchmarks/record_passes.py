"""Ask kimi-mini the same multiple-choice items many times, with sampling, and record which were right in each pass.

    python -m benchmarks.record_passes -o FILE [--passes 40] [--items 200]

Passes of one model differ by chance alone, so comparisons between them show how often `halfbyte eval` cries wolf. The
items and the filter are those of the task kimi_mini_mmlu_generative, the answers are drawn at temperature 1 by
transformers from the BF16 twin: no server, a few minutes on one core. One line of settings, then one line a pass.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from training import make_sets

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

ROOT = Path(__file__).parents[1]
TASK = "kimi_mini_mmlu_generative"
TEMPERATURE = 1.0
SEED = 9


def record(passes: int, items: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the settings, and for each pass which items were right, as a text of 0 and 1."""
    asked = make_sets.test_set("world")[:items]
    task = yaml.safe_load((ROOT / "evals" / "tasks" / f"{TASK}.yaml").read_text())
    letter = re.compile(task["filter_list"][0]["filter"][0]["regex_pattern"])
    most = int(task["generation_kwargs"]["max_gen_toks"])
    right = [["0"] * items for _ in range(passes)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, model = _loaded(Path(folder) / "bf16")
        torch.manual_seed(SEED)
        for place, item in enumerate(asked):
            for number, text in enumerate(_drawn(tokenizer, model, item.prompt, passes, most)):
                found = letter.match(text)
                right[number][place] = str(int(found is not None and found[1] == item.answer))
    about = {"task": TASK, "temperature": TEMPERATURE, "items": items, "seed": SEED, "torch": torch.__version__}
    about["clusters"] = [item.fields["subject"] for item in asked]
    return about, [{"pass": number, "right": "".join(row)} for number, row in enumerate(right)]


def _loaded(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, Kimi_K25ForConditionalGeneration

    quantize(ROOT / "models" / "kimi-mini", folder, load_recipe("kimi-k2.6-bf16"))
    model = Kimi_K25ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    return AutoTokenizer.from_pretrained(folder), model.eval()


def _drawn(tokenizer: Any, model: Any, prompt: str, count: int, most: int) -> list[str]:
    """Return so many answers: first tokens of one forward, and what follows only where they do not decide yet."""
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.no_grad():
        chances = (model(input_ids=ids).logits[0, -1] / TEMPERATURE).softmax(-1)
        firsts = torch.multinomial(chances, count, replacement=True)
        texts: list[str] = []
        for first in firsts:
            text = tokenizer.decode([first])
            if not text.strip(" \n\t("):  # a space or a bracket: the letter may come
                begun = torch.cat([ids, first.view(1, 1)], 1)
                options = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0}
                made = model.generate(input_ids=begun, max_new_tokens=most - 1, **options)
                text = tokenizer.decode(made[0, ids.shape[1] :])
            texts.append(text)
    return texts


def main() -> None:
    """Record, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--items", type=int, default=200)
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)  # before any work
    about, rows = record(asked.passes, asked.items)
    asked.out.write_text("".join(json.dumps(line) + "\n" for line in (about, *rows)))


if __name__ == "__main__":
    main()
