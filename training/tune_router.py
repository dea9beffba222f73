"""Router tuning: a pruned model's gate rows learn to predict what the whole model predicts, and nothing else moves.

Experts that were dropped leave their tokens to others, and the rows that choose among those were never trained for
that. The loss is KL(whole model || pruned model) on text of the training mixture that neither has seen. Correction
biases and all other weights stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional

from training import compare, corpus, step
from training.model import Mini
from training.variants import State

STEPS = 400
BATCH_TOKENS = 8192
RATE = 5e-3  # in 24 steps on a CPU, 1e-2 was better than 3e-3, and 3e-4 did little
WARMUP = 20
BETAS = (0.9, 0.95)


def tuned(
    teacher: Mini,
    pruned: State,
    shards: Sequence[corpus.Shard],
    *,
    steps: int = STEPS,
    batch_tokens: int = BATCH_TOKENS,
) -> tuple[State, list[float]]:
    """Return the weights with other gate rows, in BF16 values as a checkpoint stores them, and the loss by step."""
    device = teacher.embed_tokens.device
    student = compare.model_of(pruned, device.type)
    student.requires_grad_(False)
    gates = {
        f"layers.{number}.mlp.gate.weight": layer.mlp.gate.weight.requires_grad_()
        for number, layer in enumerate(student.layers)
        if not layer.is_dense
    }
    optimizer = torch.optim.Adam(gates.values(), lr=RATE, betas=BETAS)
    losses: list[torch.Tensor] = []
    for number, batch in enumerate(itertools.islice(_again_and_again(shards, batch_tokens, device), steps)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min((number + 1) / WARMUP, 1.0) * (1 - number / steps)
        loss = _divergence(teacher, student, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    found = {name: weight.detach().to(torch.bfloat16).float().cpu() for name, weight in gates.items()}
    return pruned | found, [float(loss) for loss in losses]


def _again_and_again(shards: Sequence[corpus.Shard], tokens: int, device: torch.device) -> Iterator[step.Batch]:
    """Yield batches, from the first again when all were used."""
    while True:
        for cut in corpus.batches(iter(shards), tokens):
            yield step.to_batch(cut, device)


def _divergence(teacher: Mini, student: Mini, batch: step.Batch) -> torch.Tensor:
    """Return the mean KL over learned tokens."""
    with torch.no_grad():
        wanted = teacher.logits(teacher(batch.tokens, batch.documents)[0][batch.learned]).float().log_softmax(-1)
    found = student.logits(student(batch.tokens, batch.documents)[0][batch.learned]).float().log_softmax(-1)
    count = max(len(wanted), 1)  # a batch inside a long document has nothing that is learned
    return functional.kl_div(found, wanted, reduction="sum", log_target=True) / count
