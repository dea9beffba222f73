"""Sums that only pruning reads: part of every calibration; old and new statistics are never mixed."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
from calibratable import SHORT, WAFER, digests, small, texts

from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.stats import LATER_SUMS, PUBLIC_SUMS
from halfbyte.calibrate.store import read_stats, stats_sha256
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import InterruptedRunError, RecipeError, UsageError
from halfbyte.recipe.load import load_recipe

LAYERS = 3
PUBLIC = "calibrate.public_reap=true"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its data, and two statistics of it."""
    folder = tmp_path_factory.mktemp("place")
    texts(folder / "texts.jsonl")
    small(folder / "source", layers=LAYERS)
    calibrate(folder / "source", folder / "stats", recipe(folder), threads=1)
    calibrate(folder / "source", folder / "public", recipe(folder, PUBLIC), threads=1)
    return folder


def recipe(place, *sets):
    return with_data(load_recipe(WAFER, [SHORT, *sets]), [f"news={place / 'texts.jsonl'}"], 6)


def as_an_earlier_version(stats, folder):
    """Write finished statistics in the format before these sums."""
    folder.mkdir()
    tensors = safetensors.numpy.load((stats / "stats.safetensors").read_bytes())
    tensors = {name: array for name, array in tensors.items() if name.split("sum_")[-1] not in LATER_SUMS}
    about, _ = read_stats(stats)
    del about["sums"]
    said = json.dumps({**about, "sha256": stats_sha256(about, tensors)})
    (folder / "stats.safetensors").write_bytes(safetensors.numpy.save(tensors, {"halfbyte": said}))
    return folder


def stopped(place, folder, *sets):
    """A calibration that was stopped after its second layer."""

    def stop(progress):
        if "measured layer 2 of" in progress.shard:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        calibrate(place / "source", folder, recipe(place, *sets), progress=stop)
    return folder


def test_softmax_weights_of_a_token_add_up_to_one(place):
    about, layers = read_stats(place / "stats")
    real = sum(about["domains"].values())
    for layer in (1, 2):
        stats = layers[layer].experts
        assert stats is not None
        assert stats.sums["p"].sum() == pytest.approx(real, rel=1e-6)
        assert 0 < stats.sums["pn"].sum() < stats.sums["n"].sum()


def test_statistics_of_an_earlier_version_still_quantize(place, tmp_path):
    old = as_an_earlier_version(place / "stats", tmp_path / "old")
    stats = read_stats(old)[1][1].experts
    assert stats is not None
    assert not set(LATER_SUMS) & stats.sums.keys()
    made = []
    for name, given in (("from-old", old), ("from-new", place / "stats")):
        quantize(place / "source", tmp_path / name, recipe(place), stats=given, verify_source=False)
        made.append(digests(tmp_path / name))
    assert any(name.endswith(".safetensors") for name in made[0])
    assert made[0] == made[1]


def test_a_folder_that_was_begun_without_these_sums_is_refused(place, tmp_path):
    folder = stopped(place, tmp_path / "stats")
    described = json.loads((folder / "calibration.json").read_text())
    del described["sums"]  # as an earlier version wrote it
    (folder / "calibration.json").write_text(json.dumps(described))
    with pytest.raises(UsageError, match="another calibration: sums differs"):
        calibrate(place / "source", folder, recipe(place))


def test_the_public_selection_changes_nothing_else(place, tmp_path):
    plain, public = read_stats(place / "stats")[1], read_stats(place / "public")[1]
    for layer in range(LAYERS):
        ours, theirs = plain[layer].tensors(), public[layer].tensors()
        more = {name for name in theirs if name.endswith("_public")}
        assert len(more) == (0 if layer == 0 else 1 + len(PUBLIC_SUMS))
        assert {name: array.tobytes() for name, array in theirs.items() if name not in more} == {
            name: array.tobytes() for name, array in ours.items()
        }
    calibrate(place / "source", tmp_path / "threads", recipe(place, PUBLIC), threads=3)
    assert (tmp_path / "threads/stats.safetensors").read_bytes() == (place / "public/stats.safetensors").read_bytes()


def test_the_public_selection_counts_every_real_token(place):
    about, layers = read_stats(place / "public")
    for layer in (1, 2):
        stats = layers[layer].experts
        assert stats is not None
        assert stats.count_public is not None
        assert stats.count_public.sum() == stats.count.sum()
        assert stats.sums["p_public"].sum() == pytest.approx(sum(about["domains"].values()), rel=1e-6)
        assert not np.array_equal(stats.count_public, stats.count)


def test_the_public_selection_resumes_only_with_itself(place, tmp_path):
    folder = stopped(place, tmp_path / "stats")
    with pytest.raises(UsageError, match="another calibration: sums differs"):
        calibrate(place / "source", folder, recipe(place, PUBLIC))
    shutil.rmtree(folder)
    stopped(place, folder, PUBLIC)
    calibrate(place / "source", folder, recipe(place, PUBLIC))
    assert (folder / "stats.safetensors").read_bytes() == (place / "public/stats.safetensors").read_bytes()


def test_the_public_selection_is_for_the_cpu(place):
    with pytest.raises(RecipeError, match=r"'public_reap: true' is supported on the CPU only") as caught:
        calibrate(place / "source", place / "refused", recipe(place, PUBLIC), device="cuda")
    assert caught.value.fix == "pass --device cpu, or set calibrate.public_reap to false"
