"""A small DeepSeek-V3 with Kimi's router, and tokens to route: the same bytes on every machine.

Three layers, the first one dense; 16 experts, top-4, chosen by sigmoids plus a random correction bias, their weights
renormalized and scaled by 2.827. In the model `groups`, experts are in 4 groups, and a token uses 2 groups. Everything
but the experts and their routers is as in `calibrated_checkpoint`. Only numpy is needed.
"""

import json
from pathlib import Path

import calibrated_checkpoint as base
import checkpoint
import inputs
import numpy as np

LAYERS, MOE_LAYERS, EXPERTS, CHOSEN, SCALING = base.LAYERS, (1, 2), 16, 4, 2.827
GROUPS = {"plain": (1, 1), "groups": (4, 2)}  # by model: how many groups, and how many a token sees
KEEP = 8
SEED = 240_000
ROWS, LENGTH, BATCH = 14, 32, 4  # the last batch is smaller
SHORT_ROWS = {1: 20, 3: 5, 6: 31, 7: 11, 9: 25, 12: 16}  # by row, how many real tokens; padded on the left


def experts(name: str, seed: int) -> base.Tensors:
    """Router, shared expert and routed experts; some experts are louder than others."""
    made = {
        f"{name}.gate.weight": base.matrix(seed, EXPERTS, base.HIDDEN),
        f"{name}.gate.e_score_correction_bias": checkpoint.float32(seed + 1, EXPERTS) / np.float32(2),
        **base.dense(f"{name}.shared_experts", seed + 2, base.EXPERT_WIDTH),
    }
    for expert, loud in enumerate(inputs.integers(seed + 5, (EXPERTS,), 8)):
        for i, (leaf, (rows, columns)) in enumerate(base.mlp_shapes(base.EXPERT_WIDTH).items()):
            sigma = (1.0 + loud / 8) / int(columns**0.5)
            weight = inputs.gaussian(seed + 10 + 3 * expert + i, (rows, columns), sigma=sigma)
            made[f"{name}.experts.{expert}.{leaf}.weight"] = weight
    return made


def layer_tensors(number: int) -> base.Tensors:
    """One decoder layer."""
    made = base.layer_tensors(number, "bf16")
    if number not in MOE_LAYERS:
        return made
    mlp = f"model.layers.{number}.mlp"
    others = {name: array for name, array in made.items() if not name.startswith(f"{mlp}.")}
    return others | experts(mlp, SEED + 100 * number)


def write(folder: Path, model: str) -> Path:
    """Write config.json and model.safetensors of one of GROUPS."""
    folder.mkdir(parents=True)
    n_group, topk_group = GROUPS[model]
    changed = {"n_routed_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "routed_scaling_factor": SCALING,
               "n_group": n_group, "topk_group": topk_group}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(base.CONFIG | changed, indent=2))
    made = {"model.embed_tokens.weight": base.embeddings()}
    for number in range(LAYERS):
        made |= layer_tensors(number)
    head = base.matrix(base.SEED + 3, base.VOCABULARY, base.HIDDEN)
    made |= {"model.norm.weight": checkpoint.norm(base.SEED + 2, base.HIDDEN), "lm_head.weight": head}
    checkpoint.write_shard(folder / "model.safetensors", made)
    return folder


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Token ids and which of them are real, both [ROWS, LENGTH]; short rows are padded on the left."""
    ids = 4 + inputs.integers(SEED + 4, (ROWS, LENGTH), base.VOCABULARY - 4)
    real = np.ones((ROWS, LENGTH), bool)
    for row, count in SHORT_ROWS.items():
        real[row, : LENGTH - count] = False
    return np.where(real, ids, base.PAD), real
