"""A method that is registered by one `Method` object is planned, run, resumed and audited like the others.

It looks at all linears of an expert at once and writes NVFP4 with a kernel of the format. No module of halfbyte knows
it.
"""

import pytest
from pico import write_pico

from halfbyte.audit.run import audit
from halfbyte.engine.backends.support import Request, Resources, supports
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.errors import RecipeError
from halfbyte.formats.registry import FORMATS
from halfbyte.methods.method import Method, encode_with_kernel
from halfbyte.methods.registry import METHODS, method_of, methods_of
from halfbyte.plan.machine_speed import kernels, measure
from halfbyte.plan.manifest import read_plan_file
from halfbyte.recipe.load import load_recipe

SETS = ["quantize.scales=dummy"]
seen = []


def _encoder(statistics):
    assert statistics is None

    def encode_group(group):
        seen.append({linear.module.rpartition(".")[2]: linear.amax for linear in group.linears})
        return {linear.module: encode_with_kernel("max", linear, group.format) for linear in group.linears}

    return encode_group


DUMMY = Method(
    name="dummy",
    title="all linears of an expert at once",
    encoder=_encoder,
    granularity="module",
    roles=("routed_experts",),
    otherwise="mse",
    formats=("nvfp4",),
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, DUMMY.name, DUMMY)
    encoders = FORMATS["nvfp4"].reference().encoders
    monkeypatch.setitem(encoders, DUMMY.name, encoders["max"])  # the audit's independent arithmetic
    seen.clear()


@pytest.fixture
def source(tmp_path):
    return write_pico(tmp_path / "source", "int4-k2.6")


def recipe(*sets):
    return load_recipe("kimi-k2.7-code-nvfp4-nvidia", [*SETS, *sets])


def test_a_recipe_names_it_only_while_it_is_registered(monkeypatch):
    assert recipe().quantize.scales == "dummy"
    assert methods_of("nvfp4")[-1] == "dummy"
    monkeypatch.delitem(METHODS, "dummy")
    with pytest.raises(RecipeError, match="nvfp4 does not support scales 'dummy'"):
        recipe()


def test_other_formats_and_roles_do_not_use_it():
    assert "dummy" not in methods_of("nvfp4_ct")
    assert method_of("routed_experts", "dummy") is DUMMY
    assert method_of("attention", "dummy") is METHODS["mse"]


def test_a_job_has_all_linears_of_an_expert(source):
    planned = plan(source, recipe())
    routed = [job for job in planned.jobs if job.role == "routed_experts"]
    assert all(len(job.linears) == 3 for job in routed)
    assert all([len(group) for group in job.fused_groups()] == [1, 2] for job in routed)
    assert {kernel.method for kernel, _ in kernels(planned)} == {"dummy"}
    assert all(rate > 0 for rate in measure(planned, None).core_s_per_weight.values())


def test_it_runs_on_every_backend_that_needs_no_hessians():
    for resources in (Resources(), Resources(device="cuda"), Resources(ray="auto")):
        assert supports(Request(recipe=recipe(), resources=resources, measures=False)) == []


def test_the_output_equals_max_and_passes_the_audit(source, tmp_path):
    quantize(source, tmp_path / "out", recipe())
    assert seen
    for group in seen:
        assert group.keys() == {"gate_proj", "up_proj", "down_proj"}
        assert group["gate_proj"] == group["up_proj"] is not None  # they share a tensor scale
        assert group["down_proj"] is None  # it has its own
    quantize(source, tmp_path / "max", load_recipe("kimi-k2.7-code-nvfp4-nvidia", ["quantize.scales=max"]))
    for path in sorted((tmp_path / "max").glob("*.safetensors")):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    findings = audit(tmp_path / "out", against=source).findings
    assert {finding.level for finding in findings} <= {"good", "note"}, findings
    assert any("encoded again on the reference: bit-equal" in finding.text for finding in findings), findings


def test_without_a_reference_the_audit_proves_nothing(source, tmp_path, monkeypatch):
    quantize(source, tmp_path / "out", recipe())
    monkeypatch.delitem(FORMATS["nvfp4"].reference().encoders, DUMMY.name)
    result = audit(tmp_path / "out", against=source)
    assert (result.not_proven, result.passed) == (["repeat"], False)
    (finding,) = [finding for finding in result.findings if finding.check == "repeat"]
    assert finding.text == "not proven: linears encoded with dummy"


def test_plans_and_outputs_of_an_unknown_method_are_refused(source, tmp_path, monkeypatch):
    """Such as `compensated`, the earlier name of `gptq`."""
    quantize(source, tmp_path / "out", recipe())
    monkeypatch.delitem(METHODS, "dummy")
    planned = read_plan_file(tmp_path / "out/halfbyte/plan.json")
    with pytest.raises(RecipeError, match=r"unknown method 'dummy'.*recreate plans and outputs of other versions"):
        quantize(source, tmp_path / "again", planned.recipe, planned=planned)
    (finding,) = [finding for finding in audit(tmp_path / "out", against=source).findings if finding.check == "plan"]
    assert (finding.level, finding.text) == ("bad", "plan.json is not a plan of this version of halfbyte")
