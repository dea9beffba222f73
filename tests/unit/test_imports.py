"""Import times: the command line starts fast because it loads no heavy modules."""

import json
import subprocess
import sys
import time

import pytest
from pico import write_pico

import halfbyte

HEAVY = {
    "torch", "numba", "numpy", "transformers", "pydantic", "yaml", "triton", "ray", "vllm", "rich", "jinja2", "lm_eval",
    "datasets",
}  # fmt: skip
ANSWERS_IN_S = 0.3
FAILS_ABOVE_S = 0.6  # margin for a busy machine


def loaded_by(code: str) -> set[str]:
    """Run code in a fresh interpreter and return the heavy packages it loaded."""
    program = f"import sys\n{code}\nimport json\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return HEAVY & {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_the_proof_would_notice_a_heavy_import():
    assert loaded_by("import numpy, yaml") == {"numpy", "yaml"}


@pytest.mark.parametrize(
    "code",
    [
        "import halfbyte",
        "import halfbyte.api",
        "from halfbyte import api, quantize",
        "import halfbyte.cli.main",
        "import halfbyte.errors, halfbyte.ui.console, halfbyte.doctor.facts, halfbyte.doctor.advice",
        "from halfbyte.cli.main import run; run(['--help'])",
        "from halfbyte.cli.main import run; run(['recipes', 'show', '--help'])",
        "from halfbyte.cli.main import run; run(['--version'])",
        "from halfbyte.cli.main import run; run(['nonsense'])",
        "from halfbyte.cli.main import run; run(['formats'])",
        "from halfbyte import FORMATS",
    ],
)
def test_loads_nothing_heavy(code):
    assert loaded_by(code) == set()


def test_recipes_load_neither_torch_nor_numba_nor_numpy():
    assert loaded_by("from halfbyte.cli.main import run; run(['recipes', 'list'])") <= {"pydantic", "yaml"}


def test_what_is_planned_is_done_without_the_libraries_that_read_recipes():
    modules = ("engine.pipeline", "cli.pipeline_output", "plan.manifest", "calibrate.store", "calibrate.datasets")
    loaded = loaded_by("import " + ", ".join(f"halfbyte.{name}" for name in (*modules, "engine.jobs", "audit.run")))
    assert not loaded & {"pydantic", "torch", "transformers"}  # numba looks for YAML, and does without


def test_the_gpu_kernels_are_loaded_on_gpus_only():
    """They need Triton, which CPU builds of PyTorch lack."""
    code = (
        "import sys, halfbyte.api, halfbyte.compare.stream, halfbyte.engine.pipeline, halfbyte.engine.planned_output\n"
    )
    code += "assert not [name for name in sys.modules if name.startswith('halfbyte.formats.gpu')]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pruning_a_large_model_imports_no_torch_to_say_that_it_is_not_asked(tmp_path):
    """It took as long as copying several gigabytes."""
    source = write_pico(tmp_path / "source", experts=8)
    code = (
        "from pathlib import Path; from halfbyte.degeneracy import loop_test; loop_test.QUICK_NBYTES = 1000\n"
        f"found = loop_test.loop_test(Path('{tmp_path}/out'), Path('{source}'))\n"
        "assert 'would take minutes' in found.unmeasured"
    )
    assert not loaded_by(code) & {"torch", "transformers"}


def test_help_is_instant():
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "halfbyte", "--help"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < FAILS_ABOVE_S, f"halfbyte --help took {min(seconds):.2f} s, the goal is {ANSWERS_IN_S} s"


def test_every_public_name_is_there():
    for name in halfbyte.__all__:
        assert getattr(halfbyte, name) is not None
    assert set(halfbyte.__all__) <= set(dir(halfbyte))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'enkode'"):
        halfbyte.enkode  # noqa: B018
