"""A small folder that is ready to publish: really quantized and audited, with a verdict and a card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pico import write_pico

from halfbyte.audit.run import audit, save
from halfbyte.engine.pipeline import quantize
from halfbyte.evidence.measured_files import measured_in
from halfbyte.evidence.release import Release
from halfbyte.publish import environment
from halfbyte.recipe.load import load_recipe

RECIPE = "kimi-k2.6-nvfp4a16"
QUICK_ENVIRONMENT = {"python": "3", "packages": {}, "cpu": "a processor", "gpu": [], "os": "Linux x86_64"}
CARD = """---
license: other
base_model: moonshotai/Kimi-K2.6
---
# kimi-4bit

Made by halfbyte; plan `{plan}`. Verdict: **{verdict}**.
"""


def make_folder(where: Path) -> tuple[Path, Path]:
    """Return a source and the output built from it."""
    source, out = write_pico(where / "source"), where / "out"
    quantize(source, out, load_recipe(RECIPE))
    found = audit(out, against=source)
    assert not found.failed
    save(found)
    finish(out)
    return source, out


def finish(out: Path, verdict: str = "ACCEPT") -> None:
    """Write the verdict and the card, like the last stages."""
    plan = json.loads((out / "halfbyte" / "plan.json").read_text())["fingerprint"]
    release = Release(
        halfbyte="0.1.0", plan=plan, recipe=RECIPE, forced=False, verdict=verdict, headline=verdict, why=(), next=(),
        gates=(), stages=(), **measured_in(out),
    )  # fmt: skip
    release.write(out / "halfbyte" / Release.file)
    (out / "README.md").write_text(CARD.format(plan=plan, verdict=verdict))


def copy_folder(made: tuple[Path, Path], where: Path) -> tuple[Path, Path]:
    """Return a copy of both, with the original file times."""
    source, out = where / "source", where / "out"
    for old, new in zip(made, (source, out), strict=True):
        shutil.copytree(old, new)  # copy2: times stay
    return source, out


def skip_probes(monkeypatch) -> None:
    """Skip the processes that examine this machine."""
    from halfbyte.publish import provenance

    assert provenance.environment is environment.environment
    monkeypatch.setattr(provenance, "environment", lambda: QUICK_ENVIRONMENT)
