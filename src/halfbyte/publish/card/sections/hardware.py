"""Hardware section: measured hardware, memory fit, and how each GPU generation runs the format.

NVFP4 works on Hopper, without the FP4 speedup: vLLM runs it through Marlin as W4A16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.fields import mapping, texts, whole, words
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
    fits = [_fit(row) for row in launches(card)[0] if mapping(row, "fit")]
    return {
        "measured": list(_measured(card)),
        "fits": table(["GPUs", "Engine", "Fits", "Weights per GPU", "KV cache, tokens", "Context"], fits)
        if fits
        else None,
        "no_fits": card.missing("serve") if not fits else None,
        "runs": table(["GPU", f"{format.upper()} support"], runs) if runs else None,
        "format": format.upper(),
    }


def _fit(row: Mapping[str, Any]) -> list[Any]:
    fit = mapping(row, "fit")
    weights = whole(fit, "gpu_weights_nbytes")
    return [
        words(fit, "gpus"),
        phrase("{} {}", row.get("engine"), row.get("version")),
        "yes" if fit.get("fits") is True else f"no: {words(fit, 'problem') or 'not stated'}",
        storage(weights) if weights else None,
        counted(fit, "kv_tokens"),
        counted(fit, "context"),
    ]


def _measured(card: CardFacts) -> list[Markdown]:
    """Return one line per kind of measurement with its hardware."""
    lines: list[Markdown] = []
    for arm, server in mapping(card.get("bench"), "servers").items():
        emulated = ", emulating the number format" if mapping(server).get("emulated") is True else ""
        lines.append(phrase("Benchmark, server {}: {} {}{}", arm, words(server, "device"), words(server, "version"),
                            emulated))  # fmt: skip
    for kind, path in (("eval", ("candidate", "told")), ("probe", ("endpoint", "told"))):
        server = mapping(card.get(kind), *path)
        if server:
            lines.append(phrase("{}: {} {}, hardware not recorded", kind.capitalize(),
                                server.get("owned_by") or "engine", server.get("version")))  # fmt: skip
    compared = card.get("compare")
    if compared is not None and words(compared, "device"):
        lines.append(phrase("Comparison: {}, in {}", words(compared, "device"), words(compared, "dtype")))
    environment = mapping(card.get("provenance"), "environment")
    machine = "; ".join(f"{key} {_flat(environment[key])}" for key in ("cpu", "gpu", "os") if environment.get(key))
    return [*lines, phrase("Quantized on: {}", machine)] if machine else lines


def _flat(value: Any) -> str:
    return ", ".join(texts(value)) if isinstance(value, list) else str(value)
