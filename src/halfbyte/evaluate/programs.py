"""Run the programs of lm-eval's coding tasks in the sandbox.

These tasks load "code_eval" from the library `evaluate`, which executes programs as the current user. The first coding
suite of a process replaces it with `CodeJudge`, which has the same interface and runs every program in the sandbox.
`HF_ALLOW_CODE_EVAL` is never set.

A program passes if it reaches its end and exits with code 0. A hidden last line prints a random mark, so `sys.exit(0)`
before the first assertion does not pass. As with "code_eval", a program that reads its own source could print the mark.
"""

from __future__ import annotations

import importlib
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from halfbyte.sandbox.process import Limits, Ran
from halfbyte.sandbox.tiers import Tier, find_tier, no_sandbox, run_python

_NAME = "code_eval"
_MARKER = "halfbyte_loads_code_eval"
_MOST_SHOWN = 200  # characters of an error message
LIMITS = Limits()


class CodeJudge:
    """A replacement for `evaluate.load("code_eval")` that records the result of each program."""

    def __init__(self) -> None:
        self.tier: Tier | None = None
        self._kept: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def reset(self, tier: Tier) -> None:
        """Discard the results of an earlier evaluation."""
        self.tier, self._kept = tier, {}

    def compute(
        self,
        *,
        references: Sequence[str],
        predictions: Sequence[Sequence[str]],
        k: Sequence[int] = (1, 10, 100),
        **_: Any,
    ) -> tuple[dict[str, float], dict[int, list[tuple[int, dict[str, Any]]]]]:
        """Run every prediction with its test. Return pass@k and the result of each."""
        results: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for number, (test, programs) in enumerate(zip(references, predictions, strict=True)):
            results[number] = [(place, self._judge(program, test)) for place, program in enumerate(programs)]
        counts = [(len(runs), sum(bool(run["passed"]) for _, run in runs)) for runs in results.values()]
        most = min((total for total, _ in counts), default=0)
        shares = {
            f"pass@{tries}": sum(_pass_at(*count, tries) for count in counts) / len(counts)
            for tries in k
            if tries <= most
        }
        return shares, results

    def result_of(self, program: str, test: str) -> dict[str, Any] | None:
        """Return the result of a program, or None if it was not run."""
        return self._kept.get((program, test))

    def _judge(self, program: str, test: str) -> dict[str, Any]:
        with self._lock:
            kept = self._kept.get((program, test))
        if kept is None:
            mark = secrets.token_hex(16)
            ran = run_python(f"{program}\n{test}\n\nprint({mark!r})\n", tier=self.tier, limits=LIMITS)
            kept = _result(ran, mark)
            with self._lock:
                self._kept[program, test] = kept
        return kept


def _result(ran: Ran, mark: str) -> dict[str, Any]:
    passed = ran.succeeded and ran.stdout.endswith(f"{mark}\n")
    last = ran.stderr.strip().rpartition("\n")[2][:_MOST_SHOWN]
    if ran.succeeded and not passed:
        last = "it exited before its tests"
    return {"passed": passed, "ended": ran.ended, "code": ran.code, "seconds": round(ran.seconds, 3), "said": last}


def _pass_at(total: int, right: int, k: int) -> float:
    """Return the unbiased pass@k estimate of Chen et al. 2021."""
    return 1.0 - math.comb(total - right, k) / math.comb(total, k)


JUDGE = CodeJudge()


def use_sandbox() -> Tier:
    """Make this process run programs in the sandbox. Raise if there is none."""
    tier = find_tier()
    if tier.engine is None:
        raise no_sandbox(tier)
    JUDGE.reset(tier)
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
    """Return the results of the programs of one lm-eval row."""
    programs: Any = row["filtered_resps"]
    flat = [program for part in programs for program in (part if isinstance(part, list) else [part])]  # pyright: ignore[reportUnknownVariableType]
    results = [JUDGE.result_of(str(program), str(row["target"])) for program in flat]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return [result for result in results if result is not None]
