"""Kimi-K2.6 as a launcher sees it, without files: published sizes, everything else configurable."""

from dataclasses import replace
from pathlib import Path

from halfbyte.serve.checkpoint_facts import Served
from halfbyte.serve.needs import EXPERTS, TOWER, VOCABULARY, WHOLE, WIDTH, ExpertLayers, Needs, Part

_GB = 10**9
_FORMATS = {
    "nvfp4": ("nvfp4-modelopt", "nvfp4", "fp8"),
    "mxfp4": ("mxfp4-quark", "mxfp4", None),
    "mxfp4_ct": ("mxfp4-compressed-tensors", "none", None),
    "int4": ("int4-compressed-tensors", "none", None),
    "bf16": ("bf16", "none", None),
}
_EXPERTS_NBYTES = 384 * 1_486_000_000  # 570.6 GB, 4.5 bits a weight


def needs(experts: int = 384, factor: float = 1) -> Needs:
    """Return approximately what Kimi-K2.6 needs."""
    routed = int(experts * _EXPERTS_NBYTES / 384 * factor)
    parts = (
        Part("routed experts", routed, EXPERTS, experts * 60 * 3 * 7168 * 2048),
        Part("attention", 9 * _GB, WIDTH),
        Part("shared experts", 5 * _GB, WIDTH),
        Part("embedding", 2_348_810_240, VOCABULARY),
        Part("latent attention", 1_850_000_000, WHOLE),
        Part("vision tower", 833_732_064, TOWER),
        Part("routers", 330_393_600, WHOLE),
    )
    return Needs(
        parts=parts,
        routed=(ExpertLayers(experts=experts, layers=60, nbytes=routed),),
        layers=61,
        kv_values=61 * 576,
        kv_heads=1,
        latent=576,
        context=262_144,
        heads=64,
        vocabulary=163_840,
        active_experts=8,
        width=7168,
    )


def kimi(format: str = "nvfp4", *, family: str = "kimi-k2.6", experts: int = 384, **changes) -> Served:
    """Kimi-K2.6 in a format, optionally with fewer experts."""
    quantization, activations, kv_dtype = _FORMATS[format]
    made = Served(
        folder=Path("/models/Kimi-K2.6"),
        family=family,
        quantization=quantization,
        activations=activations,
        kv_dtype=kv_dtype,
        experts=experts,
        uneven=False,
        source_experts=384 if experts < 384 else None,
        vision=True,
        remote_tokenizer=False,
        revision=None,
        context=262_144,
        heads=64,
        needs=needs(experts, 4 if format == "bf16" else 1),
    )
    return replace(made, **changes)
