"""Properties that every registered format has."""

import ast
from pathlib import Path

import pytest

import halfbyte.formats
from halfbyte.formats.cpu.kernels import jit
from halfbyte.formats.registry import FORMATS

FOLDER = Path(halfbyte.formats.__file__).parent
WITH_STATISTICS = {"compensated", "gptq"}  # checked by audit/reencode_sample.py instead of an encoder of the reference


@pytest.mark.parametrize("name", FORMATS)
def test_its_arithmetic_is_complete(name):
    format = FORMATS[name]
    reference, codec = format.reference(), format.cpu()
    assert set(format.encodes) - WITH_STATISTICS == set(reference.encoders)
    assert bool(format.encodes) == (codec.encode is not None) == (format.recipe is not None)
    assert bool(format.encodes) == (format.config_block is not None) == (reference.steps is not None)
    assert (format.input_scale is not None) == (reference.input_scale is not None)
    assert set(format.gpu.encodes if format.gpu else ()) <= set(format.encodes)
    assert format.is_plain == (not format.card) == (format.activations is None and not format.served_as.count("-"))


@pytest.mark.parametrize("name", FORMATS)
def test_its_reference_comes_from_the_independent_modules(name):
    """import-linter keeps kernels out of formats/reference; this keeps the reference in it."""
    reference = FORMATS[name].reference()
    functions = [reference.decode, *reference.encoders.values(), reference.steps, reference.input_scale]
    modules = {getattr(function, "func", function).__module__ for function in functions if function is not None}
    assert all(module.startswith("halfbyte.formats.reference.") for module in modules), modules


def test_every_kernel_is_in_the_digest_of_the_cache():
    for path in FOLDER.rglob("*.py"):
        decorated = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        names = {getattr(d, "id", "") for node in decorated for d in node.decorator_list}
        if names & {"kernel", "inlined", "njit"}:
            assert any(folder in path.parents for folder in jit._SOURCES), path


def test_a_kernel_elsewhere_is_not_cached():
    def doubled(x):
        return 2 * x

    compiled = jit.kernel(doubled)
    assert compiled(3) == 6
    assert type(compiled._cache).__name__ == "NullCache"
