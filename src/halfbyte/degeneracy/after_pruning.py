"""Loop test after pruning: generate texts with the pruned checkpoint and its source, and compare their loop rates.

By default only models with small decoded weights are tested. Larger ones need an explicit number of prompts and enough
memory. If the test cannot run, the report gives the reason. That is not an error, because the checkpoint is complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.output_folder import FOLDER, LOOPS, PLAN
from halfbyte.degeneracy.loop_rate import (
    TEMPERATURES,
    Judged,
    LoopRate,
    judge,
    loop_rate,
)
from halfbyte.degeneracy.prompts import open_prompts
from halfbyte.errors import CheckpointError, MachineError, TensorError, UsageError
from halfbyte.evidence.measured_files import measured_in
from halfbyte.families.model import describe

if TYPE_CHECKING:
    from halfbyte.ui.console import Activity

PROMPTS = 16
TOKENS = 256
# kimi-mini has 80 MB, and the test of it and its source takes 40 s on one core. Time grows with the weights.
QUICK_NBYTES = 1 << 28
_SERVE_INSTEAD = "serve the model and run `halfbyte probe`"


@dataclass(frozen=True, slots=True)
class LoopTest:
    """Result of the loop test: a verdict, or the reason why there is none."""

    judged: Judged | None
    unmeasured: str = ""

    @property
    def flagged(self) -> bool:
        """Whether the checkpoint loops or stops early more often than its source."""
        return self.judged is not None and self.judged.verdict.flagged

    @property
    def sentence(self) -> str:
        """Return the result as a sentence."""
        return f"loops: not measured, {self.unmeasured}" if self.judged is None else self.judged.verdict.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        settings = {"temperatures": list(TEMPERATURES), "tokens": TOKENS}
        return {"unmeasured": self.unmeasured} if self.judged is None else {**settings, **self.judged.as_dict()}


def keep_judged(out: Path, judged: Judged, tokens: int) -> None:
    """Write the result to the output folder of a run; leave other folders unchanged."""
    if (out / FOLDER / PLAN).is_file():
        result = {"temperatures": list(TEMPERATURES), "tokens": tokens, **judged.as_dict(), **measured_in(out)}
        write_whole(out / FOLDER / LOOPS, (json.dumps(result, indent=1) + "\n").encode())


def loop_test(out: Path, source: Path | None, prompts: int | None = None, activity: Activity | None = None) -> LoopTest:
    """Generate texts with a pruned checkpoint and its source (if given), and write the verdict to the output folder.

    Without `prompts`, only models that finish in seconds are tested.
    """
    largest = source or out
    try:
        if prompts is None and (_experts_nbytes(largest) > QUICK_NBYTES or _decoded_nbytes(largest) > QUICK_NBYTES):
            return LoopTest(None, f"the test would take minutes; {_SERVE_INSTEAD}, or pass --loops {PROMPTS}")
        chosen = open_prompts(prompts or PROMPTS)
        rate = loop_rate(out, prompts=chosen, tokens=TOKENS, activity=activity)
        source_rate = _source_rate(source, chosen, activity) if source is not None else None
    except MachineError:
        return LoopTest(None, f"not enough memory to decode the weights; {_SERVE_INSTEAD}")
    except (UsageError, CheckpointError, TensorError) as error:
        return LoopTest(None, error.what)
    result = LoopTest(Judged(rate, source_rate, judge(rate, source_rate)))
    write_whole(out / FOLDER / LOOPS, (json.dumps(result.as_dict() | measured_in(out), indent=1) + "\n").encode())
    return result


def _experts_nbytes(source: Path) -> int:
    """Return the decoded size of the experts alone, which is enough to rule out a large model.

    This avoids importing torch and transformers, which takes as long as pruning several gigabytes.
    """
    linears = describe(open_checkpoint(source)).linears.values()
    return sum(4 * linear.weights for linear in linears if linear.expert is not None)


def _decoded_nbytes(source: Path) -> int:
    from halfbyte.degeneracy.generate import decoded_nbytes  # noqa: PLC0415 - imports torch

    return decoded_nbytes(source)


def _source_rate(source: Path, prompts: list[str], activity: Activity | None) -> LoopRate | None:
    """Measure the source; return None if it does not fit in memory."""
    try:
        return loop_rate(source, prompts=prompts, tokens=TOKENS, activity=activity)
    except MachineError:
        return None
