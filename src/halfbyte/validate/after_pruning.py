"""Does what was pruned just now still write? Asked at the end of a run, where the answer takes seconds.

A model is asked where its decoded weights are small; a larger one where somebody wants it and memory has room. Whatever
keeps it from being asked is a sentence of the report and no error: the checkpoint is there, and whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import CheckpointError, MachineError, TensorError, UsageError
from halfbyte.folders import FOLDER, LOOPS, PLAN
from halfbyte.models.model import describe
from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.validate.loop_rate import TEMPERATURES, Judged, LoopRate, judge, loop_rate
from halfbyte.validate.prompts import open_prompts
from halfbyte.write import write_whole

PROMPTS = 16
TOKENS = 256
# kimi-mini has 80 MB, and it and its source take 40 s on one core: the time grows with what a step reads.
QUICK_NBYTES = 1 << 28
_ELSEWHERE = "serve it and ask it there"


@dataclass(frozen=True, slots=True)
class LoopTest:
    """What came of it: a verdict, or why there is none."""

    judged: Judged | None
    unmeasured: str = ""

    @property
    def flagged(self) -> bool:
        """Whether the checkpoint loops or breaks off more than its source does."""
        return self.judged is not None and self.judged.verdict.flagged

    @property
    def sentence(self) -> str:
        """Return it in words."""
        return f"loops: not measured, {self.unmeasured}" if self.judged is None else self.judged.verdict.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        asked = {"temperatures": list(TEMPERATURES), "tokens": TOKENS}
        return {"unmeasured": self.unmeasured} if self.judged is None else {**asked, **self.judged.as_dict()}


def keep_judged(out: Path, judged: Judged, tokens: int) -> None:
    """Keep what was found beside the weights of a checkpoint that halfbyte made; other folders stay as they are."""
    if (out / FOLDER / PLAN).is_file():
        found = {"temperatures": list(TEMPERATURES), "tokens": tokens, **judged.as_dict()}
        write_whole(out / FOLDER / LOOPS, (json.dumps(found, indent=1) + "\n").encode())


def loop_test(out: Path, source: Path | None, prompts: int | None = None) -> LoopTest:
    """Ask a pruned checkpoint and its source, if that is here, for texts, and keep the verdict beside the weights.

    Without a number of prompts only a model is asked that answers in seconds.
    """
    largest = source or out
    try:
        if prompts is None and (_experts_nbytes(largest) > QUICK_NBYTES or _decoded_nbytes(largest) > QUICK_NBYTES):
            return LoopTest(None, f"the model would take minutes: {_ELSEWHERE}, or ask it here: --loops {PROMPTS}")
        asked = open_prompts(prompts or PROMPTS)
        found = loop_rate(out, prompts=asked, tokens=TOKENS)
        beside = _source_rate(source, asked) if source is not None else None
    except MachineError:
        return LoopTest(None, f"the model does not fit in memory: {_ELSEWHERE}")
    except (UsageError, CheckpointError, TensorError) as error:
        return LoopTest(None, error.what)
    tested = LoopTest(Judged(found, beside, judge(found, beside)))
    write_whole(out / FOLDER / LOOPS, (json.dumps(tested.as_dict(), indent=1) + "\n").encode())
    return tested


def _experts_nbytes(source: Path) -> int:
    """Return what the experts alone take once they are decoded: of a large model that is enough to know.

    It saves the seconds in which torch and transformers are imported, as long as pruning some gigabytes takes.
    """
    linears = describe(open_checkpoint(source)).linears.values()
    return sum(4 * linear.weights for linear in linears if linear.expert is not None)


def _decoded_nbytes(source: Path) -> int:
    from halfbyte.validate.generate import decoded_nbytes  # noqa: PLC0415 - see above

    return decoded_nbytes(source)


def _source_rate(source: Path, prompts: list[str]) -> LoopRate | None:
    """Ask the source, which may be too large where the pruned one is not."""
    try:
        return loop_rate(source, prompts=prompts, tokens=TOKENS)
    except MachineError:
        return None
