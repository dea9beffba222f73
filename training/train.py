"""Train kimi-mini in one command, on one GPU, in minutes.

    PYTHONPATH=src python -m training.train --minutes 9 --out RUN            from nothing
    PYTHONPATH=src python -m training.train --minutes 9 --out RUN2 --from RUN --first-shard 1000      go on
    PYTHONPATH=src python -m training.train --smoke --out RUN                what this machine can do

The time decides the pace: whatever the machine does in the minutes given, the learning rate ends at nothing. The other
cores make the corpus meanwhile. At the end experts are trained as INT4 stores them, the held-out items of every domain
are answered, and RUN holds weights-NN.safetensors, log.jsonl, scores.json and routing.json.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from halfbyte.families.kimi_k25.geometry import Geometry
from training import pieces, routing, score
from training.corpus import Corpus, batches
from training.model import Mini
from training.shape import MINI, TOY
from training.step import Learner, Pace, prefetched

LOG_EVERY = 25


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="of training, without start and scores")
    parser.add_argument("--from", dest="start", type=Path, help="a folder with weights-NN.safetensors to go on from")
    parser.add_argument("--first-shard", type=int, default=0, help="where in the corpus to begin")
    parser.add_argument("--tokens", type=int, default=65536, help="in one step")
    parser.add_argument("--rate", type=float, default=4e-3, help="the peak learning rate")
    parser.add_argument("--decay-share", type=float, default=Pace.decay_share)
    parser.add_argument("--int4-share", type=float, default=Pace.int4_share)
    parser.add_argument("--items", type=int, default=200, help="held-out items per domain; 0: no scores")
    parser.add_argument("--workers", type=int, help="processes that make the corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adamw", action="store_true", help="AdamW for everything")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="measure, do not train")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps, whatever the time (tests)")
    parser.add_argument("--toy", action="store_true", help="a model of two small layers (tests)")
    return parser.parse_args()


def device() -> str:
    """Return where to train."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def new_model(start: Path | None, seed: int, geometry: Geometry = MINI) -> Mini:
    """Return the model, from nothing or from the pieces of an earlier run."""
    torch.manual_seed(seed)
    model = Mini(geometry, dtype=torch.bfloat16 if device() == "cuda" else torch.float32)
    if start:
        model.load_state_dict(pieces.load(start))
    return model.to(device())


def corpus_folder() -> Path:
    """Return a folder in memory where the machine has one."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="kimi-mini-", dir=memory if memory.is_dir() else None))


class Log:
    """A line of JSON every few steps, and the same for the reader."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a")
        self.since = time.monotonic()

    def write(self, **row: Any) -> None:
        """Write one line."""
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def train(model: Mini, corpus: Corpus, given: argparse.Namespace, log: Log) -> None:
    """Learn until the time is over."""
    learner = Learner(model, muon=not given.adamw, compiled=not given.no_compile)
    pace = Pace(given.rate, decay_share=given.decay_share, int4_share=given.int4_share)
    stream = prefetched(batches(iter(corpus), given.tokens), device())
    warm_up(learner, next(stream))
    began = last = time.monotonic()
    number, losses = 0, []
    for number, batch in enumerate(stream):
        done = (time.monotonic() - began) / (60 * given.minutes)
        if done >= 1 or (given.steps and number >= given.steps):
            break
        if given.steps:
            done = number / given.steps
        model.int4 = pace.int4(done)
        entropy, uneven = learner.step(batch, pace.peak * pace.factor(done), pace.factor(done))
        losses.append(entropy)
        if number % LOG_EVERY == LOG_EVERY - 1:
            loss = float(torch.stack(losses).mean())  # waits for the device: never more than so many steps ahead of it
            if not math.isfinite(loss):
                raise RuntimeError(f"the loss is not a number at step {number}: lower --rate")
            now = time.monotonic()
            log.write(
                step=number + 1,
                seconds=round(now - began, 1),
                loss=round(loss, 4),
                rate=round(pace.peak * pace.factor(done), 6),
                int4=model.int4,
                uneven=round(float(uneven), 2),
                tokens_per_second=round(len(losses) * given.tokens / (now - last)),
                waited=round(corpus.waited, 1),
            )
            last, losses = now, []
    log.write(steps=number, tokens=number * given.tokens, seconds=round(time.monotonic() - began, 1))


def warm_up(learner: Learner, batch: Any) -> None:
    """Compile with a step that changes nothing, before the clock starts."""
    since = time.monotonic()
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    learner.step(batch, 0.0, 0.0)
    learner.model.load_state_dict(before)
    learner.optimizer.forget()
    print(f"first step (compiling) {time.monotonic() - since:.1f} s", flush=True)


def finish(model: Mini, given: argparse.Namespace, log: Log) -> None:
    """Save the weights first, then look at what they can do."""
    pieces.save(model.state_dict(), given.out)
    model.load_state_dict(pieces.load(given.out))  # what is scored is what was saved
    model.int4 = True
    if not given.items:
        return
    model.parts = type(model.parts)()
    found = routing.shares(model)
    (given.out / "routing.json").write_text(json.dumps({"shares": found, "summary": routing.summary(found)}))
    results = score.score(model, given.items)
    (given.out / "scores.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
    print(score.table(results), flush=True)
    log.write(scores={name: round(row["score"], 4) for name, row in results.items()})


def main() -> None:
    """Train, save, score."""
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    with Corpus(corpus_folder(), given.first_shard, given.workers) as corpus:
        model = new_model(given.start, given.seed, TOY if given.toy else MINI)
        if given.smoke:
            from training import smoke  # noqa: PLC0415 - measuring is not part of training

            smoke.measure(model, corpus)
            return
        log = Log(given.out / "log.jsonl")
        train(model, corpus, given, log)
    finish(model, given, log)


if __name__ == "__main__":
    main()
