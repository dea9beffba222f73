"""The published geometry to the byte, and synthetic checkpoints built from it."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pico import SMALL

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.errors import UsageError
from halfbyte.families.examples import example
from halfbyte.families.kimi_k25.geometry import KIMI_K26, release_shards
from halfbyte.families.model import describe

# One shard of each kind: tensors, bytes of tensors, bytes of the file.
PUBLISHED = {
    1: (12, 995_000_320, 995_001_888),
    2: (3470, 9_808_554_496, 9_809_047_464),
    11: (3470, 9_808_554_496, 9_809_050_936),
    62: (3, 4_697_634_816, 4_697_635_160),
    63: (6, 108_555_776, 108_556_344),
    64: (329, 833_732_064, 833_769_904),
}


@pytest.fixture(scope="module")
def k26():
    return example("kimi-k2.6")


@pytest.fixture
def synth(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import synth

    yield synth
    sys.modules.pop("synth")


def test_the_example_is_the_published_checkpoint(k26):
    assert len(k26.tensors) == 208_550
    assert k26.nbytes == 595_148_192_736
    assert sum(k26.shards.values()) - k26.nbytes == 29_795_472
    assert Counter(t.dtype for t in k26.tensors.values()) == {"F32": 60, "I32": 138_240, "BF16": 70_250}
    for number, (tensors, payload_nbytes, file_nbytes) in PUBLISHED.items():
        shard = f"model-{number:05d}-of-000064.safetensors"
        inside = [tensor.nbytes for tensor in k26.tensors.values() if tensor.shard == shard]
        assert (len(inside), sum(inside), k26.shards[shard]) == (tensors, payload_nbytes, file_nbytes)


def test_an_unknown_example_is_answered_with_a_known_one():
    with pytest.raises(UsageError) as caught:
        example("kimi-k2.7")
    assert caught.value.fix == "did you mean 'kimi-k2.6'?"


def test_a_layer_count_and_an_expert_count_are_all_it_takes():
    shards = release_shards(replace(KIMI_K26, layers=2, experts=3))
    assert [len(specs) for specs in shards.values()] == [12, 4 + 2 + 5 + 3 + 3 * 9, 3, 6, 329]


def test_headers_alone_make_a_folder_that_opens(synth, tmp_path):
    counted = synth.write_headers(tmp_path, SMALL)
    checkpoint = open_checkpoint(tmp_path)
    assert counted["tensors"] == len(checkpoint.tensors)
    assert counted["payload_nbytes"] == checkpoint.nbytes == checkpoint.index_nbytes
    assert counted["header_nbytes"] == sum(checkpoint.shards.values()) - checkpoint.nbytes
    assert describe(checkpoint).experts == SMALL.experts


def test_filled_layers_hold_int4_on_kimis_grid(synth, tmp_path):
    import numpy as np
    from safetensors.torch import load_file

    synth.write_layers(tmp_path, replace(SMALL, expert_width=64, experts=8))
    checkpoint = open_checkpoint(tmp_path)
    tensors = load_file(tmp_path / "model-00002-of-000006.safetensors")
    seen = set()
    for name, linear in describe(checkpoint).linears.items():
        if linear.role == "routed_experts" and linear.layer == 1:
            words = tensors[f"{name}.weight_packed"].numpy().view(np.uint32)
            codes = np.stack([(words >> shift & 15).astype(np.int8) - 8 for shift in range(0, 32, 4)], -1)
            codes = codes.reshape(linear.shape[0], -1, 32)
            assert (np.abs(codes).max(-1) == 7).all()
            scale = tensors[f"{name}.weight_scale"].float().numpy()
            assert ((scale > 1e-5) & (scale < 1)).all()
            assert tuple(tensors[f"{name}.weight_shape"].tolist()) == linear.shape
            seen.add(words.tobytes() + scale.tobytes())
    assert len(seen) == 8 * 3  # no two alike
