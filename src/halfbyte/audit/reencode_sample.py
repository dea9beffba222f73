"""Re-encode a sample of the output with the NumPy reference instead of the kernels, and compare bytes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from halfbyte.audit.findings import RUN_AGAIN, Finding, bad, count, good, note, unproven
from halfbyte.audit.inputs import Evidence
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.jobs import as_bytes
from halfbyte.families.linears import read_linear
from halfbyte.formats.encoded import Array, Encoded
from halfbyte.formats.reference import floats, gptq, nvfp4
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.rules import DECODE, ENCODE, Job

Tensors = Mapping[str, Array]
_LEAST_DB = 10.0  # of GPTQ weights


def _far_off(weights: Tensors, amax: np.float32, evidence: Evidence, output: Reader) -> list[str]:
    """Return the linears of a job whose global scale or error is impossible for GPTQ on their source.

    GPTQ weights cannot be reproduced without the calibration data. Their global scale follows exactly from the source,
    and their rounding errors are about as large as NVFP4's, some 19 dB below the weights. A wrong expert, a wrong
    projection or a shifted scale gives 0 dB or less.
    """
    wrong: list[str] = []
    expected = gptq.tensor_scale(amax)
    for module, weight in weights.items():
        tensors = evidence.checkpoint.tensors
        packed, scale, scale_2 = (
            output.tensor(tensors[f"{module}.{suffix}"]) for suffix in ("weight", "weight_scale", "weight_scale_2")
        )
        if scale_2.tobytes() != np.float32(expected).tobytes():
            wrong.append(f"{module}: weight_scale_2")
            continue
        exact = floats.bf16_to_f32(weight).astype(np.float64)
        error = exact - floats.bf16_to_f32(nvfp4.decode(packed, scale, expected))
        signal, noise = float(np.square(exact).sum()), float(np.square(error).sum())
        if noise > signal / 10 ** (_LEAST_DB / 10):
            wrong.append(f"{module}: SQNR below {_LEAST_DB:.0f} dB")
    return wrong


# Methods whose bytes cannot be repeated without the calibration data: the check of their error bounds.
_BOUNDS: Mapping[str, Callable[[Tensors, np.float32, Evidence, Reader], list[str]]] = {"gptq": _far_off}


def repeat(evidence: Evidence, sample: int) -> list[Finding]:
    """Re-encode some linears of each layer and compare the bytes."""
    assert evidence.plan is not None
    jobs = choose(evidence, sample)
    unknown = _unknown_methods(evidence)
    if unknown and sample:
        text = f"linears encoded with {', '.join(unknown)}"
        why = "the reference does not implement this method, and the audit has no error bounds for it"
        fix = "add an encoder to formats/reference, or bounds to audit/reencode_sample.py; see docs/architecture.md"
        return [unproven("repeat", text, why=why, fix=fix)]
    if not jobs:
        return [note("repeat", "not checked: the sample is empty, or no linear is encoded or decoded")]
    wrong: list[str] = []
    number, bounded = 0, Counter[str]()
    with Reader(evidence.plan.checkpoint) as source, Reader(evidence.checkpoint) as output:
        for number_of_job, job in enumerate(jobs):
            evidence.how_far(number_of_job, len(jobs), "groups of linears")
            method = _method(job, evidence) if job.action == ENCODE else ""
            if (check := _BOUNDS.get(method)) is not None:
                bounded[method] += len(job.linears)
                for weights, amax in _sources(job, source):
                    wrong += check(weights, amax, evidence, output)
                continue
            for module, expected in _reference_result(job, evidence, source, output).items():
                number += 1
                infos = {suffix: evidence.checkpoint.tensors[f"{module}.{suffix}"] for suffix in expected}
                unequal = [s for s, tensor in expected.items() if not _same(output, infos[s], tensor)]
                if unequal:
                    wrong.append(f"{module}: {', '.join(unequal)}")
    if wrong:
        why = "a kernel computed something else than the recipe defines, or the bytes changed afterwards"
        text = f"{len(wrong)} of {count(number + bounded.total(), 'linear')} differ from the reference"
        return [bad("repeat", text, why=why, fix=RUN_AGAIN, examples=wrong)]
    results = [f"{count(number, 'linear')} encoded again on the reference: bit-equal"] if number else []
    results += [
        f"{count(linears, f'{method} linear')} near the source, tensor scales bit-equal"
        for method, linears in bounded.items()
    ]
    return [good("repeat", "; ".join(results))]


def _method(job: Job, evidence: Evidence) -> str:
    """Return the scale method, from the recipe or derived; "" if the reference does not implement it."""
    assert evidence.plan is not None
    quantize = evidence.plan.recipe.quantize
    assert quantize is not None
    if evidence.derived is None:
        return quantize.method_of(job.role).name
    variant = evidence.derived.variants.get(job.role)
    default = variant is not None and variant.division == "ieee" and (variant.shares or len(job.linears) == 1)
    return variant.method if variant is not None and default else ""


def choose(evidence: Evidence, sample: int) -> list[Job]:
    """Return `sample` jobs of each layer, selected reproducibly by the plan's fingerprint."""
    assert evidence.plan is not None
    generator = random.Random(evidence.plan.fingerprint())
    layers: dict[int | None, list[Job]] = {}
    for job in evidence.plan.jobs:
        encodes = job.action == ENCODE and _is_known(job, evidence)
        if job.linears and (encodes or job.action == DECODE) and _is_whole(job, evidence):
            layers.setdefault(job.layer, []).append(job)
    return [job for jobs in layers.values() for job in generator.sample(jobs, min(sample, len(jobs)))]


def _unknown_methods(evidence: Evidence) -> list[str]:
    """Return the methods of a recorded plan that the audit cannot check. Derived plans have checks of their own."""
    assert evidence.plan is not None
    if evidence.derived is not None:
        return []
    encoded = [job for job in evidence.plan.jobs if job.linears and job.action == ENCODE]
    return sorted({_method(job, evidence) for job in encoded if not _is_known(job, evidence)})


def _is_known(job: Job, evidence: Evidence) -> bool:
    """Whether the reference repeats the job's method, or its error bounds are known."""
    assert evidence.plan is not None
    quantize, method = evidence.plan.recipe.quantize, _method(job, evidence)
    assert quantize is not None
    return method in _BOUNDS or method in FORMATS[quantize.format].reference().encoders


def _is_whole(job: Job, evidence: Evidence) -> bool:
    """Whether the output has the job's tensors; the structure check reports missing ones."""
    tensors = evidence.checkpoint.tensors
    return all(
        (info := tensors.get(spec.name)) is not None and (info.dtype, info.shape) == (spec.dtype, spec.shape)
        for spec in job.outputs
    )


def _same(output: Reader, info: TensorInfo, expected: Array) -> bool:
    return bytes(as_bytes(expected)) == output.raw(info).tobytes()


def _reference_result(job: Job, evidence: Evidence, source: Reader, output: Reader) -> dict[str, Tensors]:
    """Return the reference's result for a job: tensors by module and suffix."""
    assert evidence.plan is not None
    groups = _sources(job, source)
    if job.action == DECODE:
        return {module: {"weight": weight} for weights, _ in groups for module, weight in weights.items()}
    quantize = evidence.plan.recipe.quantize
    assert quantize is not None
    encode = FORMATS[quantize.format].reference().encoders[_method(job, evidence)]
    encoded: dict[str, Tensors] = {}
    for weights, amax in groups:
        for module, weight in weights.items():
            info = evidence.checkpoint.tensors.get(f"{module}.weight_scale")
            stored_scale = output.tensor(info) if info is not None else np.empty(0)
            encoded[module] = encode(weight, amax, stored_scale)
    return encoded


def _sources(job: Job, source: Reader) -> list[tuple[dict[str, Array], np.float32]]:
    """Return the BF16 weights of a job's linears, by groups that share a tensor scale, with their common amax."""
    groups: list[tuple[dict[str, Array], np.float32]] = []
    for linears in job.fused_groups():
        weights = {linear.module: decode(read_linear(linear, source)) for linear in linears}
        amax = max(float(np.abs(floats.bf16_to_f32(weight)).max()) for weight in weights.values())
        groups.append((weights, np.float32(amax)))
    return groups


def decode(encoded: Encoded) -> Array:
    """Decode a stored linear to BF16 bit patterns with the reference."""
    return FORMATS[encoded.format].reference().decode(encoded.tensors)
