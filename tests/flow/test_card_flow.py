"""From a source to its card with user commands: earlier evidence is kept."""

from __future__ import annotations

import json
from pathlib import Path

from card_evidence import SOURCE_README
from pico import write_pico


def test_quantize_audit_card_and_audit_again(tmp_path: Path, halfbyte) -> None:
    source, out = write_pico(tmp_path / "source"), tmp_path / "out"
    (source / "README.md").write_text(SOURCE_README)
    assert halfbyte("quantize", source, out, "-r", "kimi-k2.6-mxfp4-wafer")[0] == 0
    assert halfbyte("audit", out, "--against", source)[0] == 0
    before = (out / "halfbyte/audit.json").read_bytes()
    assert halfbyte("card", out)[0] == 0
    card = (out / "README.md").read_text()
    assert "No check failed" in card
    assert "MXFP4 quantization of Kimi-Pico, created with halfbyte." in card
    assert "license_name: modified-mit" in card
    assert "kimi-k2.6-mxfp4-wafer" in card
    assert "Not calibrated: the recipe uses no calibration data." in card
    assert (out / "halfbyte/audit.json").read_bytes() == before
    assert halfbyte("audit", out, "--against", source)[0] == 0  # the source's README is kept, and compared
    (out / "halfbyte/source-README.md").write_text("other words")
    code, printed, _ = halfbyte("audit", out, "--against", source)
    assert code == 1
    assert "README.md differs from the source" in printed


def test_a_card_of_a_card_inherits_the_licence(tmp_path: Path, halfbyte) -> None:
    """A checkpoint written by halfbyte can be a source too; its card is then the source's."""
    source, first, second = write_pico(tmp_path / "source"), tmp_path / "first", tmp_path / "second"
    (source / "README.md").write_text(SOURCE_README)
    assert halfbyte("quantize", source, first, "-r", "kimi-k2.6-bf16")[0] == 0
    assert halfbyte("card", first, "--name", "acme/First")[0] == 0
    assert halfbyte("quantize", first, second, "-r", "kimi-k2.6-mxfp4-wafer")[0] == 0
    assert halfbyte("card", second)[0] == 0
    card = (second / "README.md").read_text()
    assert "license_name: modified-mit" in card
    assert "MXFP4 quantization of First, created with halfbyte." in card
    assert json.loads((second / "halfbyte/card.json").read_text())["said"]["name"] is None
