"""Expert saliency from our statistics, compared with llm-compressor's REAP tracker and the public REAP formulas.

The golden values come from FP64 forward passes (tests/golden/make_reap.py), so the model runs in FP64 here too.
"""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from halfbyte.calibrate.observe import Observer
from halfbyte.calibrate.token_rows import Rows
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.families.model import describe
from halfbyte.families.registry import text_model
from halfbyte.families.weights import Weights
from halfbyte.forward.embedding_and_head import embed
from halfbyte.forward.positions import attention_inputs
from halfbyte.forward.run import row_chunks, run_layer

GOLDEN = Path(__file__).parents[2] / "golden"
PEER = json.loads((GOLDEN / "llmcompressor-0.14.0.1.json").read_text())["saliencies"]
CLOSE = 1e-6
CASES = [(model, layer) for model, found in PEER.items() for layer in found["layers"]]


@pytest.fixture(scope="module")
def golden():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GOLDEN)
        yield importlib.import_module("routed_checkpoint"), importlib.import_module("checkpoint")


def golden_rows(small):
    """The golden's tokens; every third row is of another domain."""
    ids, real = small.tokens()
    numbers = np.arange(len(ids))[:, None]
    return Rows(
        tokens=ids.astype(np.int32),
        real=real,
        positions=np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape).copy(),
        documents=np.where(real, numbers, -1).astype(np.int32),
        domains=np.where(real, (numbers % 3 == 0).astype(int), -1).astype(np.int16),
        names=("news", "code"),
        left_padded=True,
    )


@pytest.fixture(scope="module")
def measured(golden, tmp_path_factory):
    """The statistics of both models' layers, from our forward pass and observer."""
    small, checkpoints = golden
    rows, found = golden_rows(small), {}
    for name, peer in PEER.items():
        folder = small.write(tmp_path_factory.mktemp("golden") / name, name)
        assert checkpoints.sha256(folder) == peer["source_sha256"]
        checkpoint = open_checkpoint(folder)
        text = text_model(checkpoint.config)
        with Reader(checkpoint) as reader:
            weights = Weights(describe(checkpoint), reader, torch.float64)
            hidden = embed(torch.from_numpy(rows.tokens).long(), weights("model.embed_tokens.weight"), torch.float64)
            for index in range(text.config.num_hidden_layers):
                layer = text.decoder_layer(index, weights, torch.float64)
                observer = Observer(index, rows, small.EXPERTS if layer.is_moe else 0, public=True)
                given = run_layer(
                    layer,
                    hidden,
                    lambda chunk, text=text: attention_inputs(text, rows, chunk, torch.float64),
                    row_chunks(len(rows.tokens), 4),
                    weights.experts(index),
                    hook_of=observer.hook,
                    routes=observer.routes,
                    observe=observer.expert,
                )
                if given is not None:
                    observer.run_public(given, weights.experts(index), threads=1)
                found[name, str(index)] = observer.stats.experts
    return found


def mean(sums, count):
    """The mean over all domains; 0 for an expert without tokens, as in the public code."""
    return sums.sum(axis=1) / np.maximum(count.sum(axis=1), 1)


def kept(saliency, keep, groups=1):
    """The largest of each group, in ascending order."""
    by_group = saliency.reshape(groups, -1)
    best = np.argsort(by_group, axis=1, kind="stable")[:, -(keep // groups) :]
    return sorted((best + np.arange(groups)[:, None] * by_group.shape[1]).reshape(-1).tolist())


@pytest.mark.parametrize(("model", "layer"), CASES)
def test_reap_equals_llm_compressors_tracker(measured, golden, model, layer):
    stats, peer = measured[model, layer], PEER[model]["layers"][layer]["llmcompressor"]
    small, _ = golden
    assert stats.count.sum(axis=1).tolist() == peer["count"]
    reap = mean(stats.sums["gn"], stats.count)
    np.testing.assert_allclose(reap, peer["reap"], rtol=CLOSE)
    assert kept(reap, small.KEEP, small.GROUPS[model][0]) == peer["kept"]


@pytest.mark.parametrize(("model", "layer"), CASES)
def test_reap_equals_the_public_formulas_fed_the_true_routing(measured, golden, model, layer):
    stats, peer = measured[model, layer], PEER[model]["layers"][layer]["true"]
    small, _ = golden
    reap = mean(stats.sums["gn"], stats.count) / small.SCALING
    np.testing.assert_allclose(reap, peer["reap"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["gn"].sum(axis=1) / small.SCALING, peer["weighted_ean_sum"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["g"].sum(axis=1) / small.SCALING, peer["weighted_frequency_sum"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["n"].sum(axis=1), peer["ean_sum"], rtol=CLOSE)
    assert kept(reap, small.KEEP) == peer["kept"]


@pytest.mark.parametrize(("model", "layer"), CASES)
def test_softmax_weights_equal_the_public_formulas(measured, golden, model, layer):
    stats, peer = measured[model, layer], PEER[model]["layers"][layer]["true_softmax"]
    small, _ = golden
    assert stats.count.sum(axis=1).tolist() == peer["count"]
    reap = mean(stats.sums["pn"], stats.count)
    np.testing.assert_allclose(reap, peer["reap"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["pn"].sum(axis=1), peer["weighted_ean_sum"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["p"].sum(axis=1), peer["weighted_frequency_sum"], rtol=CLOSE)
    assert kept(reap, small.KEEP) == peer["kept"]


@pytest.mark.parametrize(("model", "layer"), CASES)
def test_the_public_selection_equals_the_public_formulas(measured, golden, model, layer):
    """Over the experts with the largest logits, which the model itself often does not choose."""
    stats, peer = measured[model, layer], PEER[model]["layers"][layer]["public"]
    small, _ = golden
    assert stats.count_public.sum(axis=1).tolist() == peer["count"] != stats.count.sum(axis=1).tolist()
    reap = mean(stats.sums["pn_public"], stats.count_public)
    np.testing.assert_allclose(reap, peer["reap"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["pn_public"].sum(axis=1), peer["weighted_ean_sum"], rtol=CLOSE)
    np.testing.assert_allclose(stats.sums["p_public"].sum(axis=1), peer["weighted_frequency_sum"], rtol=CLOSE)
    assert kept(reap, small.KEEP) == peer["kept"]


def test_the_three_saliencies_are_not_the_same():
    """Otherwise the tests above could not tell them apart."""
    layers = [peer["layers"][layer] for peer in PEER.values() for layer in peer["layers"]]
    assert any(layer["true"]["kept"] != layer["true_softmax"]["kept"] for layer in layers)
    assert any(layer["true_softmax"]["kept"] != layer["public"]["kept"] for layer in layers)
    assert any(layer["true"]["kept"] != layer["llmcompressor"]["kept"] for layer in layers)  # where there are groups
