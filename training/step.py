"""One step of learning: batches on the device, the loss, and the pace of the learning rate."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from training.corpus import Shard
from training.model import Documents, Layer, Mini, Parts, Routes
from training.muon import Optimizer

Z_LOSS = 1e-4  # keeps logits from drifting: engines compute them in BF16
CLIP = 1.0
BALANCE_RATE = 1e-3
PREFETCH = 4


class Batch(NamedTuple):
    """Tokens [T], what follows each [T], whether that is learned [T], and the documents."""

    tokens: Tensor
    targets: Tensor
    learned: Tensor
    documents: Documents


def to_batch(shard: Shard, device: torch.device | str) -> Batch:
    """Bring a piece of the corpus to the device; the first token of a document has nothing to be predicted from."""
    tokens = torch.from_numpy(shard.tokens.astype("int64"))
    learned = torch.from_numpy(shard.learned).clone()
    starts = torch.from_numpy(shard.starts)
    learned[starts[:-1].long()] = False
    parts = [tokens, tokens.roll(-1), learned.roll(-1)]
    if torch.device(device).type == "cuda":
        parts = [part.pin_memory() for part in parts]
    tokens, targets, learned = (part.to(device, non_blocking=True) for part in parts)
    return Batch(tokens, targets, learned, Documents.of(starts, device))


def prefetched(shards: Iterator[Shard], device: torch.device | str) -> Iterator[Batch]:
    """Prepare batches in a thread, a few ahead."""
    waiting: queue.Queue[Batch | BaseException] = queue.Queue(PREFETCH)

    def fill() -> None:
        try:
            for shard in shards:
                waiting.put(to_batch(shard, device))
            raise StopIteration
        except BaseException as error:  # raised again where it is read
            waiting.put(error)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        found = waiting.get()
        if isinstance(found, StopIteration):
            return
        if isinstance(found, BaseException):
            raise found
        yield found


def loss_of(hidden: Tensor, head: Tensor, targets: Tensor, learned: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is minimized and the plain cross entropy, both means over learned tokens."""
    logits = functional.linear(hidden, head.to(hidden.dtype)).float()
    log_sum = logits.logsumexp(-1)
    entropy = log_sum - logits.gather(-1, targets[:, None])[:, 0]
    weights = learned.float()
    count = weights.sum().clamp(min=1)
    plain = (entropy * weights).sum() / count
    return plain + Z_LOSS * (log_sum.square() * weights).sum() / count, plain.detach()


@torch.no_grad()
def balance(model: Mini, routes: list[Routes], rate: float) -> Tensor:
    """Move each router's bias towards experts with too few tokens; return the largest load over the mean load.

    This is balancing without an auxiliary loss: the bias takes part in the choice and in nothing else, over a whole
    batch, so that a domain may keep experts of its own.
    """
    routers = [layer.mlp.gate for layer in model.layers if not layer.is_dense]
    worst: list[Tensor] = []
    for router, found in zip(routers, routes, strict=True):
        load = found.load.float()
        router.e_score_correction_bias += rate * (load.mean() - load).sign()
        worst.append(load.max() / load.mean())
    return torch.stack(worst).max()


@dataclass
class Pace:
    """How fast to learn, by the share of the time that is over: up, level, then down to nothing."""

    peak: float
    warmup_share: float = 0.02
    decay_share: float = 0.45
    int4_share: float = 0.25  # the last part of the time in which experts are used as INT4 stores them

    def factor(self, done: float) -> float:
        """Return the learning rate as a share of the peak."""
        up = min(done / self.warmup_share, 1.0) if self.warmup_share else 1.0
        down = min((1 - done) / self.decay_share, 1.0) if self.decay_share else 1.0
        return max(min(up, down), 0.0)

    def int4(self, done: float) -> bool:
        """Whether quantization-aware training has begun."""
        return done >= 1 - self.int4_share


class Learner:
    """A model, its optimizer, and one step after another."""

    def __init__(self, model: Mini, *, muon: bool = True, compiled: bool = True) -> None:
        self.model = model
        self.optimizer = Optimizer(model, muon=muon)
        self.loss: Callable[..., Any] = loss_of
        if compiled:
            torch._dynamo.config.recompile_limit = 64
            compile_ = torch.compile(dynamic=False)
            model.parts = Parts(compile_(Layer.before), compile_(Layer.after))
            self.loss = compile_(loss_of)

    def step(self, batch: Batch, rate: float, pace: float = 1.0) -> tuple[Tensor, Tensor]:
        """Learn from one batch; return the cross entropy and how uneven the experts' loads are."""
        hidden, routes = self.model(batch.tokens, batch.documents)
        total, plain = self.loss(hidden, self.model.lm_head, batch.targets, batch.learned)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
        self.optimizer.step(rate)
        self.model.zero_grad(set_to_none=True)
        return plain, balance(self.model, routes, BALANCE_RATE * pace)
