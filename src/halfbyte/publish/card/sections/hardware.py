"""Where it was measured, where it fits, and how each kind of GPU runs the format.

NVFP4 works on Hopper: vLLM runs it through Marlin as W4A16. Only the speed of FP4 is missing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.publish.card.figures import counted, storage
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import Markdown, phrase, table
from halfbyte.publish.card.reading import mapping, texts, whole, words
from halfbyte.publish.card.sections.serving import launches

_RUNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "nvfp4": (
        ("NVIDIA Blackwell (B200, B300, GB200, RTX PRO 6000)", "FP4 tensor cores, weights and activations in 4 bits"),
        (
            "NVIDIA Hopper (H100, H200)",
            "works in vLLM, through Marlin as W4A16: weights are expanded as they are multiplied, activations stay "
            "BF16, their stored scales are not used, and there is no FP4 speed",
        ),
        ("NVIDIA Ampere, Ada (from sm_75 on)", "vLLM's Marlin as W4A16, as on Hopper"),
        ("AMD", "no engine is known to run NVFP4"),
    ),
    "mxfp4": (
        ("AMD MI350X, MI355X (CDNA4)", "FP4 matrix units, weights and activations in 4 bits"),
        ("other GPUs", "by emulation, where an engine has one: without FP4 speed"),
    ),
    "int4": (("NVIDIA, from sm_75 on", "Marlin as W4A16"),),
}
_WEIGHTS_ONLY = "weights in 4 bits, activations in BF16 (W4A16): the checkpoint asks for no more"


def facts(known: Known) -> dict[str, Any]:
    """Return what was measured on, what fits, and how the format runs."""
    format = known.served.quantization.partition("-")[0]
    only = known.served.activations == "none"
    runs = [[gpu, _WEIGHTS_ONLY if only and "FP4 tensor" in how else how] for gpu, how in _RUNS.get(format, ())]
    fits = [_fit(row) for row in launches(known)[0] if mapping(row, "fit")]
    return {
        "measured": list(_measured(known)),
        "fits": table(["GPUs", "Engine", "Fits", "Weights on a GPU", "KV cache, tokens", "Context served"], fits)
        if fits
        else None,
        "no_fits": known.missing("serve") if not fits else None,
        "runs": table(["GPU", f"How {format.upper()} runs there"], runs) if runs else None,
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


def _measured(known: Known) -> list[Markdown]:
    """Return a sentence for each kind of measurement: on what it was made."""
    found: list[Markdown] = []
    for arm, server in mapping(known.get("bench"), "servers").items():
        emulated = ", which emulates the number format" if mapping(server).get("emulated") is True else ""
        found.append(phrase("Benchmark, server {}: {} {}{}", arm, words(server, "device"), words(server, "version"),
                            emulated))  # fmt: skip
    for kind, path in (("eval", ("candidate", "told")), ("probe", ("endpoint", "told"))):
        told = mapping(known.get(kind), *path)
        if told:
            found.append(phrase("{}: {} {}; its hardware is not recorded there", kind.capitalize(),
                                told.get("owned_by") or "engine", told.get("version")))  # fmt: skip
    compared = known.get("compare")
    if compared is not None and words(compared, "device"):
        found.append(phrase("Comparison: {}, in {}", words(compared, "device"), words(compared, "dtype")))
    environment = mapping(known.get("provenance"), "environment")
    machine = "; ".join(f"{key} {_flat(environment[key])}" for key in ("cpu", "gpu", "os") if environment.get(key))
    return [*found, phrase("Quantized on: {}", machine)] if machine else found


def _flat(value: Any) -> str:
    return ", ".join(texts(value)) if isinstance(value, list) else str(value)
