"""ACCEPT over an inconclusive evaluation says so in the same line: on the terminal, the card and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from card_evidence import everything, write_out

from halfbyte.cli import release as command
from halfbyte.evidence.verdict import headline
from halfbyte.publish.card.write import write_card
from halfbyte.publish.report.page import write_report
from halfbyte.release.gate import judge
from halfbyte.release.run import Ended
from halfbyte.ui.console import Output

SAID = "ACCEPT; accuracy not decided (84.0 against 86.5 %, 95 % -6.2 to +0.5 pp, n 200)"


def task(label: str = "INCONCLUSIVE", **compared: Any) -> dict[str, Any]:
    found = {"candidate": 0.84, "reference": 0.865, "difference": -0.025, "interval": [-0.062, 0.005], "items": 200}
    return {"task": "mini", "label": label, "primary": "acc,none", "compared": {"acc,none": found | compared},
            "candidate": {"by_metric": {"acc,none": {"items": 200, "value": 0.84}}},
            "reference": {"by_metric": {"acc,none": {"items": 200, "value": 0.865}}}}  # fmt: skip


def evaluation(*tasks: dict[str, Any]) -> dict[str, Any]:
    return {"label": tasks[0]["label"], "tasks": list(tasks)}


def test_the_scores_and_the_interval_stand_beside_the_verdict() -> None:
    assert headline("ACCEPT", evaluation(task())) == SAID


@pytest.mark.parametrize("found", [None, {}, evaluation(task("ACCEPT"))])
def test_a_decided_or_absent_evaluation_adds_nothing(found: dict[str, Any] | None) -> None:
    assert headline("ACCEPT", found) == "ACCEPT"


def test_another_verdict_stands_alone() -> None:
    assert headline("REGRESSION", evaluation(task())) == "REGRESSION"


def test_each_open_task_is_named_and_seeds_decide_by_their_average() -> None:
    seeds = task() | {"task": "seeds", "compared": {"acc,none": {"decides": task()["compared"]["acc,none"]}}}
    said = headline("ACCEPT", evaluation(task(), seeds, task("ACCEPT")))
    assert said.startswith("ACCEPT; accuracy not decided for 2 of 3 tasks (mini: 84.0 against 86.5 %, ")
    assert "; seeds: 84.0 against 86.5 %, 95 % -6.2 to +0.5 pp, n 200)" in said


def test_a_task_without_an_interval_says_so() -> None:
    said = headline("ACCEPT", evaluation(task(interval=None)))
    assert said == "ACCEPT; accuracy not decided (no interval recorded)"


def test_the_terminal_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge({"eval": "no_regression"}, {"eval": evaluation(task())})
    assert judged.as_dict()["headline"] == SAID
    command._show(Output(), Ended(judged, {}, {}, False))  # pyright: ignore[reportPrivateUsage]
    assert f"! {SAID}: the only gate passed" in " ".join(capsys.readouterr().out.split())


def test_card_and_report_say_it(tmp_path: Path) -> None:
    evidence = everything()
    evidence["eval"] |= {"label": "INCONCLUSIVE", "tasks": [evidence["eval"]["tasks"][0] | task()]}
    out = write_out(tmp_path / "out", evidence)
    assert f"**Verdict: {SAID}.** Every gate passed." in write_card(out).read_text()
    assert SAID in write_report(out).read_text()
