"""Calibrated runs that are killed, stopped or changed: the same bytes in the end, or an error."""

import os
import random
import re
import shutil
import signal
import time

import pytest
from calibratable import DECART, WAFER, Launcher, arguments, digests, is_running, kill, small, texts, wait_until
from safetensors.torch import load_file, save_file

from halfbyte.calibrate.datasets import with_data
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import UsageError
from halfbyte.evidence.coverage import Coverage
from halfbyte.recipe.load import load_recipe

LAYERS = 5
KILLS = 18
SHORT = "calibrate.sequence_length=24"
SHARDS = ("shards=1MB",)  # 380 kB a layer: shards that span layers
MEASURED = re.compile(r"measured layer (\d+) of")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its data, and the output of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("place")
    texts(folder / "texts.jsonl")
    small(folder / "source", layers=LAYERS, experts=12, hidden=128, expert_width=96)
    quantize(folder / "source", folder / "whole", recipe(folder), verify_source=False)
    calibrate(folder / "source", folder / "stats", recipe(folder))
    return folder


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    started = Launcher(tmp_path_factory.mktemp("launcher"))
    yield started
    started.close()


def recipe(place, *sets, name=WAFER, samples=6, data="texts.jsonl"):
    return with_data(load_recipe(name, [SHORT, *SHARDS, *sets]), [f"news={place / data}"], samples)


def command(place, out):
    return ["quantize", place / "source", out, *arguments(place / "texts.jsonl", sets=SHARDS), "--threads", "2"]


def measured(words):
    """Return the measured layers, numbered from 0."""
    return [int(number) - 1 for number in MEASURED.findall(words)]


def hidden_files(folder):
    return sorted(folder.glob("hidden-*.safetensors"))


def strike(launcher, argv, begun, dice, number):
    """Start a command and kill it: every third time at any moment, otherwise while it works."""
    process = launcher.start(*argv, slow=0.003)
    if number % 3 == 0:
        time.sleep(dice.uniform(0, 0.5))
    else:
        wait_until(lambda: begun() or not is_running(process))
        time.sleep(dice.uniform(0, 0.25))
    struck = is_running(process)
    kill(process)
    return struck


def assert_each_once(layers):
    """Check that no layer was measured twice. A kept layer may have been killed before it was reported."""
    assert len(layers) == len(set(layers)), f"a layer was run again: {layers}"
    assert set(layers) <= set(range(LAYERS))


def test_sigkill_at_random_moments_loses_a_layer_at_most(place, launcher, tmp_path):
    """Eighteen kills, each resumed: no layer is measured twice, and the bytes are the same."""
    dice, out, whole = random.Random(5), tmp_path / "out", digests(place / "whole")
    stats = out / "halfbyte/stats"
    struck, ran, inside = 0, [], 0
    for number in range(KILLS):
        struck += strike(launcher, command(place, out), lambda: "tokens in" in launcher.words(), dice, number)
        ran += measured(launcher.words())
        assert len(ran) == len(set(ran)), f"a layer was run again: {ran}"
        inside += bool(hidden_files(stats))
        assert len(hidden_files(stats)) <= 2  # the next one is complete before the last is removed
        for name, digest in digests(out).items() if out.exists() else ():
            assert name.endswith(".part") or whole[name] == digest
        if (out / "config.json").exists():  # it finished before the signal arrived: start again
            shutil.rmtree(out)
            ran = []
    assert struck >= 15, "too many runs came through: adapt the waiting times"
    assert inside >= 5, "too few kills hit a run between two layers: adapt the waiting times"
    code, words = launcher.run(*command(place, out))
    assert code == 0, words
    assert digests(out) == whole
    assert_each_once(ran + measured(words))
    assert not list(out.rglob("*.part"))
    assert sorted(path.name for path in stats.iterdir()) == ["calibration.json", "stats.safetensors"]
    assert (stats / "stats.safetensors").read_bytes() == (place / "whole/halfbyte/stats/stats.safetensors").read_bytes()


def test_sigkill_while_only_measuring(place, launcher, tmp_path):
    dice, folder, ran = random.Random(6), tmp_path / "stats", []
    argv = ["calibrate", place / "source", *arguments(place / "texts.jsonl", sets=SHARDS), "-o", folder]
    for number in range(6):
        strike(launcher, argv, lambda: "tokens in" in launcher.words(), dice, number)
        ran += measured(launcher.words())
        if (folder / "stats.safetensors").exists():
            shutil.rmtree(folder)
            ran = []
    code, words = launcher.run(*argv)
    assert code == 0, words
    assert_each_once(ran + measured(words))
    assert sorted(path.name for path in folder.iterdir()) == ["calibration.json", "stats.safetensors"]
    assert (folder / "stats.safetensors").read_bytes() == (place / "stats/stats.safetensors").read_bytes()


@pytest.mark.parametrize("verb", ["quantize", "calibrate"])
def test_ctrl_c_stops_soon_and_says_how_to_go_on(place, launcher, tmp_path, verb):
    out = tmp_path / "out"
    argv = command(place, out)
    if verb == "calibrate":
        argv = ["calibrate", place / "source", *arguments(place / "texts.jsonl", sets=SHARDS), "-o", out]
    process = launcher.start(*argv, slow=0.01, wait=True)
    wait_until(lambda: len(measured(launcher.words())) >= 2)
    begin = time.monotonic()
    os.kill(process, signal.SIGINT)
    wait_until(lambda: "✗" in launcher.words())
    assert time.monotonic() - begin < 5  # and then Python takes a while to forget PyTorch
    assert launcher.exit_code() == 130
    words = launcher.words()
    assert "run the same command again to resume" in words
    assert "Traceback" not in words
    assert not list(out.rglob("*.part"))
    assert not (out / "config.json").exists()
    code, more = launcher.run(*argv)
    assert code == 0, more
    assert sorted(measured(words) + measured(more)) == list(range(LAYERS))
    assert f"measured layer {LAYERS} of {LAYERS}" in more  # also a resumed run counts to the end
    assert digests(out) == digests(place / ("whole" if verb == "quantize" else "stats"))


def test_a_finished_run_does_nothing_again(place, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(place / "whole", out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    said = []
    again = quantize(place / "source", out, recipe(place), verify_source=False, progress=lambda p: said.append(p.shard))
    assert again.resumed == again.shards
    assert times == {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    assert not [line for line in said if MEASURED.match(line)]
    assert again.coverage is not None
    recorded = Coverage.read(place / "whole/halfbyte/coverage.json")
    assert Coverage(**again.coverage.summary(), layers=tuple(again.coverage.layers)) == recorded


def test_a_damaged_shard_is_made_again_without_the_data_being_run(place, tmp_path):
    out, said = tmp_path / "out", []
    shutil.copytree(place / "whole", out)
    victim = sorted(out.glob("*.safetensors"))[1]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    quantize(place / "source", out, recipe(place), verify_source=False, progress=lambda p: said.append(p.shard))
    assert digests(out) == digests(place / "whole")
    assert not [line for line in said if MEASURED.match(line)]


def test_what_a_kill_left_beside_finished_statistics_goes(place, tmp_path):
    """Killed after the file was written, before its input files were removed."""
    out = tmp_path / "out"
    shutil.copytree(place / "whole", out)
    stats = out / "halfbyte/stats"
    for name in ("layer-00000.safetensors", "hidden-00005.safetensors"):
        (stats / name).write_bytes(b"left by a kill")
    quantize(place / "source", out, recipe(place), verify_source=False)
    assert sorted(path.name for path in stats.iterdir()) == ["calibration.json", "stats.safetensors"]


@pytest.mark.parametrize("verb", ["quantize", "calibrate"])
def test_a_kill_before_the_first_file_was_whole_is_no_obstacle(place, tmp_path, verb):
    out = tmp_path / "out"
    part = out / ("halfbyte/plan.json.part" if verb == "quantize" else "calibration.json.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b'{"fing')
    if verb == "quantize":
        quantize(place / "source", out, recipe(place), verify_source=False)
    else:
        calibrate(place / "source", out, recipe(place))
    assert not list(out.rglob("*.part"))


@pytest.fixture
def begun(place, tmp_path):
    """A run that was stopped after its second layer."""
    out = tmp_path / "out"

    def stop(progress):
        if "measured layer 2" in progress.shard:
            raise KeyboardInterrupt

    with pytest.raises(Exception, match="interrupted; 0 of 2 shards are complete"):
        quantize(place / "source", out, recipe(place), verify_source=False, progress=stop)
    assert hidden_files(out / "halfbyte/stats")
    return out


def refused(begun, match, **how):
    """Check that a run with changed options is rejected without side effects."""
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=match):
        quantize(how.pop("source"), begun, how.pop("recipe"), verify_source=False, **how)
    assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before


def test_other_data_does_not_resume(place, begun, tmp_path):
    other = texts(tmp_path / "texts.jsonl", seed=9)
    changed = with_data(recipe(place), [f"news={other}"], 6)
    refused(begun, r"another (plan|calibration)", source=place / "source", recipe=changed)


def test_the_same_file_with_other_texts_does_not_resume(place, begun, tmp_path):
    """The recipe names the same path, but its content changed."""
    kept = (place / "texts.jsonl").read_bytes()
    try:
        texts(place / "texts.jsonl", seed=9)
        refused(begun, "another calibration: tokens_sha256", source=place / "source", recipe=recipe(place))
    finally:
        (place / "texts.jsonl").write_bytes(kept)
    quantize(place / "source", begun, recipe(place), verify_source=False)
    assert digests(begun) == digests(place / "whole")


@pytest.mark.parametrize(
    "sets", [("calibrate.sequence_length=20",), ("quantize.scales=mse",), ("quantize.input_scale.backstop=layer_amax",)]
)
def test_another_recipe_does_not_resume(place, begun, sets):
    refused(begun, "another (plan|calibration)", source=place / "source", recipe=recipe(place, *sets))


def test_another_number_of_samples_does_not_resume(place, begun):
    refused(begun, "another (plan|calibration)", source=place / "source", recipe=recipe(place, samples=7))


def test_another_source_does_not_resume(place, begun, tmp_path):
    other = small(tmp_path / "other", layers=LAYERS, experts=12, hidden=128, expert_width=96, seed=1)
    refused(begun, "another calibration: source differs", source=other, recipe=recipe(place))


def test_other_statistics_do_not_resume(place, begun, tmp_path):
    calibrate(place / "source", tmp_path / "other", recipe(place, samples=8))
    match = "another calibration: tokens_sha256, rows, domains differ"
    refused(begun, match, source=place / "source", recipe=recipe(place), stats=tmp_path / "other")
    quantize(place / "source", begun, recipe(place), stats=place / "stats", verify_source=False)
    assert digests(begun) == digests(place / "whole")


def test_statistics_of_something_else_are_no_place_to_go_on(place, tmp_path):
    shutil.copytree(place / "stats", tmp_path / "stats")
    with pytest.raises(UsageError, match="another calibration: tokens_sha256"):
        calibrate(place / "source", tmp_path / "stats", recipe(place, samples=8))
    said = []
    for name in (WAFER, DECART):  # which measure the same
        made = recipe(place, name=name)
        calibrate(place / "source", tmp_path / "stats", made, progress=lambda p: said.append(p.shard))
    assert not [line for line in said if MEASURED.match(line)]


def test_hidden_states_without_their_layers_are_not_used(place, begun):
    """Deleted files are measured again."""
    (begun / "halfbyte/stats/layer-00000.safetensors").unlink()
    said = []
    quantize(place / "source", begun, recipe(place), verify_source=False, progress=lambda p: said.append(p.shard))
    assert [int(found[1]) for line in said if (found := MEASURED.match(line))] == list(range(1, LAYERS + 1))
    assert digests(begun) == digests(place / "whole")


def test_hidden_states_decide_what_follows(place, begun):
    """A test of the tests: other hidden states give other scales, so equal bytes mean that they were kept."""
    (path,) = hidden_files(begun / "halfbyte/stats")
    save_file({"hidden": load_file(path)["hidden"].flip(-1).contiguous()}, path)
    quantize(place / "source", begun, recipe(place), verify_source=False)
    assert digests(begun) != digests(place / "whole")
