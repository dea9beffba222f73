"""Items of an evaluation (eval.jsonl) and the journal of its requests (requests.jsonl).

A line of eval.jsonl has one item: prompt hash, answer, scores, request details.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.untrusted_files import MOST_NBYTES, parsed, plain_bytes
from halfbyte.endpoint.client import values_without_keys
from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.evaluate.programs import runs_of
from halfbyte.evidence.jsonl import Lines, encoded

Side = Literal["candidate", "reference"]
FILE = "eval.jsonl"
# Finish reasons of different engines that mean that the model ended its answer.
STOPPED = frozenset({"stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls", "function_call"})
_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One item of one pass. A failed request has no scores."""

    side: Side
    task: str  # in the suite
    subtask: str  # in lm-eval: a member of a group, or the task itself
    doc: int
    seed: int  # of the few-shot examples
    cluster: str | None
    doc_hash: str
    prompt_hash: str
    target_hash: str
    target: str
    output: Any  # text, or a log-likelihood per choice
    taken: dict[str, Any]  # extracted answer by filter
    scores: dict[str, float] | None  # by metric and filter
    finish_reason: str | None
    null: bool  # the server sent no content
    prompt_tokens: int | None
    completion_tokens: int | None
    latency_s: float
    attempts: int
    error: str | None
    programs: list[dict[str, Any]] = field(
        default_factory=list[dict[str, Any]]
    )  # results of the programs in a coding task

    @property
    def place(self) -> tuple[str, str, int, int]:
        """The key of the item in both runs of a comparison."""
        return self.task, self.subtask, self.seed, self.doc

    @property
    def cut(self) -> bool:
        """Whether the model did not end the answer itself, or the finish reason is unknown."""
        return self.error is None and self.finish_reason not in STOPPED

    @property
    def text(self) -> str:
        """The generated text; empty for likelihoods."""
        return self.output if isinstance(self.output, str) else ""


def read_samples(rows: Sequence[_Row], records: Mapping[Any, _Row], about: _Row, cluster: str | None) -> list[Sample]:
    """Join lm-eval's rows, one per item and filter, with the records of their requests."""
    by_doc: dict[int, list[_Row]] = {}
    for row in rows:
        by_doc.setdefault(int(row["doc_id"]), []).append(row)
    samples: list[Sample] = []
    for doc, filtered in by_doc.items():
        requests = [records[about["subtask"], doc, number] for number in range(len(filtered[0]["resps"]))]
        samples.append(_sample(filtered, requests, about, cluster))
    return samples


def _sample(rows: Sequence[_Row], requests: Sequence[_Row], about: _Row, cluster: str | None) -> Sample:
    first = rows[0]
    error = next((str(row["error"]) for row in requests if row.get("error") is not None), None)
    answers = [row.get("answer") for row in requests]
    scores = {f"{metric},{row['filter']}": float(row[metric]) for row in rows for metric in row["metrics"]}
    finish = [row.get("finish_reason") for row in requests]
    return Sample(
        side=about["side"],
        task=about["task"],
        subtask=about["subtask"],
        doc=int(first["doc_id"]),
        seed=about["seed"],
        cluster=str(first["doc"][cluster]) if cluster else None,
        doc_hash=first["doc_hash"],
        prompt_hash=first["prompt_hash"],
        target_hash=first["target_hash"],
        target=str(first["target"]),
        output=answers[0] if len(answers) == 1 else answers,
        taken={str(row["filter"]): _plain(row["filtered_resps"]) for row in rows},
        scores=None if error else scores,
        finish_reason=next((reason for reason in finish if reason not in STOPPED), finish[0]),
        null=any(bool(row.get("null")) for row in requests),
        prompt_tokens=_total(requests, "prompt_tokens"),
        completion_tokens=_total(requests, "completion_tokens"),
        latency_s=round(sum(float(row["latency_s"]) for row in requests), 4),
        attempts=max(int(row["attempts"]) for row in requests),
        error=error,
        programs=[run for row in rows for run in runs_of(row)],
    )


def _plain(value: Any) -> Any:
    """Unwrap a list of one value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _total(requests: Sequence[Mapping[str, Any]], name: str) -> int | None:
    counts = [request.get(name) for request in requests]
    return None if None in counts else sum(int(count) for count in counts if count is not None)


def write_samples(folder: Path, samples: Iterable[Sample]) -> None:
    """Write eval.jsonl atomically."""
    lines = [encoded(values_without_keys(asdict(sample))) for sample in samples]
    write_whole(folder / FILE, b"".join(lines))


def load_samples(folder: Path) -> list[Sample]:
    """Read the items of an earlier run."""
    try:
        lines = plain_bytes(folder / FILE, MOST_NBYTES).splitlines()
        return [_checked(Sample(**parsed(line))) for line in lines]
    except FileNotFoundError:
        fix = "pass the folder of an earlier `halfbyte eval -o`"
        raise UsageError("no results of an earlier run", where=str(folder), fix=fix) from None
    except (ValueError, TypeError, AttributeError) as error:
        what = f"invalid results, or results of another version: {error}"
        raise UsageError(what, where=str(folder), fix="run the evaluation again") from None


def _checked(sample: Sample) -> Sample:
    """Validate an item of an untrusted file, so that the statistics do not fail on it later."""
    kinds = {"task": str, "subtask": str, "doc": int, "seed": int}
    for field_name, kind in kinds.items():
        if type(getattr(sample, field_name)) is not kind:
            raise ValueError(f"an item has {getattr(sample, field_name)!r} for {field_name}")
    for name, score in (sample.scores or {}).items():
        if type(score) not in (int, float) or not 0 <= score <= 1:
            raise ValueError(f"item {sample.doc} of {sample.subtask} has the score {score!r} for {name}")
    return sample


def check_pairs(candidate: Sequence[Sample], reference: Sequence[Sample]) -> None:
    """Raise unless both runs have the same items, prompts and targets."""
    ours, theirs = ({sample.place: sample for sample in side} for side in (candidate, reference))
    if ours.keys() != theirs.keys():
        what = f"{len(ours.keys() ^ theirs.keys())} items are in only one of the runs"
        raise CheckFailedError(what, where="the two runs", fix="run both with the same suite, data and --limit")
    for place, sample in ours.items():
        other = theirs[place]
        for name in ("doc_hash", "prompt_hash", "target_hash"):
            if getattr(sample, name) != getattr(other, name):
                what = f"item {place[3]} of {place[1]} differs between the runs ({name})"
                raise CheckFailedError(what, where="the two runs", fix="run both with the same suite and data")


# An append-only journal of finished requests, one per line, from which an interrupted run resumes.
#
# The key of a request covers everything that could change its answer: address, model name, server fingerprint, suite,
# task, seed, item, and the request body. lm-eval's cache considers only the body.


@dataclass(frozen=True, slots=True)
class Scope:
    """The server, suite, task and seed of a request."""

    url: str
    model: str
    fingerprint: str
    suite: str
    task: str
    seed: int


def request_key(scope: Scope, item: tuple[str, int, int], payload: Any) -> str:
    """Return the key of a request. Equal keys have equal answers, within the server's noise."""
    whole = [asdict(scope), list(item), payload]
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


class Store(Lines):
    """The journal of an evaluation: endpoints, and answers by request key."""

    def __init__(self, path: Path) -> None:
        self.endpoints: list[dict[str, Any]] = []
        self._answers: dict[str, dict[str, Any]] = {}
        super().__init__(path)

    def _remember(self, record: dict[str, Any]) -> None:
        if record["kind"] == "endpoint":
            self.endpoints.append({key: record[key] for key in ("kind", "fingerprint", "stable", "probes")})
        elif record["kind"] == "void":
            for key in record["keys"]:
                self._answers.pop(key, None)
        elif record["error"] is None:  # failed requests are sent again
            _check(record)
            self._answers[record["key"]] = {**record, "answer": record["answer"]}

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the finished request with this key."""
        return self._answers.get(key)

    def drop(self, keys: list[str]) -> None:
        """Invalidate answers of another server by appending a "void" record."""
        self.add({"kind": "void", "keys": keys})

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(record: dict[str, Any]) -> None:
    """Raise if an edited or outdated line is invalid. Its request is then sent again."""
    counts = [record.get(name) for name in ("prompt_tokens", "completion_tokens")]
    if not all(count is None or isinstance(count, int) for count in counts):
        raise ValueError("invalid token counts")
    if not isinstance(record.get("finish_reason") or "", str):
        raise ValueError("invalid finish_reason")
