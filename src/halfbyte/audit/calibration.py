"""Check that calibrated scales follow from the statistics in the output folder, and fixed scales from the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note, unproven
from halfbyte.audit.inputs import Evidence
from halfbyte.calibrate.report import report
from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import STATS, read_stats
from halfbyte.checkpoint.hashing import file_sha256
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.activation_scales import Scales, fixed_scale, input_scales, scales_of
from halfbyte.engine.pipeline import STATS as STATS_FOLDER
from halfbyte.errors import UsageError
from halfbyte.families.linears import PLAIN, StoredLinear
from halfbyte.formats.registry import FORMATS, input_scale_suffixes
from halfbyte.plan.pruned import kept_in
from halfbyte.plan.rules import ENCODE
from halfbyte.recipe.decisions import Quantize

CHECK, STATISTICS = "calibration", "statistics"


def calibration(evidence: Evidence) -> list[Finding]:
    """Check input scales against the statistics or recipe, and KV scales if the source is given."""
    if evidence.recorded is None:
        return _without_statistics(evidence)
    recipe = evidence.recorded.recipe
    fixed = _fixed(evidence, recipe.quantize)
    if recipe.calibrate is None or recipe.quantize is None:
        return fixed or [good(CHECK, "no calibrated scales")]
    file = evidence.root / FOLDER / STATS_FOLDER / STATS
    try:
        _, layers = read_stats(file)
        expected = _expected(evidence, layers, recipe.quantize)
    except UsageError as error:
        why = "the calibrated scales cannot be verified"
        return [bad(CHECK, f"{error.what} ({error.where})", why=why, fix=f"restore {file}, or quantize again")]
    wrong = [name for name, same in _compared(evidence, expected).items() if not same]
    if wrong:
        why = "activations would be clipped or lose their small values"
        text = f"{count(len(wrong), 'scale')} of {len(expected):,} do not follow from the statistics"
        return [*fixed, bad(CHECK, text, why=why, fix=RUN_AGAIN, examples=wrong)]
    coverage = report(layers, recipe.quantize.input_scale).line()
    if not expected:
        return fixed or [note(CHECK, "not checked: no scale in this folder was calibrated")]
    return [*fixed, good(CHECK, f"{len(expected):,} scales follow from the statistics, bit for bit; {coverage}")]


def _without_statistics(evidence: Evidence) -> list[Finding]:
    """Report scales whose calibration data is not in the folder; scales that are all 1 need none."""
    assert evidence.derived is not None
    plan, tensors = evidence.derived.plan, evidence.checkpoint.tensors
    names = {linear.module for job in plan.jobs if job.action == ENCODE for linear in job.linears}
    scales = [f"{name}.{suffix}" for name in names for suffix in input_scale_suffixes()]
    scales += [spec.name for job in plan.jobs if job.action == ENCODE and not job.linears for spec in job.outputs]
    with Reader(evidence.checkpoint) as reader:
        measured = [n for n in sorted(scales) if n in tensors and not (reader.tensor(tensors[n]) == 1).all()]
    if not measured:
        return [good(CHECK, "no calibrated scales")]
    text = f"{count(len(measured), 'scale')} depend on calibration data that is not in this folder"
    why = "wrong scales would clip activations or lose small values, undetected by this audit"
    fix = (
        f"audit the folder with its {FOLDER}/ evidence, or compare outputs: halfbyte compare SRC OUT --data DOMAIN=FILE"
    )
    return [unproven(CHECK, text, why=why, fix=fix, examples=measured)]


def statistics(evidence: Evidence) -> list[Finding]:
    """Check that the statistics file is unchanged since the run."""
    if evidence.recorded is None or evidence.recorded.stats_sha256 is None:
        return []
    name = f"{FOLDER}/{STATS_FOLDER}/{STATS}"
    path = evidence.root / name
    if not path.is_file():
        return [note(STATISTICS, f"not checked: {name} is missing")]
    if file_sha256(path) != evidence.recorded.stats_sha256:
        why = "scales and the selection of experts are derived from it"
        return [bad(STATISTICS, f"{name} was changed after the run", why=why, fix=f"restore {path}")]
    return [good(STATISTICS, f"{name} has the SHA-256 recorded in the plan")]


def _fixed(evidence: Evidence, quantize: Quantize | None) -> list[Finding]:
    """Check that every input scale is the recipe's constant; no findings if the recipe has none."""
    if quantize is None or quantize.activations != "fixed":
        return []
    assert quantize.input_scale is not None
    expected = dict(fixed_scale(linear, quantize) for linear in _with_input_scale(evidence, quantize))
    wrong = [name for name, same in _compared(evidence, expected).items() if not same]
    value = f"{quantize.input_scale.fixed:g}"
    if wrong:
        why = "activations would be clipped or lose their small values"
        differ = "differs" if len(wrong) == 1 else "differ"
        text = f"{len(wrong):,} of {count(len(expected), 'input scale')} {differ} from the recipe's {value}"
        return [bad(CHECK, text, why=why, fix=RUN_AGAIN, examples=wrong)]
    return [good(CHECK, f"{count(len(expected), 'input scale')} of {value}, the recipe's constant; no data required")]


def _with_input_scale(evidence: Evidence, quantize: Quantize) -> list[StoredLinear]:
    suffix = FORMATS[quantize.format].input_scale_suffix
    linears = evidence.model.linears.values()
    return [linear for linear in linears if linear.format not in PLAIN and suffix in linear.parts]


def _expected(evidence: Evidence, layers: dict[int, LayerStats], quantize: Quantize) -> Scales:
    expected: Scales = {}
    calibrated = quantize.activations == "calibrated"
    for linear in _with_input_scale(evidence, quantize) if calibrated else ():
        if linear.layer in layers:
            expected |= input_scales([_as_measured(linear, evidence)], layers[linear.layer], quantize)
    # Only the plan tells new KV scales from those copied from the source.
    for job in evidence.plan.jobs if evidence.plan else ():
        if job.action == ENCODE and not job.linears and job.layer in layers:
            expected |= scales_of(job, layers[job.layer], quantize)
    return expected


def _as_measured(linear: StoredLinear, evidence: Evidence) -> StoredLinear:
    """Return a linear with the expert index of the source, which the statistics use."""
    experts = kept_in(evidence.recorded.kept if evidence.recorded else None, linear.layer)
    if experts is None or linear.expert is None or linear.expert >= len(experts):
        return linear
    return replace(linear, expert=experts[linear.expert])


def _compared(evidence: Evidence, expected: Scales) -> dict[str, bool]:
    with Reader(evidence.checkpoint) as reader:
        stored = {name: reader.tensor(evidence.checkpoint.tensors[name]) for name in expected}
    return {name: np.array_equal(stored[name], scale) for name, scale in expected.items()}
