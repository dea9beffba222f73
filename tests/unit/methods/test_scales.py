"""From statistics to scales: each rule and each backstop, compared with ModelOpt's numbers where available."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from halfbyte.calibrate import stream
from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.stream import Stream, prepare
from halfbyte.calibrate.token_rows import Rows
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.identity import identity
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.activation_scales import expert_amax, scales_of
from halfbyte.errors import UsageError
from halfbyte.families.family import DOWN, UP
from halfbyte.families.linears import StoredLinear
from halfbyte.families.model import describe
from halfbyte.families.weights import Weights
from halfbyte.plan.rules import ENCODE, make_jobs
from halfbyte.recipe.decisions import InputScale
from halfbyte.recipe.load import load_recipe

GOLDEN = Path(__file__).parents[2] / "golden"
WAFER = "kimi-k2.6-nvfp4-wafer"


def linear(number, projection):
    module = f"model.layers.1.mlp.experts.{number}.{projection}_proj"
    return StoredLinear(module, "routed_experts", 1, number, projection, "bf16", (1, 1), 0, {})


def experts(seen, inputs, downs, everywhere=()):
    made = ExpertStats.empty(len(seen), 1)
    made.seen[:], made.input_amax[:], made.down_amax[:] = seen, inputs, downs
    made.all_down_amax[: len(everywhere)] = everywhere
    return made


SEEN = experts([10, 2, 0], [3.0, 5.0, 0.0], [0.5, 0.25, 0.0], [9.0, 7.0, 6.0])


def rule(backstop, min_tokens=1):
    return InputScale(per="expert", min_tokens=min_tokens, backstop=backstop)


def both(number, how):
    return expert_amax(SEEN, linear(number, UP), how), expert_amax(SEEN, linear(number, DOWN), how)


def test_per_layer_all_experts_have_the_largest():
    for number in range(3):
        assert both(number, InputScale(per="layer")) == (5.0, 0.5)


@pytest.mark.parametrize(
    ("backstop", "helped"), [("layer_amax", (5.0, 0.5)), ("modelopt", (5.0, 0.5)), ("all_experts", (5.0, 6.0))]
)
def test_per_expert_each_has_its_own_but_those_without_tokens(backstop, helped):
    assert both(0, rule(backstop)) == (3.0, 0.5)
    assert both(1, rule(backstop)) == (5.0, 0.25)
    assert both(2, rule(backstop)) == helped


@pytest.mark.parametrize(
    ("min_tokens", "own"),
    [(1, [True, True, False]), (2, [True, True, False]), (3, [True, False, False]), (11, [False] * 3)],
)
def test_too_few_tokens_are_as_good_as_none(min_tokens, own):
    for number, alone in enumerate(own):
        wanted = (float(SEEN.input_amax[number]), float(SEEN.down_amax[number])) if alone else (5.0, 0.5)
        assert both(number, rule("layer_amax", min_tokens)) == wanted


def test_an_expert_that_saw_only_zeros_is_helped():
    silent = experts([10, 10], [3.0, 0.0], [0.5, 0.0])
    assert expert_amax(silent, linear(1, UP), rule("layer_amax")) == 3.0
    assert expert_amax(silent, linear(1, DOWN), rule("modelopt")) == 0.5


def test_a_layer_that_saw_nothing():
    """ModelOpt gives 0.5; the others refuse, because every scale of theirs would be zero."""
    nothing = ExpertStats.empty(2, 1)
    for part in (linear(0, UP), linear(0, DOWN)):
        assert expert_amax(nothing, part, rule("modelopt")) == 0.5
        for how in (rule("layer_amax"), rule("all_experts"), InputScale(per="layer")):
            with pytest.raises(UsageError, match="recorded no inputs, or only zeros") as caught:
                expert_amax(nothing, part, how)
            assert caught.value.where == part.module


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_impossible_values_make_no_scale(bad):
    """Of the expert itself, by every rule; and of its layer, where it needs the layer's."""
    rules = [rule(backstop) for backstop in ("layer_amax", "modelopt", "all_experts")]
    for how in rules:
        with pytest.raises(UsageError, match=f"contain the invalid amax {bad}"):
            expert_amax(experts([10, 10], [bad, 3.0], [0.5, 0.5]), linear(0, UP), how)
    for how in (*rules, InputScale(per="layer")):
        with pytest.raises(UsageError, match=f"contain the invalid amax {bad}"):
            expert_amax(experts([0, 1], [bad, bad], [0.5, 0.5]), linear(0, UP), how)


# A whole layer, with the jobs of a plan.


@pytest.fixture(scope="module")
def golden():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GOLDEN)
        yield importlib.import_module("calibrated_checkpoint")


def golden_rows(golden):
    ids, real = golden.tokens()
    shape = ids.shape
    return Rows(
        tokens=ids.astype(np.int32),
        real=real,
        positions=np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
        documents=np.where(real, np.arange(len(ids))[:, None], -1).astype(np.int32),
        domains=np.where(real, 0, -1).astype(np.int16),
        names=("golden",),
        left_padded=True,
    )


@pytest.fixture(scope="module")
def measured(golden, tmp_path_factory):
    """Measure the golden model; return its model, statistics, and each expert's statistics over all tokens."""
    folder = golden.write(tmp_path_factory.mktemp("golden") / "source", "bf16")
    checkpoint = open_checkpoint(folder)
    model = describe(checkpoint)
    text = tmp_path_factory.mktemp("data") / "texts.txt"
    text.write_text("a\n")

    def measure(*sets):
        recipe = with_data(load_recipe(WAFER, sets), [f"news={text}"], 1)
        with pytest.MonkeyPatch.context() as patch, Reader(checkpoint) as reader:
            patch.setattr(stream, "make_rows", lambda *_: golden_rows(golden))
            patch.setattr(stream, "load_vocabulary", lambda _: type("Vocabulary", (), {"named": {}}))
            calibration = prepare(checkpoint, model.layers, recipe, identity(checkpoint))
            found = Stream(calibration, Weights(model, reader))
            found.start()
            return {layer: found.through(layer) for layer in range(model.layers)}

    return model, measure


def scales(model, layers, *sets, name=WAFER):
    """Return every calibrated tensor by name, for a recipe."""
    recipe = load_recipe(name, sets)
    assert recipe.quantize is not None
    jobs = [job for job in make_jobs(model, recipe) if job.action == ENCODE and job.layer is not None]
    return {k: v for job in jobs for k, v in scales_of(job, layers[job.layer], recipe.quantize).items()}


def theirs(version, recipe):
    return json.loads((GOLDEN / f"modelopt-calibrated-{version}.json").read_text())["models"]["bf16"]["recipes"][
        recipe
    ]["scalars"]


def test_per_expert_equals_modelopt_0_41(measured, golden):
    """For every expert that a token reached; it leaves the others out, and ours have the largest of their layer."""
    model, measure = measured
    layers = measure()
    ours = scales(model, layers)
    stored = theirs("0.41.0", "mlp_max")
    compared = {
        name: value for name, value in stored.items() if name.endswith((".input_scale", ".k_scale", ".v_scale"))
    }
    assert len(compared) > 40
    assert {name for name, value in compared.items() if float(ours[name]) != np.float32(value)} == set()
    unreached = {f"model.layers.{layer}.mlp.experts.{expert}." for layer, expert in golden.LEFT_OUT.items()}
    missing = [name for name in ours if name not in compared]
    assert len(missing) == 3 * len(unreached)
    for name in missing:
        at, leaf = name.rsplit(".", 2)[0], name.split(".")[-2]
        assert f"{at}." in unreached
        peers = [float(v) for k, v in ours.items() if k.startswith(at.rpartition(".")[0]) and k.split(".")[-2] == leaf]
        assert float(ours[name]) == max(peers)


def test_inputs_equal_those_that_modelopt_saw(measured):
    """Of every linear, of each expert's two inputs, of keys and values; and how many tokens each expert had."""
    _, measure = measured
    golden = json.loads((GOLDEN / "modelopt-calibrated-0.47.0.json").read_text())["models"]["bf16"]
    layers = measure()
    ours = {}
    for layer, stats in layers.items():
        at = f"model.layers.{layer}"
        ours |= {f"{at}.{name}": amax for name, amax in stats.input_amax.items()}
        ours |= {f"{at}.self_attn.{c}_bmm_quantizer": stats.input_amax[f"self_attn.{c}"] for c in "kv"}
        for expert in range(8) if stats.experts else ():
            name = f"{at}.mlp.experts.{expert}"
            ours[f"{name}.gate_up_proj"], ours[f"{name}.down_proj"] = (
                stats.experts.input_amax[expert],
                stats.experts.down_amax[expert],
            )
    seen = {name: amax for name, amax in golden["input_amax"].items() if name != "lm_head"}  # never quantized
    assert len(seen) == 62
    assert {name: ours.get(name) for name in seen} == {name: amax["all"] or 0.0 for name, amax in seen.items()}
    for name, tokens in golden["tokens_per_expert"].items():
        experts = layers[int(name.split(".")[2])].experts
        assert experts is not None
        assert experts.seen.tolist() == tokens["all"]
        assert experts.count[:, 0].tolist() == tokens["real"]


def test_gate_and_up_share_one_scale(measured):
    model, measure = measured
    for sets in ((), ("quantize.input_scale.min_tokens=60",)):
        found = scales(model, measure(), *sets)
        gates = [name for name in found if ".gate_proj." in name]
        assert len(gates) == 1 + 2 + 2 * 8
        for name in gates:
            assert found[name].tobytes() == found[name.replace("gate_proj", "up_proj")].tobytes()
            assert (found[name].dtype, found[name].shape) == (np.float32, ())


def test_running_all_experts_is_what_it_says(measured, golden, monkeypatch):
    """Experts below the limit: what their down_proj would be given, had they all tokens; by plain PyTorch."""
    model, measure = measured
    given = []
    run_layer = stream.run_layer
    monkeypatch.setattr(stream, "run_layer", lambda *a, **b: given.append(run_layer(*a, **b)) or given[-1])
    sets = ("quantize.input_scale.min_tokens=150", "quantize.input_scale.backstop=all_experts")
    layers = measure(*sets)
    ours, tensors = scales(model, layers, *sets), golden.tensors("bf16")
    helped = 0
    for layer in golden.LEFT_OUT:
        found, x = layers[layer].experts, given[layer]
        assert found is not None
        assert len(x) == golden.ROWS * golden.LENGTH
        for expert in range(golden.EXPERTS):
            at = f"model.layers.{layer}.mlp.experts.{expert}"
            gate, up = (
                torch.from_numpy(tensors[f"{at}.{leaf}_proj.weight"]).view(torch.bfloat16) for leaf in ("gate", "up")
            )
            act = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
            few = found.seen[expert] < 150
            helped += few
            wanted = float(act.abs().max()) if few else float(found.down_amax[expert])
            assert float(ours[f"{at}.down_proj.input_scale"]) == np.float32(wanted) / np.float32(2688)
            assert few == bool(found.all_down_amax[expert])
            assert float(found.all_down_amax[expert] or found.down_amax[expert]) >= float(found.down_amax[expert])
    assert 2 < helped < 14


def test_statistics_without_what_a_backstop_needs_are_refused(measured):
    model, measure = measured
    with pytest.raises(UsageError, match="with this recipe and its min_tokens"):
        scales(model, measure(), "quantize.input_scale.backstop=all_experts")


@pytest.mark.parametrize("floor", [None, 1.0])
def test_scales_of_keys_and_values(floor):
    """Over 448, so that the largest is representable; ModelOpt 0.41 has none below 1."""
    sets = [f"quantize.kv_scale_min={floor or 'null'}"]
    quantize = load_recipe(WAFER, sets).quantize
    assert quantize is not None
    from halfbyte.engine.activation_scales import kv_scale

    stats = LayerStats({"self_attn.k": 896.0, "self_attn.v": 3.0})
    k, v = (kv_scale(f"model.layers.0.self_attn.{c}_proj.{c}_scale", stats, quantize) for c in "kv")
    assert float(k) == 2.0
    assert float(v) == (1.0 if floor else np.float32(3) / np.float32(448))
    assert (v.dtype, v.shape) == (np.float32, ())
    with pytest.raises(UsageError, match="recorded no inputs, or only zeros"):
        kv_scale("model.layers.0.self_attn.k_proj.k_scale", LayerStats(), quantize)


def test_compressed_tensors_stores_the_inverse(measured):
    model, measure = measured
    layers = measure()
    sets = [
        "quantize.format=nvfp4_ct",
        "quantize.scales=compressed-tensors",
        "quantize.kv_cache=null",
        "quantize.kv_scale_min=null",
        "quantize.config.producer_version=null",
        "quantize.config.ignore_patterns=[lm_head]",
    ]
    inverse, plain = scales(model, layers, *sets), scales(model, layers)
    assert len(inverse) == len([name for name in plain if name.endswith(".input_scale")])
    for name, value in inverse.items():
        assert name.endswith(".input_global_scale")
        assert (value.dtype, value.shape) == (np.float32, (1,))
        # Rounded to BF16 twice, as compressed-tensors does.
        assert float(value[0]) == pytest.approx(1 / float(plain[name.replace("global_", "")]), rel=2**-7)


def test_linears_outside_the_experts_never_get_a_scale_of_zero(measured):
    model, measure = measured
    layers = measure()
    layers[0].input_amax["mlp.down_proj"] = 0.0
    with pytest.raises(UsageError, match="calibration recorded no inputs, or only zeros") as caught:
        scales(model, layers)
    assert caught.value.where == "model.layers.0.mlp.down_proj"
