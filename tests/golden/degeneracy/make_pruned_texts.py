"""Real loops: texts of kimi-mini with a few random experts of 32, which repeats itself endlessly.

    python tests/golden/degeneracy/make_pruned_texts.py pruned_kimi_mini > texts.jsonl   # minutes; pruned_harder: 20

The texts were labeled by reading. The limit for runs of digits in prose was tuned on pruned_kimi_mini; no limit was
tuned on pruned_harder, whose texts all loop, some with noise in between.
"""

import json
import random
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.degeneracy.generate import open_writer
from halfbyte.degeneracy.loop_test import open_prompts
from halfbyte.engine.pipeline import quantize
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.options import recipe_of_plan

FOLDER = Path(__file__).parents[3] / "models" / "kimi-mini"


@dataclass(frozen=True, slots=True)
class Texts:
    """Kept experts, prompts and sampling; each prompt once greedily and once at a temperature."""

    dice: int
    keep: int
    prompts: slice
    tokens: int
    temperature: float
    seed: int


SETS = {
    "pruned_kimi_mini": Texts(dice=1, keep=12, prompts=slice(0, 16), tokens=400, temperature=0.7, seed=3),
    "pruned_harder": Texts(dice=2, keep=10, prompts=slice(16, 28), tokens=1700, temperature=0.5, seed=5),
}


def main(made_as: Texts) -> None:
    checkpoint, dice = open_checkpoint(FOLDER), random.Random(made_as.dice)
    model = describe(checkpoint)
    layers = {
        at: LayerChoice(tuple(sorted(dice.sample(range(model.experts), made_as.keep)))) for at in model.moe_layers
    }
    plan = PrunePlan(router=router_shape(model, checkpoint.config), layers=layers, rule=None)
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "pruned"
        quantize(FOLDER, out, recipe_of_plan(plan, "layers"), prune_plan=plan)
        with open_writer(out) as writer:
            endless = replace(writer, stops=())
            asked = [endless.prompt_tokens(prompt) for prompt in list(open_prompts())[made_as.prompts]]
            heat = [0.0] * len(asked) + [made_as.temperature] * len(asked)
            texts = endless.write(asked * 2, tokens=made_as.tokens, temperatures=heat, seed=made_as.seed)
    for temperature, text in zip(heat, texts, strict=True):
        sys.stdout.write(json.dumps({"temperature": temperature, "text": text.text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(SETS[sys.argv[1]])
