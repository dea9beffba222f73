"""Real loops: kimi-mini with 12 of its 32 experts, drawn at random, writes on without an end.

    python tests/golden/degeneracy/make_pruned_texts.py > texts.jsonl      # minutes

Whether each text loops was then decided by reading it. How long a run of digits may be in prose was chosen on them.
"""

import json
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from halfbyte.models.model import describe
from halfbyte.pipeline import quantize
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.asked import recipe_of_plan
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.validate.generate import open_writer
from halfbyte.validate.prompts import open_prompts

FOLDER = Path(__file__).parents[3] / "models" / "kimi-mini"
KEEP, PROMPTS, TOKENS = 12, 16, 400


def main() -> None:
    checkpoint, dice = open_checkpoint(FOLDER), random.Random(1)
    model = describe(checkpoint)
    layers = {at: LayerChoice(tuple(sorted(dice.sample(range(model.experts), KEEP)))) for at in model.moe_layers}
    plan = PrunePlan(router=router_shape(model, checkpoint.config), layers=layers, rule=None)
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "pruned"
        quantize(FOLDER, out, recipe_of_plan(plan, "layers"), prune_plan=plan)
        with open_writer(out) as writer:
            endless = replace(writer, stops=())
            asked = [endless.asked(prompt) for prompt in list(open_prompts())[:PROMPTS]]
            heat = [0.0] * PROMPTS + [0.7] * PROMPTS
            texts = endless.write(asked * 2, tokens=TOKENS, temperatures=heat, seed=3)
    for temperature, text in zip(heat, texts, strict=True):
        sys.stdout.write(json.dumps({"temperature": temperature, "text": text.text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
