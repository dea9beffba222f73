"""A number format that is registered by one `Format` is read, planned, written, audited and decoded like the others.

The format is INT8 with one FP32 scale per row. No module of halfbyte knows it.
"""

import json

import numpy as np
import pytest
import torch
from pico import write_pico

from halfbyte.audit.run import audit
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import RecipeError
from halfbyte.families.config_agreement import stored_as_declared
from halfbyte.families.linears import read_linear
from halfbyte.families.model import describe
from halfbyte.formats import compressed_tensors
from halfbyte.formats.codec import decode, encode
from halfbyte.formats.cpu.rows import Rows, fill_rows
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.format import WHOLE_ROW, Codec, Declared, Element, Format, Part, RecipeKeys, Reference
from halfbyte.formats.reference.floats import bf16_to_f32, f32_to_bf16
from halfbyte.formats.registry import FORMATS
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.vllm_plugin.packed_tensors import expand

ZERO = 128  # of U8 codes, as safetensors stores them here


def _decoded(code, scale):
    return f32_to_bf16((code.astype(np.float32) - ZERO) * scale)


def _encoded(weight):
    exact = bf16_to_f32(weight)
    scale = np.abs(exact).max(axis=1, keepdims=True) / np.float32(127)
    scale = np.where(scale == 0, np.float32(1), scale).astype(np.float32)
    return (np.rint(exact / scale) + ZERO).astype(np.uint8), scale


def _reference():
    return Reference(
        decode=lambda tensors: _decoded(tensors["weight"], tensors["weight_scale"]),
        encoders={"max": lambda weight, amax, stored_scale: dict(zip(SUFFIXES, _encoded(weight), strict=True))},
        steps=lambda tensors: (
            tensors["weight_scale"].astype(np.float64),
            np.ones(tensors["weight_scale"].shape, bool),
        ),
    )


def _read(format, encoded, name):
    code, scale = (encoded.tensors[suffix] for suffix in SUFFIXES)

    def fill(chunk, out):
        out[:] = _decoded(code[chunk], scale[chunk])

    return Rows(encoded.shape, fill=fill)


def _encode(format, source, options):
    code, scale = np.empty(source.shape, np.uint8), np.empty((source.shape[0], 1), np.float32)

    def kernel(chunk, stats):
        code[chunk], scale[chunk] = _encoded(source.bf16(chunk))

    quality = fill_rows(source, options.threads, kernel)
    return Encoded(format.name, source.shape, dict(zip(SUFFIXES, (code, scale), strict=True)), quality)


def _config_block(options):
    weights = compressed_tensors.scheme(8, "int", "channel", None, False)
    return compressed_tensors.config_block("int-quantized", weights, None, options.ignore)


INT8 = Format(
    name="int8_channel",
    title="INT8, one scale a row",
    used_by="this test",
    element=Element("int8", 8, largest=127.0, floor_db=30.0),
    block=0,
    tensors=(Part("weight", "U8"), Part("weight_scale", "F32", columns=WHOLE_ROW)),
    encodes=("max",),
    reference=_reference,
    cpu=lambda: Codec(_read, _encode),
    declared=(Declared(compressed_tensors.METHOD, "int-quantized"),),
    config_block=_config_block,
    recipe=RecipeKeys(),
    served_as="int8-channel",
)
SUFFIXES = INT8.suffixes
RECIPE = ("kimi-k2.6-fp8-reference", ["quantize.format=int8_channel", "quantize.activations=null"])


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(FORMATS, INT8.name, INT8)


@pytest.fixture
def written(tmp_path):
    """A source and its INT8 output."""
    write_pico(tmp_path / "source", "int4-k2.6")
    quantize(tmp_path / "source", tmp_path / "out", load_recipe(*RECIPE))
    return tmp_path / "source", tmp_path / "out"


def test_one_matrix_is_encoded_and_decoded():
    weight = f32_to_bf16(np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32))
    encoded = encode(weight, INT8.name)
    assert encoded.tensors.keys() == set(SUFFIXES)
    error = bf16_to_f32(decode(encoded)) - bf16_to_f32(weight)
    assert 0 < np.abs(error).max() < 0.02


def test_a_recipe_names_it_only_while_it_is_registered(monkeypatch):
    assert load_recipe(*RECIPE).quantize.format == INT8.name
    monkeypatch.delitem(FORMATS, INT8.name)
    with pytest.raises(RecipeError, match="'int8_channel' is not a valid value for 'format'"):
        load_recipe(*RECIPE)


def test_the_plan_has_its_tensors(tmp_path):
    write_pico(tmp_path / "source", "int4-k2.6")
    planned = plan(tmp_path / "source", load_recipe(*RECIPE))
    outputs = [spec for job in planned.jobs if job.role == "routed_experts" for spec in job.outputs]
    assert {(spec.name.rpartition(".")[2], spec.dtype) for spec in outputs} == {
        ("weight", "U8"),
        ("weight_scale", "F32"),
    }


def test_the_output_is_read_back_and_passes_the_audit(written):
    source, out = written
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["format"] == "int-quantized"
    checkpoint = open_checkpoint(out)
    model = describe(checkpoint)
    assert {linear.format for linear in model.linears.values() if linear.role == "routed_experts"} == {INT8.name}
    assert stored_as_declared(checkpoint, model)[0] == "good"
    findings = audit(out, against=source).findings
    assert {finding.level for finding in findings} <= {"good", "note"}, findings
    assert any("encoded again on the reference: bit-equal" in finding.text for finding in findings)


def test_the_audit_re_encodes_it_without_a_journal(written, tmp_path):
    source, out = written
    for path in sorted((out / "halfbyte").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    findings = audit(out, against=source).findings
    assert any("re-encoded from the source (max): bit-equal" in finding.text for finding in findings), findings


def test_all_decoders_agree(written):
    _, out = written
    checkpoint = open_checkpoint(out)
    linear = next(linear for linear in describe(checkpoint).linears.values() if linear.format == INT8.name)
    with Reader(checkpoint) as reader:
        encoded = read_linear(linear, reader)
    expected = decode(encoded)
    expanded = expand(INT8.name, {suffix: torch.from_numpy(tensor) for suffix, tensor in encoded.tensors.items()})
    assert expanded.view(torch.int16).numpy().view(np.uint16).tobytes() == expected.tobytes()
