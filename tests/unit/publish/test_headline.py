"""ACCEPT over an inconclusive evaluation says so in the same line: on the terminal, the card and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from card_evidence import everything, write_out

from halfbyte.cli import release as command
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.release import Release
from halfbyte.evidence.verdict import headline
from halfbyte.publish.card.write import write_card
from halfbyte.publish.report.page import write_report
from halfbyte.release.gate import judge
from halfbyte.release.run import Ended
from halfbyte.ui.console import Output

SAID = "ACCEPT; accuracy not decided (84.0 against 86.5 %, 95 % -6.2 to +0.5 pp, n 200)"


def task(label: str = "INCONCLUSIVE", **compared: Any) -> dict[str, Any]:
    whole = everything()["eval"]["tasks"][0]
    pair = whole["comparisons"]["exact_match,strict-match"]
    found = {"candidate": 0.84, "reference": 0.865, "difference": -0.025, "interval": [-0.062, 0.005], "items": 200}
    sides = {side: whole[side] | {"by_metric": {"acc,none": whole[side]["by_metric"]["exact_match,strict-match"]}}
             for side in ("candidate", "reference")}  # fmt: skip
    return whole | sides | {"task": "mini", "label": label, "primary": "acc,none",
                            "comparisons": {"acc,none": pair | found | compared}}  # fmt: skip


def evaluation(*tasks: dict[str, Any]) -> Evaluation:
    return Evaluation.of(everything()["eval"] | {"label": tasks[0]["label"], "tasks": list(tasks)})


def test_the_scores_and_the_interval_stand_beside_the_verdict() -> None:
    assert headline("ACCEPT", evaluation(task())) == SAID


@pytest.mark.parametrize("found", [None, evaluation(task("ACCEPT"))])
def test_a_decided_or_absent_evaluation_adds_nothing(found: Evaluation | None) -> None:
    assert headline("ACCEPT", found) == "ACCEPT"


def test_another_verdict_stands_alone() -> None:
    assert headline("REGRESSION", evaluation(task())) == "REGRESSION"


def test_each_open_task_is_named_and_seeds_decide_by_their_average() -> None:
    over_seeds = everything()["eval"]["tasks"][1]["comparisons"]["exact_match,none"]
    compared = over_seeds | {"paired": task()["comparisons"]["acc,none"]}
    seeds = task() | {"task": "seeds", "comparisons": {"acc,none": compared}}
    said = headline("ACCEPT", evaluation(task(), seeds, task("ACCEPT")))
    assert said.startswith("ACCEPT; accuracy not decided for 2 of 3 tasks (mini: 84.0 against 86.5 %, ")
    assert "; seeds: 84.0 against 86.5 %, 95 % -6.2 to +0.5 pp, n 200)" in said


def test_a_task_without_an_interval_says_so() -> None:
    said = headline("ACCEPT", evaluation(task() | {"comparisons": {}}))
    assert said == "ACCEPT; accuracy not decided (no interval recorded)"


def test_the_terminal_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge({"eval": "no_regression"}, {"eval": evaluation(task())})
    assert judged.headline == SAID
    release = Release.of(everything()["release"])
    command._show(Output(), Ended(judged, {}, release, False))  # pyright: ignore[reportPrivateUsage]
    assert f"! {SAID}: the only gate passed" in " ".join(capsys.readouterr().out.split())


def test_card_and_report_say_it(tmp_path: Path) -> None:
    evidence = everything()
    evidence["eval"] |= {"label": "INCONCLUSIVE", "tasks": [evidence["eval"]["tasks"][0] | task()]}
    out = write_out(tmp_path / "out", evidence)
    assert f"**Verdict: {SAID}.** Every gate passed." in write_card(out).read_text()
    assert SAID in write_report(out).read_text()
