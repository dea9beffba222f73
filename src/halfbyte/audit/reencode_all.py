"""Check every encoded or decoded linear of a checkpoint without a journal: re-encode the source, or bound the error.

With a journal, hashes cover every byte and `repeat` needs only a sample. Without one, each linear is encoded again with
the method derived for its role, one group of fused linears at a time. If no known method gives the bytes, the error is
checked against bounds and the linears are reported as not proven.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from halfbyte.audit.derive_plan import Derived, Variant
from halfbyte.audit.findings import Finding, bad, count, good, unproven
from halfbyte.audit.reencode_sample import decode as reference_decode
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.jobs import as_bytes
from halfbyte.errors import TensorError
from halfbyte.families.linears import StoredLinear, read_linear
from halfbyte.formats.codec import amax, encode
from halfbyte.formats.encoded import Array, Encoded
from halfbyte.formats.reference import floats
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.rules import DECODE, ENCODE, Job

if TYPE_CHECKING:
    from halfbyte.audit.inputs import Contents, Evidence

CHECK = "encoded"
_REACH = (0.4, 2.5)  # allowed range of the largest code's value relative to the largest weight of the block


@dataclass(frozen=True, slots=True)
class Sides:
    """Open readers of both checkpoints, and the output's contents."""

    source: Reader
    output: Reader
    contents: Contents


def encoded(evidence: Evidence) -> list[Finding]:
    """Check that every linear that the derived plan encodes or decodes follows from the source."""
    derived = evidence.derived
    assert derived is not None
    jobs = [job for job in derived.plan.jobs if job.linears and job.action in (ENCODE, DECODE)]
    if not jobs:
        return []
    wrong: list[str] = []
    equal = bounded = 0
    with Reader(derived.plan.checkpoint) as source, Reader(evidence.checkpoint) as output:
        sides = Sides(source, output, evidence.model)
        for number, job in enumerate(jobs):
            evidence.how_far(number, len(jobs), "groups of linears")
            format = "bf16" if job.action == DECODE else _format(derived)
            if not is_whole(job, evidence.model, format):
                continue  # reported by `structure` and `coverage`
            variant = derived.variants.get(job.role)
            known = job.action == DECODE or variant is not None
            try:
                unequal = differing(job, variant, format, sides) if known else _out_of_bounds(job, sides)
            except TensorError as error:  # a scale or weight that is not finite
                unequal = {job.name: error.what}
            wrong += [f"{module}: {reason}" for module, reason in unequal.items()]
            equal += len(job.linears) if known else 0
            bounded += 0 if known else len(job.linears)
    if wrong:
        why = "these weights differ from the source's: engines load them, but the model answers differently"
        text = f"{len(wrong):,} of {count(equal + bounded, 'linear')} do not follow from the source"
        return [bad(CHECK, text, why=why, fix="create or download the checkpoint again", examples=wrong)]
    findings: list[Finding] = []
    if equal:
        how = ", ".join(sorted({str(variant) for variant in derived.variants.values() if variant})) or "decoding"
        findings.append(good(CHECK, f"{count(equal, 'linear')} re-encoded from the source ({how}): bit-equal"))
    if bounded:
        text = (
            f"{count(bounded, 'linear')} within the error bounds of the format, but no known method gives their bytes"
        )
        why = "a small error in a scale or code stays inside these bounds"
        findings.append(unproven(CHECK, text, why=why, fix="audit the folder with its halfbyte/ evidence"))
    return findings


def _format(derived: Derived) -> str:
    assert derived.plan.recipe.quantize is not None
    return derived.plan.recipe.quantize.format


def is_whole(job: Job, contents: Contents, format: str) -> bool:
    """Whether the output has all linears of a job, in this format and with the source's shape."""
    stored_linears = [contents.linears.get(linear.module) for linear in job.linears]
    return all(
        after is not None and after.format == format and after.shape == before.shape
        for after, before in zip(stored_linears, job.linears, strict=True)
    )


def reproduces(job: Job, variant: Variant, format: str, sides: Sides) -> bool:
    """Whether encoding a job's linears with this variant gives the bytes of the output."""
    try:
        return not differing(job, variant, format, sides)
    except TensorError:  # a non-finite scale, reported by the scales check
        return False


def differing(job: Job, variant: Variant | None, format: str, sides: Sides) -> dict[str, str]:
    """Return the linears of a job whose bytes differ from the variant's result, or from decoding if it is None."""
    before = {linear.module: read_linear(linear, sides.source) for linear in job.linears}
    shared = None
    if variant is not None and variant.shares and len(before) > 1:
        shared = max(amax(source, name=module) for module, source in before.items())
    wrong: dict[str, str] = {}
    for module, source in before.items():
        after = sides.contents.linears[module]
        if variant is None:
            expected: Mapping[str, Array] = {"weight": reference_decode(source)}
        else:
            options: dict[str, Any] = {"division": variant.division} if variant.division != "ieee" else {}
            options |= {"group": after.group} if FORMATS[format].groups else {}
            expected = encode(source, format, method=variant.method, amax=shared, name=module, **options).tensors
        unequal = [suffix for suffix, tensor in expected.items() if not _same(sides.output, after, suffix, tensor)]
        if unequal:
            wrong[module] = f"{', '.join(unequal)} differ{'s' if len(unequal) == 1 else ''}"
    return wrong


def _same(output: Reader, linear: StoredLinear, suffix: str, expected: Array) -> bool:
    info = linear.parts[suffix]
    if bytes(as_bytes(expected)) == output.raw(info).tobytes():
        return True
    if suffix == "weight_shape":  # I64 in some tools
        return [int(n) for n in output.tensor(info).reshape(-1)] == [int(n) for n in expected]
    return False


def _out_of_bounds(job: Job, sides: Sides) -> dict[str, str]:
    """Return the linears of a job whose decoded values are outside the error bounds of their format."""
    wrong: dict[str, str] = {}
    for linear in job.linears:
        after = sides.contents.linears[linear.module]
        exact = floats.bf16_to_f32(reference_decode(read_linear(linear, sides.source))).astype(np.float64)
        if reason := out_of_bounds(exact, read_linear(after, sides.output)):
            wrong[linear.module] = reason
    return wrong


def out_of_bounds(exact: Array, linear: Encoded) -> str:
    """Describe why a linear cannot be an encoding of these weights; empty if it can."""
    floor_db = FORMATS[linear.format].element.floor_db
    values = floats.bf16_to_f32(reference_decode(linear)).astype(np.float64)
    if not np.isfinite(values).all():
        return "decodes to values that are not finite"
    db = sqnr_db(float(np.square(exact).sum()), float(np.square(exact - values).sum()))
    if db < floor_db:
        return f"SQNR {db:.1f} dB, but {linear.format} has at least {floor_db:.0f} dB"
    blocks = _unlikely_blocks(exact, linear)
    return f"{count(blocks, 'block scale')} far from the largest weight of the block" if blocks else ""


def sqnr_db(signal: float, error: float) -> float:
    """Return the signal-to-error ratio in dB; infinite if there is no error."""
    if error == 0:
        return math.inf
    return 10 * math.log10(signal / error) if signal > 0 and math.isfinite(error) else -math.inf


def _unlikely_blocks(exact: Array, linear: Encoded) -> int:
    """Count the blocks whose scale does not match their largest weight."""
    format = FORMATS[linear.format]
    steps = format.reference().steps
    assert steps is not None  # every format that is written has them
    step, usable = steps(linear.tensors)
    blocks = np.abs(exact).reshape(*step.shape, -1).max(-1)
    reach = step * format.element.largest
    usable &= blocks > 0
    ratio = np.divide(reach, blocks, out=np.ones_like(blocks), where=usable)
    return int(((ratio < _REACH[0]) | (ratio > _REACH[1])).sum())
