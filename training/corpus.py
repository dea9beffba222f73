"""What is trained on: shards of tokens that worker processes generate while the model learns.

Workers make shards on all other cores, from the domains' generators, and leave them in memory (/dev/shm); the trainer
takes them in order and deletes them. Shard N is the same on every machine: its seed is N. Nothing is ever seen twice.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training import chat, mixture, tokenizer
from training.sample import Sample
from training.shape import CONTEXT

SHARD_TOKENS = 1 << 20
AHEAD = 96  # shards that may wait for the trainer: 300 MB


class Shard(NamedTuple):
    """Documents one after another: their tokens, which of them are learned, and where documents start (and the end)."""

    tokens: NDArray[np.uint16]
    learned: NDArray[np.bool_]
    starts: NDArray[np.int32]


class Encoder:
    """Turns samples into token ids and marks what is learned."""

    def __init__(self) -> None:
        self.tokenizer = tokenizer.load()
        self.remembered: dict[str, list[int]] = {}

    def encode(self, sample: Sample) -> tuple[list[int], list[bool]]:
        """Return ids and marks of one sample; marks say which tokens must be predicted."""
        ids: list[int] = []
        marks: list[bool] = []
        for piece in chat.pieces(sample):
            if piece.is_token:
                ids.append(tokenizer.IDS[piece.text])
                marks.append(piece.learn)
                continue
            found = self.ids(piece.text)
            ids += found
            first = self.first_learned(piece) if piece.learn else len(found)
            marks += [at >= first for at in range(len(found))]
        return ids[:CONTEXT], marks[:CONTEXT]

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text; roles, names and declarations of functions come again and again."""
        if text in self.remembered:
            return self.remembered[text]
        found = self.tokenizer.encode(text, add_special_tokens=False).ids
        if len(self.remembered) < 100_000 and (len(text) < 12 or text.startswith("# Tools")):  # noqa: PLR2004
            self.remembered[text] = found
        return found

    def first_learned(self, piece: chat.Piece) -> int:
        """Return the first token that begins at or after the first learned character."""
        if not piece.learn_from:
            return 0
        offsets = self.tokenizer.encode(piece.text, add_special_tokens=False).offsets
        return next((at for at, (begin, _) in enumerate(offsets) if begin >= piece.learn_from), len(offsets))


def make_shard(number: int, tokens: int = SHARD_TOKENS, encoder: Encoder | None = None) -> Shard:
    """Generate one shard; the last document is cut where the shard ends."""
    encoder = encoder or Encoder()
    rng = random.Random(number)
    ids, marks, starts = np.empty(tokens, np.uint16), np.zeros(tokens, np.bool_), [0]
    at = 0
    lengths: dict[str, int] = {}

    def length_of(_: Sample) -> int:
        return lengths["last"]

    for sample in mixture.schedule(length_of, rng, tokens):
        found, learned = encoder.encode(sample)
        fits = min(len(found), tokens - at)
        ids[at : at + fits], marks[at : at + fits] = found[:fits], learned[:fits]
        at += fits
        starts.append(at)
        lengths["last"] = fits
    return Shard(ids, marks, np.array(starts, np.int32))


def _work(folder: Path, numbers: Iterator[int], ahead: int) -> None:
    """Make shards, and wait while enough of them lie there."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Encoder()
    for number in numbers:
        while len(list(folder.glob("*.npz"))) >= ahead:
            time.sleep(0.2)
        shard = make_shard(number, encoder=encoder)
        part = folder / f"{number}.part"
        with part.open("wb") as file:
            np.savez(file, **shard._asdict())
        part.rename(folder / f"{number}.npz")


class Corpus:
    """Shards first, first + 1, ... as they become ready; a context manager that stops its workers."""

    def __init__(self, folder: Path, first: int = 0, workers: int | None = None, ahead: int = AHEAD) -> None:
        self.folder, self.first = folder, first
        self.workers = workers or max((os.cpu_count() or 2) - 2, 1)
        self.ahead = ahead
        self.waited = 0.0
        self.processes: list[multiprocessing.process.BaseProcess] = []

    def __enter__(self) -> Corpus:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            old.unlink()
        context = multiprocessing.get_context("spawn")  # a fork would copy a CUDA context
        for worker in range(self.workers):
            numbers = range(self.first + worker, self.first + 10_000_000, self.workers)
            process = context.Process(target=_work, args=(self.folder, numbers, self.ahead), daemon=True)
            process.start()
            self.processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __iter__(self) -> Iterator[Shard]:
        number = self.first
        while True:
            path = self.folder / f"{number}.npz"
            since = time.monotonic()
            while not path.exists():
                if not any(process.is_alive() for process in self.processes):
                    raise RuntimeError("every worker that makes the corpus has died; its error is above")
                time.sleep(0.01)
            self.waited += time.monotonic() - since
            with np.load(path) as found:
                shard = Shard(found["tokens"], found["learned"], found["starts"])
            path.unlink()
            yield shard
            number += 1


def batches(shards: Iterator[Shard], tokens: int) -> Iterator[Shard]:
    """Cut shards into batches of so many tokens; of a document that lies across a cut, the rest is not learned."""
    for shard in shards:
        for at in range(0, len(shard.tokens) - tokens + 1, tokens):
            inside = shard.starts[(shard.starts > at) & (shard.starts < at + tokens)] - at
            starts = np.concatenate([[0], inside, [tokens]]).astype(np.int32)
            learned = shard.learned[at : at + tokens].copy()
            if at not in shard.starts:
                learned[: starts[1]] = False
            yield Shard(shard.tokens[at : at + tokens], learned, starts)
