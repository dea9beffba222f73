"""Unquantized floats: BF16, F16 and F32."""

from __future__ import annotations

from halfbyte.formats.format import DeviceCodec, Element, Format, Gpu, Part, lazy


def _bf16_stack() -> DeviceCodec:
    return DeviceCodec(decode=lambda tensors: tensors["weight"])


def _plain(name: str, bits: int, used_by: str, gpu: Gpu | None = None) -> Format:
    return Format(
        name=name,
        title=name.upper(),
        used_by=used_by,
        element=Element(name, bits),
        block=1,
        tensors=(Part("weight", name.upper()),),
        reference=lazy("reference.floats:REFERENCE"),
        cpu=lazy("cpu.plain:CODEC"),
        gpu=gpu,
        served_as="bf16",
    )


BF16 = _plain("bf16", 16, "kept tensors; BF16 releases", Gpu(_bf16_stack, direct=True))
F16 = _plain("f16", 16, "kept tensors")
F32 = _plain("f32", 32, "kept tensors; router biases")
