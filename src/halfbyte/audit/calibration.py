"""Scales that data decided: each must follow from the statistics that lie beside the weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from halfbyte.audit.evidence import Evidence
from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note
from halfbyte.calibrate.report import report
from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import STATS, read_stats
from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER
from halfbyte.models.linears import PLAIN, StoredLinear
from halfbyte.pipeline import STATS as STATS_FOLDER
from halfbyte.plan.pruned import kept_in
from halfbyte.plan.rules import ENCODE
from halfbyte.recipe.decisions import Quantize
from halfbyte.source.read import Reader
from halfbyte.transform.scales import INPUT_SCALES, Scales, input_scales, scales_of
from halfbyte.write import file_sha256

CHECK, STATISTICS = "calibration", "statistics"


def calibration(evidence: Evidence) -> list[Finding]:
    """Every input scale is what the statistics say, to the bit; KV scales too, where the source is given."""
    assert evidence.made is not None
    recipe = evidence.made.recipe
    if recipe.calibrate is None or recipe.quantize is None:
        return [good(CHECK, "no scale rests on data")]
    file = evidence.root / FOLDER / STATS_FOLDER / STATS
    try:
        _, layers = read_stats(file)
        expected = _expected(evidence, layers, recipe.quantize)
    except UsageError as error:
        why = "nobody can say what the scales rest on"
        return [bad(CHECK, f"{error.what} ({error.where})", why=why, fix=f"restore {file}, or run it again")]
    wrong = [name for name, same in _compared(evidence, expected).items() if not same]
    if wrong:
        why = "activations would be clipped or lose their small values"
        text = f"{count(len(wrong), 'scale')} of {len(expected):,} do not follow from the statistics"
        return [bad(CHECK, text, why=why, fix=RUN_AGAIN, examples=wrong)]
    said = report(layers, recipe.quantize.input_scale).line()
    if not expected:
        return [note(CHECK, "not checked: no scale in this folder was calibrated")]
    return [good(CHECK, f"{len(expected):,} scales follow from the statistics, to the bit; {said}")]


def statistics(evidence: Evidence) -> list[Finding]:
    """The file of statistics is as the run left it: of experts that went, nothing else says why they did."""
    if evidence.made is None or evidence.made.stats_sha256 is None:
        return []
    name = f"{FOLDER}/{STATS_FOLDER}/{STATS}"
    path = evidence.root / name
    if not path.is_file():
        return [note(STATISTICS, f"not checked: {name} is missing")]
    if file_sha256(path) != evidence.made.stats_sha256:
        why = "scales and the choice of experts rest on it, and others would repeat them"
        return [bad(STATISTICS, f"{name} was changed after the run", why=why, fix=f"restore {path}")]
    return [good(STATISTICS, f"{name} has the SHA-256 that the plan says")]


def _expected(evidence: Evidence, layers: dict[int, LayerStats], quantize: Quantize) -> Scales:
    found: Scales = {}
    suffix = INPUT_SCALES.get(quantize.format)
    for linear in evidence.model.linears.values():
        if linear.format not in PLAIN and linear.layer in layers and suffix in linear.parts:
            found |= input_scales([_as_measured(linear, evidence)], layers[linear.layer], quantize)
    # Which KV scales are ours only the plan knows: a source that has some keeps them.
    for job in evidence.plan.jobs if evidence.plan else ():
        if job.action == ENCODE and not job.linears and job.layer in layers:
            found |= scales_of(job, layers[job.layer], quantize)
    return found


def _as_measured(linear: StoredLinear, evidence: Evidence) -> StoredLinear:
    """Return a linear with the number that its expert had when it was measured: pruning gives new ones."""
    experts = kept_in(evidence.made.kept if evidence.made else None, linear.layer)
    if experts is None or linear.expert is None or linear.expert >= len(experts):
        return linear
    return replace(linear, expert=experts[linear.expert])


def _compared(evidence: Evidence, expected: Scales) -> dict[str, bool]:
    with Reader(evidence.checkpoint) as reader:
        stored = {name: reader.tensor(evidence.checkpoint.tensors[name]) for name in expected}
    return {name: np.array_equal(stored[name], scale) for name, scale in expected.items()}
