"""Folders of statistics: one model, one number of layers, one run at a time; incomplete ones are measured again."""

import json
import shutil

import pytest
from calibratable import SHORT, WAFER, Launcher, arguments, digests, small, texts, wait_until

from halfbyte.calibrate import store
from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.store import read_stats
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.recipe.load import load_recipe

LAYERS = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its data, and statistics of all its layers."""
    folder = tmp_path_factory.mktemp("place")
    texts(folder / "texts.jsonl")
    small(folder / "source", layers=LAYERS)
    calibrate(folder / "source", folder / "stats", recipe(folder))
    return folder


def recipe(place, *sets, name=WAFER, samples=6):
    return with_data(load_recipe(name, [SHORT, *sets]), [f"news={place / 'texts.jsonl'}"], samples)


def stopped(place, folder, after, **how):
    """A calibration that was stopped after this number of layers."""

    def stop(progress):
        if f"measured layer {after} of" in progress.shard:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        calibrate(how.pop("source", place / "source"), folder, recipe(place), progress=stop, **how)
    assert (folder / f"hidden-{after:05d}.safetensors").exists()
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def with_config(place, folder, **changes):
    """The same weights under another config.json."""
    shutil.copytree(place / "source", folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= changes
    (folder / "config.json").write_text(json.dumps(dict(reversed(config.items()))))  # their order means nothing
    return folder


def test_another_config_does_not_resume(place, tmp_path):
    """Under another config.json the same weights route and scale differently, so statistics must not be mixed."""
    folder = stopped(place, tmp_path / "stats", 2)
    before = contents(folder)
    other = with_config(place, tmp_path / "other", routed_scaling_factor=1.5)
    with pytest.raises(UsageError, match="another calibration: config differs"):
        calibrate(other, folder, recipe(place))
    assert contents(folder) == before
    calibrate(with_config(place, tmp_path / "same"), folder, recipe(place))
    assert contents(folder) == contents(place / "stats")


def test_statistics_of_another_config_are_refused(place, tmp_path):
    other = with_config(place, tmp_path / "other", routed_scaling_factor=1.5)
    with pytest.raises(UsageError, match=r"measured with another config\.json"):
        quantize(other, tmp_path / "out", recipe(place), stats=place / "stats", verify_source=False)
    assert not (tmp_path / "out").exists()
    same = with_config(place, tmp_path / "same")
    quantize(same, tmp_path / "out", recipe(place), stats=place / "stats", verify_source=False)


def test_statistics_that_do_not_name_their_config_are_measured_again(place, tmp_path):
    about, layers = read_stats(place / "stats")
    earlier = store.Store(tmp_path / "stats", {key: about[key] for key in about if key != "config"}, LAYERS)
    earlier.begin()
    for layer, stats in layers.items():
        earlier.save(layer, stats)
    earlier.finish()
    with pytest.raises(UsageError, match=r"do not identify their config\.json.*measure again"):
        quantize(place / "source", tmp_path / "out", recipe(place), stats=tmp_path / "stats", verify_source=False)
    assert not (tmp_path / "out").exists()


def test_a_few_layers_and_all_of_them_do_not_share_a_folder(place, tmp_path):
    """In neither direction: partial statistics are not used for all layers, nor complete ones cut."""
    calibrate(place / "source", tmp_path / "two", recipe(place), layers=2)
    begun = stopped(place, tmp_path / "begun", 3)
    for folder, sentence, layers in (
        (tmp_path / "two", "statistics of 2 layers, but 4 are requested", None),
        (begun, "statistics of 4 layers, but 2 are requested", 2),
    ):
        before = contents(folder)
        with pytest.raises(UsageError, match=sentence):
            calibrate(place / "source", folder, recipe(place), layers=layers)
        assert contents(folder) == before
    assert list(read_stats(tmp_path / "two")[1]) == [0, 1]
    calibrate(place / "source", begun, recipe(place))
    assert contents(begun) == contents(place / "stats")


def test_statistics_of_all_layers_serve_the_first(place, tmp_path):
    """Statistics that are copied into the output folder are reused without being passed again."""
    for stats in (place / "stats", None):
        quantize(place / "source", tmp_path / "out", recipe(place), layers=2, stats=stats, verify_source=False)
    quantize(place / "source", tmp_path / "own", recipe(place), layers=2, verify_source=False)
    assert digests(tmp_path / "out") == digests(tmp_path / "own")


def test_two_runs_at_once_in_one_folder(place, tmp_path, halfbyte):
    """The second run is rejected, and the first is not affected."""
    launcher, folder = Launcher(tmp_path), tmp_path / "stats"
    words = ["calibrate", place / "source", *arguments(place / "texts.jsonl"), "-o", folder]
    launcher.start(*words, slow=0.15, wait=True)
    wait_until((folder / "layer-00000.safetensors").exists)
    code, _, said = halfbyte(*words)
    assert (code, said.count("✗")) == (2, 1), said
    assert said.startswith("✗ another run is writing into this folder")
    assert launcher.exit_code() == 0, launcher.words()
    launcher.close()
    assert contents(folder) == contents(place / "stats")
    assert halfbyte(*words)[0] == 0


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def garble(path):
    data = bytearray(path.read_bytes())
    data[8:40] = b"\xff" * 32
    path.write_bytes(data)


DAMAGES = [cut, garble, lambda path: path.write_bytes(b"")]


@pytest.mark.parametrize("damage", DAMAGES, ids=["cut", "garbled", "empty"])
@pytest.mark.parametrize("name", ["hidden-00003.safetensors", "layer-00001.safetensors", "stats.safetensors"])
def test_what_cannot_be_read_is_measured_again(place, tmp_path, name, damage):
    folder = tmp_path / "stats"
    shutil.copytree(place / "stats", folder) if name == "stats.safetensors" else stopped(place, folder, 3)
    damage(folder / name)
    said = []
    calibrate(place / "source", folder, recipe(place), progress=lambda p: said.append(p.shard))
    assert [line for line in said if "measured layer" in line] == [
        f"measured layer {n} of 4" for n in range(1, LAYERS + 1)
    ]
    assert contents(folder) == contents(place / "stats")


def test_damaged_files_do_not_stop_a_checkpoint(place, tmp_path):
    """A resumed run with only damaged files gives the same bytes."""

    def stop(progress):
        if "measured layer 3 of" in progress.shard:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        quantize(place / "source", tmp_path / "out", recipe(place), verify_source=False, progress=stop)
    for path in (tmp_path / "out/halfbyte/stats").glob("*-*.safetensors"):
        cut(path)
    quantize(place / "source", tmp_path / "out", recipe(place), verify_source=False)
    quantize(place / "source", tmp_path / "whole", recipe(place), verify_source=False)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
