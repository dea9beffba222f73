"""Real loops: kimi-mini with few of its 32 experts, drawn at random, writes on without an end.

    python tests/golden/degeneracy/make_pruned_texts.py pruned_kimi_mini > texts.jsonl   # minutes; pruned_harder: 20

Whether each text loops was then decided by reading it. How long a run of digits may be in prose was chosen on those of
pruned_kimi_mini; no limit was chosen on those of pruned_harder, which all loop, some of them with noise between.
"""

import json
import random
import sys
import tempfile
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Texts:
    """Which experts stay, what is asked, and how it writes; each prompt once greedily and once at a temperature."""

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
            asked = [endless.asked(prompt) for prompt in list(open_prompts())[made_as.prompts]]
            heat = [0.0] * len(asked) + [made_as.temperature] * len(asked)
            texts = endless.write(asked * 2, tokens=made_as.tokens, temperatures=heat, seed=made_as.seed)
    for temperature, text in zip(heat, texts, strict=True):
        sys.stdout.write(json.dumps({"temperature": temperature, "text": text.text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(SETS[sys.argv[1]])
