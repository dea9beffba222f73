"""Every number in a table of measurements is in an evidence file: looked up, not recomputed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from card_evidence import everything, pruned, regression, write_out

from halfbyte.publish.card.write import write_card

NUMBER = re.compile(r"(?<![\w.,])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
SECTIONS = ("Evaluation", "Comparison with the source", "Pruning", "Probes", "Benchmark", "Calibration", "Audit")
EXACT = 1000  # whole numbers below are counts, which nobody rounds
SCALES = (1, 100, 1000)  # a share in percent, seconds in milliseconds


def numbers(value: Any) -> Iterator[Decimal]:
    """Yield every number of a JSON value, including those in texts and keys, and the lengths of its lists."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(key)
            yield from numbers(inner)
    elif isinstance(value, list):
        yield Decimal(len(value))
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, str):
        yield from (Decimal(found.replace(",", "")) for found in NUMBER.findall(value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield Decimal(repr(value))


def is_rounded(shown: str, exact: Decimal) -> bool:
    """Return whether a printed number is this one, rounded to the printed digits."""
    text = shown.replace(",", "")
    if "." not in text and abs(int(text)) < EXACT:
        return any(Decimal(text) == scale * exact for scale in SCALES)
    half = Decimal(5).scaleb(Decimal(text).as_tuple().exponent - 1)
    return any(abs(Decimal(text) - scale * exact) <= half * Decimal("1.0000001") for scale in SCALES)


def cells(card: str, section: str) -> Iterator[str]:
    """Yield the cells of a section's tables."""
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", card, re.MULTILINE | re.DOTALL)
    for line in (found[1] if found else "").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield from line.strip("| ").split(" | ")


@pytest.mark.parametrize("make", [everything, pruned, regression])
def test_every_number_of_a_measurement_is_in_a_file(tmp_path: Path, make: Any) -> None:
    evidence = make()
    card = write_card(write_out(tmp_path / "Pico-NVFP4", evidence)).read_text()
    known = set(numbers(evidence))
    looked_up = 0
    names = {
        "num_experts_per_tok 2, n_group 1, topk_group 1",
        "4 of 8 routed experts were removed from each layer; 4 remain.",
    }
    for section in SECTIONS:
        for cell in cells(card, section):
            if cell in names or cell.startswith(("TTFT", "TPOT", "95% CI", "Top-1 agreement")):
                continue  # what config.json and headers say, and heads of columns
            for shown in NUMBER.findall(cell):
                looked_up += 1
                assert any(is_rounded(shown, exact) for exact in known), (section, cell, shown)
    assert looked_up > 15


def test_the_proof_would_notice_an_invented_number() -> None:
    assert is_rounded("91.36", Decimal("0.9136"))
    assert is_rounded("49.9", Decimal("0.04994"))
    assert is_rounded("2,563", Decimal("2562.957"))
    assert not is_rounded("91.37", Decimal("0.9136"))
    assert not is_rounded("0.91", Decimal("0.9007"))
    assert list(cells("## Probes\n\n| a | b |\n| --- | --- |\n| 1 | x 2 |\n## Next\n| 3 |\n", "Probes")) == [
        "a",
        "b",
        "1",
        "x 2",
    ]
