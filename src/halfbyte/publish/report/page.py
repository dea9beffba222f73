"""Render the report page. Its content security policy forbids scripts and external resources."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

import halfbyte
from halfbyte.checkpoint.atomic_write import disk_error, write_whole
from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.errors import CheckpointError, HalfbyteError, UsageError
from halfbyte.evidence.folder import Evidence, read_evidence
from halfbyte.families.model import Model, describe
from halfbyte.publish.card.write import title_of
from halfbyte.publish.report.blocks import MARKS, Missing, Section
from halfbyte.publish.report.measurements import divergence, evals, probes, speed
from halfbyte.publish.report.overview import provenance, summary
from halfbyte.publish.report.weights import experts, layers, scales, sizes
from halfbyte.publish.visible_text import visible

FILE = "report.html"


def write_report(out: Path) -> Path:
    """Write the report of a folder atomically and return its path; UsageError for a source."""
    path = out / FOLDER / FILE
    evidence = read_evidence(out)
    if not path.parent.is_dir():
        what = f"not an output folder of halfbyte: {FOLDER}/ is missing"
        raise UsageError(what, where=str(out), fix="pass an output folder; for a source use `halfbyte inspect`")
    text = page(evidence)
    try:
        write_whole(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise disk_error(error, path, "the weights") from None
    return path


def page(evidence: Evidence) -> str:
    """Return the HTML."""
    style = files("halfbyte.publish.report").joinpath("report.css").read_text(encoding="utf-8")
    template = files("halfbyte.publish.report").joinpath("report.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["visible"] = visible
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; script-src 'none'; base-uri 'none'; "
        "form-action 'none'"
    )
    return environment.from_string(template).render(
        name=(name := _name(evidence.out)),
        sections=_sections(evidence, name),
        style=Markup(style),
        policy=policy,
        marks=MARKS,
        made=datetime.now(timezone.utc).isoformat(timespec="minutes"),
        version=halfbyte.__version__,
    )


def _sections(evidence: Evidence, name: str) -> list[Section]:
    checkpoint, model, why = _described(evidence.out)
    makers: list[tuple[str, str, Callable[[], Section]]] = [
        ("summary", "Summary", lambda: summary(evidence)),
        ("sizes", "Size", lambda: sizes(evidence, model, why)),
        ("layers", "Layers", lambda: layers(evidence)),
        ("experts", "Experts", lambda: experts(evidence)),
        ("scales", "Block scales", lambda: scales(checkpoint, model, why)),
        ("divergence", "Predictions", lambda: divergence(evidence)),
        ("evaluation", "Evaluation", lambda: evals(evidence)),
        ("probes", "Probes", lambda: probes(evidence)),
        ("speed", "Speed", lambda: speed(evidence)),
        ("provenance", "Provenance", lambda: provenance(evidence, name)),
    ]
    return [_safely(*maker) for maker in makers]


def _name(out: Path) -> str:
    """Return the card's title, or the folder's name if the checkpoint cannot be read."""
    try:
        return title_of(out)
    except CheckpointError:
        return out.resolve().name


def _safely(name: str, title: str, make: Callable[[], Section]) -> Section:
    """Return a section, or a note in its place if its evidence is invalid."""
    try:
        return make()
    except (HalfbyteError, OSError) as error:
        why = error.what if isinstance(error, HalfbyteError) else "cannot read a file"
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        why = f"a file has an unexpected structure ({type(error).__name__}: {error})"
    return Section(name, title, [Missing(title.lower(), why, "halfbyte release SRC OUT -r RECIPE")])


def _described(out: Path) -> tuple[Checkpoint | None, Model | None, str]:
    try:
        checkpoint = open_checkpoint(out)
        return checkpoint, describe(checkpoint, uneven=True), ""
    except CheckpointError as error:
        return None, None, error.what
