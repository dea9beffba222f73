"""Golden expert saliencies on a small Kimi: llm-compressor's REAP tracker, and the public REAP code's formulas.

transformers runs the model in FP64 (its router computes in FP32, as always). The tracker is llm-compressor's own, fed
each batch's choices, weights and norms, without padding. The public code (CerebrasResearch/reap at 1970473c) does not
support this model and is not run; its formulas are reimplemented here in FP64, with batches averaged in the same way:

    p     = softmax over the logits of all experts, divided by its sum over the selected ones, at least FP32's epsilon
    reap  = mean over an expert's tokens of p times the norm of its output; over batches, weighted by their counts

`true`: the model's own selection with log-sigmoids as logits, so that p times the scaling factor is the model's own
weight. `true_softmax`: the same selection with the router's logits. `public`: that code's own selection, the largest
logits without bias and groups.
"""

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import checkpoint
import inputs
import numpy as np
import record
import routed_checkpoint as small
import torch
from llmcompressor.modifiers.pruning.reap.utils import MoeModelAttrs, REAPSaliencyTracker
from transformers import AutoModelForCausalLM

EPSILON = 2.0**-23  # of FP32


class Batch(NamedTuple):
    """The real tokens of a batch in one layer."""

    logits: np.ndarray  # [T, E]
    indices: np.ndarray  # [T, k]: the model's selection
    weights: np.ndarray  # [T, k]: and how it weighs it
    norms: np.ndarray  # [T, E]: of every expert's output


Of = Callable[[Batch], np.ndarray]


def run(source: Path) -> dict[int, list[Batch]]:
    """Run the tokens through the model, and every expert on every real token."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, attn_implementation="sdpa").eval()
    model.set_experts_implementation("eager")  # the only one that takes FP64
    ids, real = (torch.from_numpy(array) for array in small.tokens())
    found: dict[int, list[Batch]] = {number: [] for number in small.MOE_LAYERS}
    now = SimpleNamespace(real=torch.empty(0))

    def see(number: int, module: torch.nn.Module, args: tuple, out: tuple) -> None:
        logits, weights, indices = out
        x = args[0].reshape(-1, args[0].shape[-1])[now.real]
        experts = model.model.layers[number].mlp.experts
        norms = []
        for expert in range(small.EXPERTS):
            gate, up = (x @ experts.gate_up_proj[expert].T).chunk(2, dim=-1)
            norms.append(((torch.nn.functional.silu(gate) * up) @ experts.down_proj[expert].T).norm(dim=-1))
        kept = (tensor[now.real].numpy() for tensor in (logits, indices, weights))
        found[number].append(Batch(*kept, torch.stack(norms, 1).numpy()))

    for number in small.MOE_LAYERS:
        hook = lambda module, args, out, number=number: see(number, module, args, out)  # noqa: E731
        model.model.layers[number].mlp.gate.register_forward_hook(hook)
    with torch.no_grad():
        for start in range(0, small.ROWS, small.BATCH):
            part = slice(start, start + small.BATCH)
            now.real = real[part].reshape(-1)
            model(input_ids=ids[part], attention_mask=real[part].long(), use_cache=False)
    return found


def by_llmcompressor(batches: list[Batch], model: str) -> dict:
    """The tracker's saliencies, and its kept experts: of all, or of each group."""
    tracker = REAPSaliencyTracker(small.EXPERTS)
    for batch in batches:
        indices, weights = torch.from_numpy(batch.indices), torch.from_numpy(batch.weights)
        # An expert's norms are in the order of the experts' loop: by slot, then by token.
        where = {e: torch.where(indices.T.eq(e))[1] for e in range(small.EXPERTS)}
        norms = torch.from_numpy(batch.norms).float()  # as its hook hands them over
        tracker.update(indices, weights, {e: norms[tokens, e] for e, tokens in where.items() if len(tokens)})
    groups, chosen_groups = small.GROUPS[model]
    grouped = groups > 1
    drop = small.EXPERTS - small.KEEP
    attrs = MoeModelAttrs("n_routed_experts", "gate", "experts", [], small.EXPERTS, small.CHOSEN, False,
                          groups if grouped else None, chosen_groups if grouped else None,
                          small.EXPERTS // groups if grouped else None)  # fmt: skip
    kept = tracker.compute_retained_experts(drop, drop // groups if grouped else None, attrs)
    return {"count": tracker.count.long().tolist(), "reap": tracker.mean_saliency.tolist(), "kept": kept.tolist()}


def by_formulas(batches: list[Batch], logits_of: Of, selected_of: Of) -> dict:
    """The public code's metrics, for any logits and any selection."""
    count = np.zeros(small.EXPERTS, np.int64)
    sums = {name: np.zeros(small.EXPERTS) for name in ("ean_sum", "weighted_ean_sum", "weighted_frequency_sum")}
    reap = np.zeros(small.EXPERTS)
    for batch in batches:
        logits, selected = logits_of(batch).astype(np.float64), selected_of(batch)
        exps = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = exps / exps.sum(axis=1, keepdims=True)
        p = np.maximum(p / np.take_along_axis(p, selected, 1).sum(axis=1, keepdims=True), EPSILON)
        for expert in range(small.EXPERTS):
            tokens = (selected == expert).any(axis=1)
            n, share = batch.norms[tokens, expert], p[tokens, expert]
            sums["ean_sum"][expert] += n.sum()
            sums["weighted_ean_sum"][expert] += (share * n).sum()
            sums["weighted_frequency_sum"][expert] += share.sum()
            if len(n):
                after = count[expert] + len(n)
                reap[expert] += ((share * n).mean() - reap[expert]) * len(n) / after
                count[expert] = after
    drop = np.argsort(reap, kind="stable")[: small.EXPERTS - small.KEEP].tolist()
    kept = [expert for expert in range(small.EXPERTS) if expert not in drop]
    return {"count": count.tolist(), "reap": reap.tolist(), "kept": kept,
            **{name: array.tolist() for name, array in sums.items()}}  # fmt: skip


def true_selection(batch: Batch) -> np.ndarray:
    """The model's selection."""
    return batch.indices


def largest_logits(batch: Batch) -> np.ndarray:
    """The public code's selection."""
    return torch.from_numpy(batch.logits).topk(small.CHOSEN).indices.numpy()


def log_sigmoids(batch: Batch) -> np.ndarray:
    """Logits whose softmax, renormalized over the selected, is the sigmoid renormalized over them."""
    return -np.logaddexp(0.0, -batch.logits.astype(np.float64))


def plain_logits(batch: Batch) -> np.ndarray:
    """The router's own logits."""
    return batch.logits


def agreement(batches: list[Batch]) -> float:
    """The share of the model's choices that are among the public code's."""
    both = [(b.indices[:, :, None] == largest_logits(b)[:, None, :]).any(2) for b in batches]
    return float(np.concatenate(both).mean())


def record_model(model: str) -> dict:
    """All saliencies of one model, by layer."""
    with tempfile.TemporaryDirectory() as folder:
        source = small.write(Path(folder, "source"), model)
        made: dict = {"source_sha256": checkpoint.sha256(source), "layers": {}}
        for number, batches in run(source).items():
            found = {
                "llmcompressor": by_llmcompressor(batches, model),
                "true": by_formulas(batches, log_sigmoids, true_selection),
                "true_softmax": by_formulas(batches, plain_logits, true_selection),
                "public": by_formulas(batches, plain_logits, largest_logits),
                "agreement": agreement(batches),
            }
            ours, theirs = np.array(found["true"]["reap"]) * small.SCALING, np.array(found["llmcompressor"]["reap"])
            assert np.allclose(ours, theirs, rtol=1e-6, atol=0), "the tracker and the formulas disagree"
            assert found["true"]["count"] == found["llmcompressor"]["count"]
            made["layers"][str(number)] = found
    return made


def main() -> None:
    """Write the golden saliencies of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    warnings.filterwarnings("ignore")
    golden = record.Record("llmcompressor", __file__, ["transformers", "compressed-tensors"])
    facts = golden.provenance(args.wheel) | {
        "seed": small.SEED,
        "tokens_sha256": inputs.sha256(*small.tokens()),
        "saliencies": {model: record_model(model) for model in small.GROUPS},
    }
    (args.out / f"{golden.stem}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
