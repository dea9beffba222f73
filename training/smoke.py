"""What a machine can do: is the fast attention right, how many tokens a second, and where the time goes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from training import score
from training.corpus import Corpus, Shard, batches
from training.model import Documents, Mini, Parts, attend
from training.step import Learner, to_batch

WARM_STEPS, STEPS = 3, 12
SETTINGS = ((65536, True, False), (65536, True, True), (65536, False, True), (131072, True, True))  # Muon, compiled


def measure(model: Mini, corpus: Corpus) -> None:
    """Print a table; a part that fails says so and the others go on."""
    device = model.embed_tokens.device
    print(torch.__version__, torch.cuda.get_device_name() if device.type == "cuda" else "CPU", flush=True)
    rows: list[str] = []
    _try(rows, "attention", lambda: attention_error(device))
    since = time.monotonic()
    shards = iter(corpus)
    first = next(shards)
    rows.append(f"first shard after {time.monotonic() - since:.1f} s")
    for tokens, muon, compiled in SETTINGS:
        name = f"{tokens} tokens, {'Muon' if muon else 'AdamW'}, {'compiled' if compiled else 'eager'}"
        _try(rows, name, lambda t=tokens, m=muon, c=compiled: speed(model, first, t, m, c))
    _try(rows, "INT4 experts, 65536 tokens", lambda: speed(model, first, 65536, True, True, int4=True))
    _try(rows, "corpus", lambda: corpus_speed(shards))
    model.parts = Parts()
    _try(rows, "generation, 200 items a domain", lambda: generation(model))
    _try(rows, "profile", lambda: profile(model, first))
    print("\n".join(rows), flush=True)


def _try(rows: list[str], name: str, work: Callable[[], str]) -> None:
    since = time.monotonic()
    try:
        found = work()
    except Exception as error:
        traceback.print_exc()
        found = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
    rows.append(f"{name:44} {found}   [{time.monotonic() - since:.1f} s]")
    print(rows[-1], flush=True)


def attention_error(device: torch.device) -> str:
    """Compare with a plain masked softmax in FP64, forward and backward."""
    torch.manual_seed(0)
    starts = torch.tensor([0, 5, 200, 201, 500], dtype=torch.int32)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    q, k, v = (torch.randn(500, 4, 192, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, Documents.of(starts, device), 0.1)
    grad = torch.randn_like(out)
    found = (out, *torch.autograd.grad(out, (q, k, v), grad))
    wide = [part.detach().double().requires_grad_() for part in (q, k, v)]
    number = torch.repeat_interleave(torch.arange(4), starts.diff()).to(device)
    mask = (number[:, None] == number).tril()
    q64, k64, v64 = (part.transpose(0, 1) for part in wide)
    scores = (q64 @ k64.mT * 0.1).masked_fill(~mask, float("-inf"))
    right = (scores.softmax(-1) @ v64).transpose(0, 1)
    expected = (right, *torch.autograd.grad(right, wide, grad.double()))
    return "relative error " + ", ".join(f"{_distance(a, b):.1e}" for a, b in zip(found, expected, strict=True))


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def _batches(shard: Shard, tokens: int, device: torch.device) -> list[Any]:
    return [to_batch(part, device) for part in batches(iter([shard]), tokens)]


def speed(model: Mini, shard: Shard, tokens: int, muon: bool, compiled: bool, *, int4: bool = False) -> str:
    """Train a few steps and return tokens per second."""
    device = model.embed_tokens.device
    model.parts, model.int4 = Parts(), int4
    learner = Learner(model, muon=muon, compiled=compiled)
    ready = _batches(shard, tokens, device)
    since = time.monotonic()
    for at in range(WARM_STEPS):
        entropy, _ = learner.step(ready[at % len(ready)], 1e-4)
    _wait(device)
    started = time.monotonic() - since
    since = time.monotonic()
    for at in range(STEPS):
        entropy, _ = learner.step(ready[at % len(ready)], 1e-4)
    _wait(device)
    taken = (time.monotonic() - since) / STEPS
    since = time.monotonic()
    for _ in range(STEPS):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
        learner.optimizer.step(0.0)
    _wait(device)
    alone = (time.monotonic() - since) / STEPS
    model.zero_grad(set_to_none=True)
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device.type == "cuda" else ""
    return (
        f"{tokens / taken:10,.0f} tokens/s, step {1000 * taken:.1f} ms, optimizer {1000 * alone:.1f} ms, "
        f"start {started:.1f} s, loss {float(entropy):.2f}{memory}"
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def corpus_speed(shards: Iterator[Shard], seconds: float = 4.0) -> str:
    """Return how fast the corpus is made, once what lay ready is used up."""
    since = time.monotonic()
    tokens = 0
    while time.monotonic() - since < seconds:
        tokens += len(next(shards).tokens)
    return f"{tokens / (time.monotonic() - since):10,.0f} tokens/s (some were ready)"


def generation(model: Mini) -> str:
    """Return how long answers take; of an untrained model all have full length."""
    model.int4 = True
    results = score.score(model, 200, only=["needle", "word_problems"])
    return ", ".join(f"{name} {row['seconds']} s" for name, row in results.items())


def profile(model: Mini, shard: Shard) -> str:
    """Print where the time of a step goes."""
    device = model.embed_tokens.device
    model.int4 = False
    learner = Learner(model)
    ready = _batches(shard, 65536, device)
    for batch in ready[:3]:
        learner.step(batch, 1e-4)
    _wait(device)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as found:
        for batch in ready[3:6]:
            learner.step(batch, 1e-4)
        _wait(device)
    if device.type == "cuda":
        events = [e for e in found.key_averages() if e.self_device_time_total > 0]
        events.sort(key=lambda e: -e.self_device_time_total)
        for event in events[:28]:
            print(f"{event.self_device_time_total / 3000:8.2f} ms/step {event.count // 3:5d} x  {event.key[:110]}")
        total = sum(e.self_device_time_total for e in events) / 3000
        return f"device busy {total:.1f} ms/step"
    return "no device"
