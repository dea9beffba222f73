"""Calibration alone on the device: the statistics of `quantize`, also after resuming a killed run.

It is in this folder because it imports the kernels, which are interpreted here.
"""

import sys
from pathlib import Path

import pytest
import torch

from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.store import Store
from halfbyte.engine.backends.cuda import backend as start
from halfbyte.engine.backends.cuda import layer_loop as passing
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import InterruptedRunError, MachineError, UsageError
from halfbyte.recipe.load import load_recipe

sys.path.insert(0, str(Path(__file__).parents[3] / "flow"))
from calibratable import small, texts

THERE = "cuda" if torch.cuda.is_available() else "cpu:0"
LAYERS = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    small(folder / "source", "int4-k2.6", layers=LAYERS, experts=4, hidden=32, expert_width=32)
    texts(folder / "texts.jsonl", count=16)
    return folder


@pytest.fixture(scope="module")
def recipe(place):
    return with_data(
        load_recipe("kimi-k2.6-nvfp4-nvidia", ["calibrate.sequence_length=8"]), [f"news={place / 'texts.jsonl'}"], 3
    )


@pytest.fixture
def whole(place, recipe, interpreted):
    """The statistics of a run that writes a checkpoint; computed once in this folder, where kernels are interpreted."""
    if not (place / "out").exists():
        quantize(place / "source", place / "out", recipe, device=THERE, verify_source=False)
    return (place / "out/halfbyte/stats/stats.safetensors").read_bytes()


def test_statistics_are_those_of_a_run_that_writes(place, recipe, whole, tmp_path):
    steps = []
    result = calibrate(place / "source", tmp_path / "stats", recipe, device=THERE, progress=steps.append)
    assert (tmp_path / "stats/stats.safetensors").read_bytes() == whole
    assert sorted(path.name for path in (tmp_path / "stats").iterdir()) == ["calibration.json", "stats.safetensors"]
    assert [step.shard for step in steps] == [
        *(f"measured layer {layer + 1} of {LAYERS}" for layer in range(LAYERS)),
        "measured all layers",
    ]
    done = [step.done_nbytes for step in steps]
    assert 0 < done[0] < done[1] < done[2] == done[3] == steps[0].all_nbytes
    assert len(result.coverage.layers) == LAYERS - 1  # the first is dense
    again = []
    calibrate(place / "source", tmp_path / "stats", recipe, device=THERE, progress=again.append)
    assert [step.shard for step in again] == ["measured all layers"]


def test_a_stopped_run_goes_on_where_it_was(place, recipe, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(passing, "KEEP_SECONDS", 0.0)
    real = Store.save_hidden

    def stopped(self, layer, hidden):
        if layer < LAYERS:
            real(self, layer, hidden)
        if layer >= LAYERS - 1:
            raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch,
        pytest.raises(InterruptedRunError, match="measured layers are kept"),
    ):
        patch.setattr(Store, "save_hidden", stopped)
        calibrate(place / "source", tmp_path / "stats", recipe, device=THERE)
    assert not list(tmp_path.rglob("*.part"))
    with pytest.raises(UsageError, match="device differs"):
        calibrate(place / "source", tmp_path / "stats", recipe)
    steps = []
    calibrate(place / "source", tmp_path / "stats", recipe, device=THERE, progress=steps.append)
    assert [step.shard for step in steps] == [f"measured layer {LAYERS} of {LAYERS}", "measured all layers"]
    assert (tmp_path / "stats/stats.safetensors").read_bytes() == whole


def test_what_the_device_cannot_do_is_said_before_anything_is_written(place, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(start, "find_spec", lambda _: None)
    with pytest.raises(MachineError, match="Triton"):
        calibrate(place / "source", tmp_path / "stats", recipe, device=THERE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError, match="PyTorch detects no CUDA device"):
        calibrate(place / "source", tmp_path / "stats", recipe, device="cuda")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["calibrate", "compare"])
def test_threads_do_not_go_with_a_device(halfbyte, tmp_path, command):
    words = {
        "calibrate": ["calibrate", tmp_path, "-r", "kimi-k2.6-nvfp4-nvidia", "-o", tmp_path / "stats"],
        "compare": ["compare", tmp_path, tmp_path, "--data", "a=b.jsonl"],
    }
    code, out, err = halfbyte(*words[command], "--device", "cuda", "--threads", "2")
    assert (code, out) == (2, "")
    assert err.startswith("✗ --threads cannot be combined with --device cuda, where one thread submits all work\n")
