"""Programs as answers: lm-eval's coding tasks run unchanged, and what executes their programs is our sandbox.

Those tasks ask the library `evaluate` for "code_eval", which executes programs as the user who runs the evaluation.
From the first coding suite of a process on, that name means `CodeJudge` here: the same question and the same form of
answer, and no line of a program runs outside the sandbox. `HF_ALLOW_CODE_EVAL` is never set.

A program is right when it comes to its last line and ends well: a hidden last line prints a mark that is drawn for each
run, so that `sys.exit(0)` before the first assertion is no success. As with "code_eval" itself, a program that looks
for the mark in its own source could print it; answers to questions do not know that there is one.
"""

from __future__ import annotations

import importlib
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ran
from halfbyte.sandbox.run import no_sandbox, run_python
from halfbyte.sandbox.tiers import Tier, find_tier

_NAME = "code_eval"
_MARKER = "halfbyte_loads_code_eval"
_MOST_SHOWN = 200  # characters of a complaint
LIMITS = Limits()


class CodeJudge:
    """Stands for `evaluate.load("code_eval")`; keeps how each program ended."""

    def __init__(self) -> None:
        self.tier: Tier | None = None
        self._kept: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def begin(self, tier: Tier) -> None:
        """Forget what an earlier evaluation ran."""
        self.tier, self._kept = tier, {}

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **_: Any,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Run every prediction with its test; return pass@k, and what came of each."""
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for number, (test, programs) in enumerate(zip(references, predictions, strict=True)):
            results[number] = [(place, self._judge(program, test)) for place, program in enumerate(programs)]
        counts = [(len(runs), sum(bool(run["passed"]) for _, run in runs)) for runs in results.values()]
        most = min((total for total, _ in counts), default=0)
        shares = {
            f"pass@{one}": sum(_pass_at(*count, one) for count in counts) / len(counts) for one in k if one <= most
        }
        return shares, results

    def found(self, program: str, test: str) -> dict[str, Any] | None:
        """Return what came of a program; None where it was not run."""
        return self._kept.get((program, test))

    def _judge(self, program: str, test: str) -> dict[str, Any]:
        with self._lock:
            kept = self._kept.get((program, test))
        if kept is None:
            mark = secrets.token_hex(16)
            ran = run_python(f"{program}\n{test}\n\nprint({mark!r})\n", tier=self.tier, limits=LIMITS)
            kept = _told(ran, mark)
            with self._lock:
                self._kept[program, test] = kept
        return kept


def _told(ran: Ran, mark: str) -> dict[str, Any]:
    passed = ran.succeeded and ran.stdout.endswith(f"{mark}\n")
    last = ran.stderr.strip().rpartition("\n")[2][:_MOST_SHOWN]
    if ran.succeeded and not passed:
        last = "it ended before its tests"
    return {"passed": passed, "ended": ran.ended, "code": ran.code, "seconds": round(ran.seconds, 3), "said": last}


def _pass_at(total: int, right: int, k: int) -> float:
    """Return the unbiased estimate of Chen et al. 2021: the chance that one of k programs drawn from these is right."""
    return 1.0 - math.comb(total - right, k) / math.comb(total, k)


JUDGE = CodeJudge()


def use_sandbox() -> Tier:
    """Make the sandbox what runs programs in this process; without one nothing is asked."""
    tier = find_tier()
    if tier.engine is None:
        raise no_sandbox(tier)
    JUDGE.begin(tier)
    evaluate: Any = importlib.import_module("evaluate")
    if not hasattr(evaluate.load, _MARKER):
        evaluate.load = _load_instead_of(evaluate.load)
    return tier


def _load_instead_of(load: Callable[..., Any]) -> Callable[..., Any]:
    def load_or_judge(path: str, *more: Any, **options: Any) -> Any:
        return JUDGE if path == _NAME else load(path, *more, **options)

    setattr(load_or_judge, _MARKER, True)
    return load_or_judge


def runs_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what came of the programs of one of lm-eval's rows."""
    programs: Any = row["filtered_resps"]
    flat = [one for part in programs for one in (part if isinstance(part, list) else [part])]  # pyright: ignore[reportUnknownVariableType]
    found = [JUDGE.found(str(one), str(row["target"])) for one in flat]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return [one for one in found if one is not None]
