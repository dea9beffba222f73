"""Two models on the same tokens: exact zeros if they are equal, the true numbers otherwise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pico import write_pico
from resident import read_small, resident, run_resident

from halfbyte.calibrate.token_rows import Document, Share, packed_rows, padded_rows
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.compare.activations import served_activations
from halfbyte.compare.models import Side, fp8, open_side
from halfbyte.compare.report import kl_ratio
from halfbyte.compare.stream import compare, compare_many
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.model import describe
from halfbyte.formats.emulated_activations import mxfp4, nvfp4
from halfbyte.recipe.load import load_recipe

WORDS = 128
KINDS = (
    "int4-k2.6",
    "int4-k2-thinking",
    "fp8-block-k2",
    "fp8-channel",
    "bf16",
    "nvfp4",
    "nvfp4_ct",
    "mxfp4",
    "mxfp4_ct",
)


def _share(lengths, rows, domain, seed):
    random = np.random.default_rng(seed)
    return Share(domain, [Document(random.integers(0, WORDS, n).tolist(), domain) for n in lengths], rows)


ROWS = packed_rows([_share([9, 30, 12, 50, 3, 40, 20], 6, "a", 0), _share([60] * 5, 5, "b", 1)], 24, 0)
PADDED = padded_rows([_share([9, 24, 30, 1, 12], 5, "a", 2)], 24, 0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    known = {}

    def folder(kind, recipe=None):
        if (kind, recipe) not in known:
            place = tmp_path_factory.mktemp("compare") / kind
            if recipe is None:
                known[kind, recipe] = write_pico(place, kind, experts=8)
            else:
                quantize(folder(kind), place, load_recipe(recipe), threads=1, verify_source=False)
                known[kind, recipe] = place
        return known[kind, recipe]

    return folder


def _numbers(report):
    result = report.record("all").as_json()
    return {key: value for key, value in result.items() if key not in ("seconds", "second", "emulated")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [ROWS, PADDED], ids=["packed", "padded"])
def test_an_int4_source_and_its_bf16_twin_are_exactly_equal(folders, rows, dtype):
    twin = folders("int4-k2.6", "kimi-k2.6-bf16")
    with open_side(folders("int4-k2.6"), dtype=dtype) as first, open_side(twin, dtype=dtype) as second:
        result = compare(rows, first, second, threads=2)
    assert [layer.relative_error for layer in result.layers] == [0.0] * 3
    assert [layer.cosine for layer in result.layers] == [1.0] * 3
    assert [layer.routing_agreement for layer in result.layers] == [None, 1.0, 1.0]
    assert result.total.kl.value == 0.0
    assert result.total.top1.value == 1.0
    assert result.total.perplexity_ratio.value == 1.0
    assert (result.documents.kl == 0).all()
    assert result.total.perplexity_first == result.total.perplexity_second


@pytest.mark.parametrize("kind", KINDS)
def test_every_stored_format_runs_and_equals_itself(folders, kind):
    with open_side(folders(kind)) as first, open_side(folders(kind)) as second:
        result = compare(ROWS, first, second)
    assert (result.total.kl.value, result.total.top1.value) == (0.0, 1.0)
    assert 1 < result.total.perplexity_first < 1000


@pytest.fixture(scope="module")
def mxfp4_reports(folders):
    out = folders("int4-k2.6", "kimi-k2.6-mxfp4-wafer")
    served_as = {"activations": "as-served", "kv": "fp8"}
    source = folders("int4-k2.6")
    with open_side(source) as first, open_side(out) as second, open_side(out, **served_as) as served:
        yield first, second, served, compare_many(ROWS, first, [second, served], threads=2)


def test_other_weights_give_a_difference(mxfp4_reports):
    *_, (weights, served) = mxfp4_reports
    assert weights.layers[0].relative_error == 0  # a dense layer: nothing of it was quantized
    assert weights.layers[1].relative_error > 0
    assert 0 < weights.total.kl.value < served.total.kl.value
    assert served.emulated == {"activations": "mxfp4, into 48 linears", "kv": "fp8, cast without scales"}
    assert served.layers[0].relative_error > 0  # its KV cache is in FP8 too
    assert kl_ratio(served, weights).value == pytest.approx(served.total.kl.value / weights.total.kl.value)


def test_activations_alone_change_the_layers_with_quantized_experts(folders, mxfp4_reports):
    first, _, _, (weights, _) = mxfp4_reports
    with open_side(folders("int4-k2.6", "kimi-k2.6-mxfp4-wafer"), activations="as-served") as served:
        result = compare(ROWS, first, served)
    assert result.layers[0] == weights.layers[0]
    assert result.layers[1].relative_error > weights.layers[1].relative_error


def _decoded(small):
    """A model from tensors in a dictionary instead of a checkpoint."""
    model = small.model()
    return Side("decoded", model, small.tensors, lambda layer: small.expert(model, layer, torch.float32))


def test_the_numbers_are_those_of_transformers_whole_models(folders):
    """Widened weights, so that layers do something; FP32 sums in another order, so not the same bits."""
    smalls = [read_small(folders("int4-k2.6", recipe)) for recipe in (None, "kimi-k2.6-mxfp4-wafer")]
    result = compare(PADDED, *map(_decoded, smalls))
    inputs = {
        "input_ids": torch.from_numpy(PADDED.tokens).long(),
        "attention_mask": torch.from_numpy(PADDED.real).long(),
    }
    whole = [run_resident(resident(small, torch.float32), **inputs) for small in smalls]
    real = torch.from_numpy(PADDED.real)
    for layer, (a, b) in zip(result.layers, zip(whole[0][0], whole[1][0], strict=True), strict=True):
        expected = (a[real].double() - b[real].double()).norm() / a[real].double().norm()
        assert layer.relative_error == pytest.approx(float(expected), rel=1e-3)
    first, second = (logits.double().log_softmax(-1)[:, :-1] for _, logits in whole)
    mask = real[:, 1:] & real[:, :-1]
    kl = (first.exp() * (first - second)).sum(-1)
    assert result.total.kl.value == pytest.approx(float(kl[mask].mean()), rel=1e-3)
    target = inputs["input_ids"][:, 1:, None]
    losses = [(-logp.gather(2, target)[..., 0][mask].mean()).exp() for logp in (first, second)]
    assert result.total.perplexity_first == pytest.approx(float(losses[0]), rel=1e-5)
    assert result.total.perplexity_second == pytest.approx(float(losses[1]), rel=1e-5)
    assert result.total.kl.value > 1e-3
    assert result.total.top1.value == pytest.approx(
        float((first.argmax(-1) == second.argmax(-1))[mask].double().mean())
    )


def test_one_at_a_time_is_the_same_as_all_together_and_threads_change_nothing(mxfp4_reports):
    first, second, served, (weights, both) = mxfp4_reports
    for threads in (1, 3):
        assert _numbers(compare(ROWS, first, second, threads=threads)) == _numbers(weights)
    assert _numbers(compare(ROWS, first, served)) == _numbers(both)


def test_sums_by_document_make_the_numbers(mxfp4_reports):
    *_, (result, _) = mxfp4_reports
    documents = result.documents
    assert result.total.tokens == documents.tokens.sum() == sum(part.tokens for part in result.domains.values())
    assert list(result.domains) == ["a", "b"]
    assert result.total.kl.value == pytest.approx(documents.kl.sum() / documents.tokens.sum(), rel=1e-12)
    of_b = documents.domain == 1
    assert result.domains["b"].kl.value == pytest.approx(
        documents.kl[of_b].sum() / documents.tokens[of_b].sum(), rel=1e-12
    )
    difference = (documents.nll_second - documents.nll_first).sum() / documents.tokens.sum()
    assert result.total.perplexity_ratio.value == pytest.approx(np.exp(difference), rel=1e-12)
    plot = result.whole_record("all")
    assert plot.by_layer is not None and plot.by_document is not None
    assert plot.by_layer["layer"] == (0, 1, 2)
    assert len(plot.by_document.kl) == len(documents.number) == result.total.documents


def test_padding_counts_nowhere(folders):
    """Padding flows through the experts too, with others or alone, which may change a last bit of their sums."""
    out = folders("int4-k2.6", "kimi-k2.6-mxfp4-wafer")
    rows = packed_rows([_share([9, 14, 20], 2, "a", 5)], 24, 0)
    tokens = rows.tokens.copy()
    tokens[~rows.real] = 77
    with open_side(folders("int4-k2.6")) as first, open_side(out) as second:
        result, other = (compare(each, first, second) for each in (rows, replace(rows, tokens=tokens)))
    assert (~rows.real).sum() == 5
    assert result.documents.tokens.tolist() == [8, 13, 18]  # the third begins again in the second row
    assert result.documents.kl == pytest.approx(other.documents.kl, rel=1e-3)
    for mine, theirs in zip(result.layers, other.layers, strict=True):
        assert mine.relative_error == pytest.approx(theirs.relative_error, rel=1e-3)
        assert mine.routing_agreement == theirs.routing_agreement


def test_a_side_can_be_changed_without_a_checkpoint(folders):
    with open_side(folders("int4-k2.6")) as first:
        same = replace(first, name="same", experts=first.experts)

        def halved(layer):
            expert = first.experts(layer)
            return lambda number: tuple(part * 0.5 for part in expert(number))

        result = compare_many(ROWS, first, [same, replace(first, name="halved", experts=halved)])
    assert result[0].total.kl.value == 0.0
    assert result[1].second == "halved"
    assert result[1].total.kl.value > 0


def test_another_dtype_of_the_same_checkpoint_is_its_rounding(folders):
    with open_side(folders("int4-k2.6")) as first, open_side(folders("int4-k2.6"), dtype=torch.bfloat16) as second:
        result = compare(ROWS, first, second)
    assert 0 < result.layers[-1].relative_error < 0.02
    assert result.dtype == "bfloat16"


def test_pruned_experts_are_compared_but_not_their_numbers(folders, tmp_path):
    few = write_pico(tmp_path / "few", experts=4)
    with open_side(folders("int4-k2.6")) as first, open_side(few) as second:
        assert [layer.routing_agreement for layer in compare(ROWS, first, second).layers] == [None] * 3


@pytest.mark.parametrize(
    ("shape", "key"), [({"layers": 2}, "num_hidden_layers: 3 and 2"), ({"hidden": 96}, "hidden_size: 64 and 96")]
)
def test_other_shapes_are_refused(folders, tmp_path, shape, key):
    other = write_pico(tmp_path / "other", **{"experts": 8, **shape})
    with open_side(folders("int4-k2.6")) as first, open_side(other) as second, pytest.raises(UsageError, match=key):
        compare(ROWS, first, second)


def test_tokens_that_the_models_do_not_know_are_refused(folders):
    rows = replace(ROWS, tokens=ROWS.tokens + WORDS)
    refusal = "exceeds the models' vocabulary size of 128"
    with open_side(folders("int4-k2.6")) as first, pytest.raises(UsageError, match=refusal):
        compare(rows, first, first)
    lonely = packed_rows([_share([1] * 24, 1, "a", 0)], 24, 0)
    with open_side(folders("int4-k2.6")) as first, pytest.raises(UsageError, match="no tokens to predict"):
        compare(lonely, first, first)


def test_values_that_are_not_finite_are_an_error_not_a_number(folders):
    with open_side(folders("int4-k2.6")) as first:
        broken = replace(
            first, experts=lambda _: lambda _: (torch.full((32, 64), torch.nan),) * 2 + (torch.zeros(64, 32),)
        )
        with pytest.raises(CheckpointError, match="non-finite values after layer 1"):
            compare(ROWS, first, broken)


def _served(folder, tensors):
    """A model with the activations of a checkpoint and given scales."""
    with open_side(folder) as side:
        checkpoint = open_checkpoint(folder)
        return served_activations(replace(side, tensors=tensors), checkpoint, describe(checkpoint))


def test_nvfp4_inputs_take_the_larger_scale_of_what_is_fused(folders):
    scales = {"gate_proj": 0.01, "up_proj": 0.03, "down_proj": 0.2}

    def tensors(name):
        module, _, suffix = name.rpartition(".")
        assert suffix == "input_scale"
        return torch.tensor(scales[module.rpartition(".")[2]])

    side = _served(folders("nvfp4"), tensors)
    x = torch.randn(5, 64) * 3
    change, hook = side.change(1), side.hook(1)
    assert torch.equal(change(3, "gate_up", x), nvfp4(x, torch.tensor(0.03)))
    assert torch.equal(change(3, "down", x), nvfp4(x, torch.tensor(0.2)))
    assert torch.equal(hook("mlp.shared_experts.up_proj", x), nvfp4(x, torch.tensor(0.03)))
    assert torch.equal(hook("mlp.shared_experts.down_proj", x), nvfp4(x, torch.tensor(0.2)))
    assert torch.equal(side.hook(0)("mlp.gate_proj", x), nvfp4(x, torch.tensor(0.03)))
    assert hook("self_attn.o_proj", x) is None
    assert side.hook(0)("mlp.shared_experts.up_proj", x) is None
    assert side.change(0) is None


def test_compressed_tensors_writes_the_reciprocal(folders):
    side = _served(folders("nvfp4_ct"), lambda _: torch.tensor([40.0]))
    x = torch.randn(5, 64)
    assert torch.equal(side.change(1)(0, "down", x), nvfp4(x, torch.tensor(1 / 40)))
    assert side.hook(1) is None  # only its experts are quantized


def test_mxfp4_inputs_need_no_scale(folders):
    side = _served(folders("mxfp4_ct"), {})
    x = torch.randn(5, 64)
    assert torch.equal(side.change(2)(1, "gate_up", x), mxfp4(x))


@pytest.mark.parametrize(("value", "what"), [(None, "input_scale is missing"), (0.0, "invalid input_scale 0.0")])
def test_a_missing_or_useless_input_scale_is_an_error(folders, value, what):
    tensors = {} if value is None else (lambda _: torch.tensor(value))
    with pytest.raises(CheckpointError, match=what):
        _served(folders("nvfp4"), tensors).change(1)(0, "down", torch.randn(2, 32))


def test_weight_only_formats_keep_their_activations(folders):
    with open_side(folders("int4-k2.6", "kimi-k2.6-nvfp4a16"), activations="as-served") as side:
        assert side.hook is None
        assert side.change is None
        assert side.emulated["activations"].startswith("none")
    with open_side(folders("int4-k2.6"), activations="as-served") as side:
        assert side.emulated["activations"].startswith("none")


def test_formats_without_emulation_are_refused(folders):
    with (
        pytest.raises(UsageError, match="fp8_block are not supported"),
        open_side(folders("fp8-block-k2"), activations="as-served"),
    ):
        pass
    with pytest.raises(UsageError, match="no k_scale"), open_side(folders("mxfp4"), kv="fp8-scaled"):
        pass
    with pytest.raises(UsageError, match="unknown value 'fp4'"), open_side(folders("mxfp4"), kv="fp4"):
        pass


def test_the_kv_cache_is_quantized_where_engines_keep_it(folders):
    with open_side(folders("nvfp4"), kv="fp8-scaled", activations="as-served") as side:
        scale = side.tensors("language_model.model.layers.1.self_attn.k_proj.k_scale")
        hook = side.hook(1)
        x = torch.randn(5, 64)
        for name in ("self_attn.latent", "self_attn.k_rope"):
            assert torch.equal(hook(name, x), fp8(x, scale))
        assert hook("self_attn.kv_b_proj", x) is None
        assert not torch.equal(hook("mlp.shared_experts.up_proj", x), x)  # activations are still quantized
        assert side.emulated["kv"].startswith("fp8, latent and rope key")
    with open_side(folders("nvfp4"), kv="fp8") as side:
        assert torch.equal(side.hook(0)("self_attn.latent", x), fp8(x))
