"""Hardware section: measured hardware, memory fit, and how each GPU generation runs the format.

NVFP4 works on Hopper, without the FP4 speedup: vLLM runs it through Marlin as W4A16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.benchmark import Benchmark
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.evaluation import Evaluation
from halfbyte.evidence.launches import LaunchCommand, Launches, MemoryFit
from halfbyte.evidence.probes import Probes
from halfbyte.evidence.provenance import Provenance
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, storage
from halfbyte.publish.card.markdown import Markdown, phrase, table
from halfbyte.publish.card.sections.serving import launches

_W4A4 = "4-bit weights and activations"
_BLACKWELL = "NVIDIA Blackwell (B200, B300, GB200, RTX PRO 6000)"
# By format, or by format and checkpoint layout ("mxfp4-compressed-tensors") if engines run the layouts differently.
_RUNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "nvfp4": (
        (_BLACKWELL, f"FP4 tensor cores, {_W4A4}"),
        (
            "NVIDIA Hopper (H100, H200)",
            "works in vLLM, through Marlin as W4A16: weights are dequantized on the fly, activations stay BF16, their "
            "stored scales are unused, and there is no FP4 speedup",
        ),
        ("NVIDIA Ampere, Ada (sm_75 and later)", "works in vLLM, through Marlin as W4A16, as on Hopper"),
        ("AMD", "no known engine support for NVFP4"),
    ),
    "mxfp4": (
        ("AMD MI350X, MI355X (CDNA4)", f"FP4 matrix units, {_W4A4}"),
        ("other GPUs", "emulated if the engine supports it, without the FP4 speedup"),
    ),
    "mxfp4-compressed-tensors": (
        (
            _BLACKWELL,
            "FP4 tensor cores in vLLM 0.32, whose CUTLASS kernel quantizes activations to MXFP4 even if config.json "
            "does not declare it",
        ),
        (
            "NVIDIA Hopper, Ada, Ampere (sm_75 and later)",
            "works in vLLM, through Marlin as W4A16: activations stay BF16, and there is no FP4 speedup",
        ),
        ("AMD", "no known engine support for the compressed-tensors layout"),
    ),
    "int4": (("NVIDIA (sm_75 and later)", "Marlin as W4A16"),),
}
_WEIGHTS_ONLY = "4-bit weights, BF16 activations (W4A16), as the checkpoint declares"


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the measured hardware, the memory fit and the engine support."""
    quantization = card.served.quantization
    format = quantization.partition("-")[0]
    weights_only = card.served.activations == "none"
    rows = _RUNS.get(quantization, _RUNS.get(format, ()))
    runs = [[gpu, _WEIGHTS_ONLY if weights_only and _W4A4 in how else how] for gpu, how in rows]
    fits = [_fit(row, row.fit) for row in launches(card)[0] if row.fit is not None]
    return {
        "measured": list(_measured(card)),
        "fits": table(["GPUs", "Engine", "Fits", "Weights per GPU", "KV cache, tokens", "Context"], fits)
        if fits
        else None,
        "no_fits": card.missing(Launches) if not fits else None,
        "runs": table(["GPU", f"{format.upper()} support"], runs) if runs else None,
        "format": format.upper(),
    }


def _fit(row: LaunchCommand, fit: MemoryFit) -> list[Any]:
    return [
        fit.gpus,
        phrase("{} {}", row.engine, row.version),
        "yes" if fit.fits else f"no: {fit.problem or 'not stated'}",
        storage(fit.gpu_weights_nbytes) if fit.gpu_weights_nbytes else None,
        counted(fit.kv_tokens),
        counted(fit.context),
    ]


def _measured(card: CardFacts) -> list[Markdown]:
    """Return one line per kind of measurement with its hardware."""
    lines: list[Markdown] = []
    bench, evaluation, probes = card.get(Benchmark), card.get(Evaluation), card.get(Probes)
    for arm, server in bench.servers.items() if bench else ():
        emulated = ", emulating the number format" if server.emulated else ""
        text = "Benchmark, server {}: {} {}{}"
        lines.append(phrase(text, arm, server.device, server.version or None, emulated))
    servers = {"Eval": evaluation and evaluation.candidate.reported, "Probe": probes and probes.endpoint.reported}
    for kind, server in servers.items():
        if server:
            engine = server.get("owned_by") or "engine"
            lines.append(phrase("{}: {} {}, hardware not recorded", kind, engine, server.get("version")))
    comparison, provenance = card.get(Comparison), card.get(Provenance)
    if comparison is not None:
        lines.append(phrase("Comparison: {}, in {}", comparison.device, comparison.dtype))
    if provenance is None:
        return lines
    environment = provenance.environment
    parts = {"cpu": environment.cpu, "gpu": ", ".join(environment.gpu or ()), "os": environment.os}
    machine = "; ".join(f"{key} {value}" for key, value in parts.items() if value)
    return [*lines, phrase("Quantized on: {}", machine)] if machine else lines
