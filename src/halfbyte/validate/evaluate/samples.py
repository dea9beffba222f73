"""One item of one pass: what was asked, what came back, what lm-eval gave for it. A line of eval.jsonl each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from halfbyte.errors import CheckFailedError, UsageError
from halfbyte.source.foreign import MOST_NBYTES, parsed, plain_bytes
from halfbyte.validate.endpoint import values_without_keys
from halfbyte.validate.evaluate.programs import runs_of
from halfbyte.validate.lines import encoded
from halfbyte.write import write_whole

Side = Literal["candidate", "reference"]
FILE = "eval.jsonl"
# Why an answer ended that the model itself ended, in the words of the engines that there are.
STOPPED = frozenset({"stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls", "function_call"})
_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """An item; without scores where the server gave no answer."""

    side: Side
    task: str  # of the suite
    subtask: str  # of lm-eval: one of many in a group, else the same
    doc: int
    seed: int  # of the examples that are shown
    cluster: str | None
    doc_hash: str
    prompt_hash: str
    target_hash: str
    target: str
    output: Any  # a text, or a log-likelihood for each choice
    taken: dict[str, Any]  # by filter: what it took out of the text
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
    )  # where answers are run: how they ended

    @property
    def place(self) -> tuple[str, str, int, int]:
        """What names the item in both runs of a comparison."""
        return self.task, self.subtask, self.seed, self.doc

    @property
    def cut(self) -> bool:
        """Whether something else than the model ended the answer: a limit, an abort, or nobody knows."""
        return self.error is None and self.finish_reason not in STOPPED

    @property
    def text(self) -> str:
        """What was written, in one string; nothing where likelihoods were asked."""
        return self.output if isinstance(self.output, str) else ""


def read_samples(rows: Sequence[_Row], records: Mapping[Any, _Row], about: _Row, cluster: str | None) -> list[Sample]:
    """Join lm-eval's rows, one for each item and filter, with what was recorded of their requests."""
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
    error = next((str(one["error"]) for one in requests if one.get("error") is not None), None)
    answers = [one.get("answer") for one in requests]
    scores = {f"{metric},{row['filter']}": float(row[metric]) for row in rows for metric in row["metrics"]}
    finish = [one.get("finish_reason") for one in requests]
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
        finish_reason=next((one for one in finish if one not in STOPPED), finish[0]),
        null=any(bool(one.get("null")) for one in requests),
        prompt_tokens=_total(requests, "prompt_tokens"),
        completion_tokens=_total(requests, "completion_tokens"),
        latency_s=round(sum(float(one["latency_s"]) for one in requests), 4),
        attempts=max(int(one["attempts"]) for one in requests),
        error=error,
        programs=[one for row in rows for one in runs_of(row)],
    )


def _plain(value: Any) -> Any:
    """One value instead of a list of one; JSON makes lists of tuples anyway."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _total(requests: Sequence[Mapping[str, Any]], name: str) -> int | None:
    counts = [one.get(name) for one in requests]
    return None if None in counts else sum(int(count) for count in counts if count is not None)


def write_samples(folder: Path, samples: Iterable[Sample]) -> None:
    """Write eval.jsonl, all of it or nothing."""
    lines = [encoded(values_without_keys(asdict(one))) for one in samples]
    write_whole(folder / FILE, b"".join(lines))


def load_samples(folder: Path) -> list[Sample]:
    """Read an earlier run's items."""
    try:
        lines = plain_bytes(folder / FILE, MOST_NBYTES).splitlines()
        return [_checked(Sample(**parsed(line))) for line in lines]
    except FileNotFoundError:
        fix = "give the folder that an earlier `halfbyte eval -o` wrote"
        raise UsageError("there are no results of an earlier run", where=str(folder), fix=fix) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"not the results of this version: {error}", where=str(folder), fix="run it again") from None


def _checked(sample: Sample) -> Sample:
    """A file that somebody edited: what is no share of a right answer would end in the middle of the statistics."""
    kinds = {"task": str, "subtask": str, "doc": int, "seed": int}
    for field_name, kind in kinds.items():
        if type(getattr(sample, field_name)) is not kind:
            raise ValueError(f"an item has {getattr(sample, field_name)!r} for {field_name}")
    for name, score in (sample.scores or {}).items():
        if type(score) not in (int, float) or not 0 <= score <= 1:
            raise ValueError(f"item {sample.doc} of {sample.subtask} has the score {score!r} for {name}")
    return sample


def check_pairs(candidate: Sequence[Sample], reference: Sequence[Sample]) -> None:
    """Refuse a comparison of different questions: same items, same prompts, same targets."""
    ours, theirs = ({one.place: one for one in side} for side in (candidate, reference))
    if ours.keys() != theirs.keys():
        what = f"{len(ours.keys() ^ theirs.keys())} items are in one of the runs only"
        raise CheckFailedError(what, where="the two runs", fix="run both with the same suite, data and --limit")
    for place, one in ours.items():
        other = theirs[place]
        for name in ("doc_hash", "prompt_hash", "target_hash"):
            if getattr(one, name) != getattr(other, name):
                what = f"item {place[3]} of {place[1]} is not the same in both runs ({name})"
                raise CheckFailedError(what, where="the two runs", fix="run both with the same suite and data")
