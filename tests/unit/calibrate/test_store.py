"""Statistics on disk: complete or absent, bounded, and never confused with those of another run."""

import json

import numpy as np
import pytest
import torch

from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.calibrate.store import Store, read_stats, refuse_other, stats_sha256
from halfbyte.errors import MachineError, UsageError

ABOUT = {"version": 1, "source": "abc", "domains": {"prose": 8}, "rows": [4, 8]}
LAYERS = 3


def make_stats(layer):
    stats = LayerStats({"mlp.up_proj": float(layer + 1)}, ExpertStats.empty(3, 2))
    assert stats.experts is not None
    stats.experts.count[:] = layer
    stats.experts.sums["gn"][:] = layer / 7
    return stats


def same(one, other):
    ours, theirs = one.tensors(), other.tensors()
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "stats", ABOUT, LAYERS)
    made.begin()
    return made


def finish(store):
    for layer in range(LAYERS):
        store.save(layer, make_stats(layer))
    store.finish()


def write_stats(path, tensors, about=ABOUT):
    """Write statistics with a valid checksum."""
    import safetensors.numpy

    said = json.dumps({**about, "sha256": stats_sha256(about, tensors)})
    path.write_bytes(safetensors.numpy.save(tensors, {"halfbyte": said}))


def files(store):
    return sorted(path.name for path in store.folder.iterdir())


def test_layers_round_trip(store):
    assert store.load(0) is None
    store.save(0, make_stats(4))
    assert same(store.load(0), make_stats(4))


def test_only_the_last_hidden_states_are_kept(store):
    for layer in range(1, 4):
        store.save(layer - 1, make_stats(layer))
        store.save_hidden(layer, torch.full((2, 3), float(layer), dtype=torch.bfloat16))
        assert [name for name in files(store) if "hidden" in name] == [f"hidden-0000{layer}.safetensors"]
    resumed = store.resume()
    assert (resumed.next_layer, resumed.hidden.dtype) == (3, torch.bfloat16)
    assert torch.equal(resumed.hidden, torch.full((2, 3), 3.0, dtype=torch.bfloat16))


def test_hidden_states_bits_survive(store):
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    store.save_hidden(0, values)
    assert torch.equal(store.resume().hidden.view(torch.int16), values.view(torch.int16))


def test_disk_space_for_hidden_states(store):
    """Two of them, minus existing files; none once the statistics are finished."""
    assert store.missing_nbytes(1000) == 2000
    store.save_hidden(1, torch.zeros(50))
    size = (store.folder / "hidden-00001.safetensors").stat().st_size
    assert store.missing_nbytes(1000) == 2000 - size
    assert store.missing_nbytes(1) == 0
    finish(store)
    assert store.missing_nbytes(1000) == 0


def test_resuming_stops_at_a_missing_layer(store):
    store.save_hidden(2, torch.zeros(1))
    store.save(1, make_stats(1))
    assert (store.resume().next_layer, store.resume().hidden) == (0, None)
    store.save(0, make_stats(0))
    assert store.resume().next_layer == 2


def test_after_a_kill_the_later_hidden_states_count(store):
    for layer in range(3):
        store.save(layer, make_stats(layer))
    store.save_hidden(3, torch.ones(1))
    kept = (store.folder / "hidden-00003.safetensors").read_bytes()
    store.save_hidden(2, torch.zeros(1))
    (store.folder / "hidden-00003.safetensors").write_bytes(kept)
    resumed = store.resume()
    assert (resumed.next_layer, resumed.hidden.tolist()) == (3, [1.0])


def test_a_run_resumes_after_the_measured_layers(store):
    for layer in range(2):
        store.save(layer, make_stats(layer))
    store.save_hidden(2, torch.ones(1))
    resumed = store.resume()
    assert [*resumed.measured] == [0, 1]
    assert same(resumed.measured[1], make_stats(1))
    assert not resumed.complete
    on_disk = store.resume(load=False)
    assert ([*on_disk.measured], on_disk.next_layer, on_disk.hidden) == ([0, 1], 2, None)


def test_layers_that_must_run_again_restart_at_the_first(store):
    for layer in range(2):
        store.save(layer, make_stats(layer))
    store.save_hidden(2, torch.ones(1))
    assert store.resume(again=[2, 3]).next_layer == 2
    assert (store.resume(again=[1]).next_layer, store.resume(again=[1]).measured) == (0, {})
    finish(store)
    assert store.resume().complete
    assert [*store.resume().measured] == [*range(store.layers)]
    assert (store.resume(again=[3]).complete, store.resume(again=[3]).next_layer) == (False, 0)


def test_unreadable_hidden_states_fall_back_to_earlier_ones(store):
    for layer in range(3):
        store.save(layer, make_stats(layer))
    store.save_hidden(2, torch.zeros(1))
    (store.folder / "hidden-00003.safetensors").write_bytes(b"torn")
    (store.folder / "hidden-copy.safetensors").write_bytes(b"not ours")
    assert store.resume().next_layer == 2
    (store.folder / "layer-00001.safetensors").write_bytes(b"torn")
    assert store.load(1) is None
    assert (store.resume().next_layer, store.resume().hidden) == (0, None)


def test_a_layer_missing_at_the_end_is_an_error(store):
    store.save(0, make_stats(0))
    with pytest.raises(MachineError, match="cannot be read back"):
        store.finish()


def test_finishing_leaves_one_file(store):
    for layer in range(3):
        store.save(layer, make_stats(layer))
        store.save_hidden(layer + 1, torch.zeros(1))
    assert store.whole() is None
    store.finish()
    assert files(store) == ["calibration.json", "stats.safetensors"]
    about, layers = read_stats(store.folder)
    assert about == ABOUT
    assert list(layers) == [0, 1, 2]
    assert all(same(found, make_stats(layer)) for layer, found in layers.items())
    assert read_stats(store.folder / "stats.safetensors")[0] == ABOUT
    assert store.whole() is not None


def test_leftovers_of_a_kill_are_removed(store):
    store.save(0, make_stats(0))
    (store.folder / "layer-00001.safetensors.part").write_bytes(b"half")
    store.begin()
    assert files(store) == ["calibration.json", "layer-00000.safetensors"]
    finish(store)
    for name in ("layer-00000.safetensors", "hidden-00001.safetensors"):
        (store.folder / name).write_bytes(b"not yet removed")
    store.whole()
    assert files(store) == ["calibration.json", "stats.safetensors"]


def test_another_calibration_is_refused(store):
    Store(store.folder, ABOUT, LAYERS).check()
    Store(store.folder / "new", ABOUT, LAYERS).check()
    with pytest.raises(UsageError, match="another calibration: source, rows differ;") as caught:
        Store(store.folder, {**ABOUT, "source": "def", "rows": [5, 8]}, LAYERS).check()
    assert caught.value.where == str(store.folder)
    with pytest.raises(UsageError, match="another calibration: version differs;"):
        refuse_other({**ABOUT, "version": 0}, ABOUT, "here")
    with pytest.raises(UsageError, match="more differs"):
        refuse_other(ABOUT, {**ABOUT, "more": 1}, "here")
    for torn in ("{torn", "[1]"):
        (store.folder / "calibration.json").write_text(torn)
        with pytest.raises(UsageError, match="another calibration"):
            store.check()


def test_another_number_of_layers_is_refused(store):
    kept = (store.folder / "calibration.json").read_bytes()
    for others in (LAYERS - 1, LAYERS + 1):
        other = Store(store.folder, ABOUT, others)
        for refused in (other.check, other.begin):
            with pytest.raises(UsageError, match=f"for statistics of 3 layers, but {others} are requested"):
                refused()
    assert (store.folder / "calibration.json").read_bytes() == kept


def test_only_all_layers_count_as_complete(store):
    """Complete statistics may be placed there (`quantize --stats`): extra layers are fine, missing ones are not."""
    finish(store)
    assert list(Store(store.folder, ABOUT, 2).whole()) == [0, 1]
    store.save(3, make_stats(3))
    assert Store(store.folder, ABOUT, 4).whole() is None
    assert "layer-00003.safetensors" in files(store)


def test_a_description_survives_the_file(store):
    """Values compared after a resume went through JSON: lists and tuples must compare equal."""
    stored = json.loads((store.folder / "calibration.json").read_text())
    refuse_other(stored, ABOUT, "here")


@pytest.mark.parametrize("data", [b"", b"not a file of tensors", None])
def test_a_file_without_statistics_is_refused(tmp_path, data):
    path = tmp_path / "stats.safetensors"
    if data is None:
        import safetensors.numpy

        data = safetensors.numpy.save({"layers.0.x": np.zeros(1)})
    path.write_bytes(data)
    with pytest.raises(UsageError, match="not a statistics file"):
        read_stats(tmp_path)


def test_a_missing_or_unfinished_file_is_refused(store, tmp_path):
    with pytest.raises(UsageError, match=r"no finished statistics found.*command to finish them"):
        read_stats(store.folder)
    with pytest.raises(UsageError, match=r"no finished statistics found.*pass the OUT of `calibrate`"):
        read_stats(tmp_path / "nowhere")


def test_a_file_without_a_tensor_is_refused(store):
    import safetensors.numpy

    finish(store)
    path = store.folder / "stats.safetensors"
    tensors = safetensors.numpy.load(path.read_bytes())
    tensors.pop("layers.0.experts.sum_gn")
    write_stats(path, tensors)
    with pytest.raises(UsageError, match=r"not a statistics file: .*sum_gn"):
        read_stats(store.folder)


@pytest.fixture
def finished(store):
    """Finished statistics: their file and contents."""
    import safetensors.numpy

    finish(store)
    path = store.folder / "stats.safetensors"
    return path, safetensors.numpy.load(path.read_bytes())


def test_a_changed_bit_is_detected(finished):
    path, tensors = finished
    whole = path.read_bytes()
    write_stats(path, tensors)
    assert read_stats(path)[0] == ABOUT
    begin = len(whole) - sum(array.nbytes for array in tensors.values())
    for at in range(begin, len(whole), 37):
        data = bytearray(whole)
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(UsageError, match="damaged: checksum mismatch"):
            read_stats(path)
    path.write_bytes(whole.replace(b"abc", b"abd"))  # what they are of
    with pytest.raises(UsageError, match="damaged: checksum mismatch"):
        read_stats(path)


def test_statistics_without_a_checksum_are_measured_again(finished):
    import safetensors.numpy

    path, tensors = finished
    path.write_bytes(safetensors.numpy.save(tensors, {"halfbyte": json.dumps(ABOUT)}))
    with pytest.raises(UsageError, match=r"have no checksum.*measure again"):
        read_stats(path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"source": ["abc"]}, "'source' is damaged"),
        ({"config": 1}, "'config' is damaged"),
        ({"domains": "prose"}, "'domains' is damaged"),
        ({"domains": None}, "'domains' is damaged"),
    ],
)
def test_a_record_of_other_kinds_is_refused(finished, change, what):
    path, tensors = finished
    write_stats(path, tensors, {**ABOUT, **change})
    with pytest.raises(UsageError, match=f"not a statistics file: {what}"):
        read_stats(path)


def test_a_record_without_its_description_is_refused(finished):
    path, tensors = finished
    write_stats(path, tensors, {key: value for key, value in ABOUT.items() if key != "domains"})
    with pytest.raises(UsageError, match="not a statistics file: 'domains' is missing"):
        read_stats(path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize(
    "name", ["experts.input_amax", "experts.down_amax", "experts.sum_gn", "input_amax.mlp.up_proj"]
)
def test_impossible_values_are_refused(finished, name, bad):
    path, tensors = finished
    wrong = tensors[f"layers.1.{name}"].copy()
    wrong.reshape(-1)[-1] = bad
    write_stats(path, {**tensors, f"layers.1.{name}": wrong})
    with pytest.raises(UsageError, match=f"impossible values in layers.1.{name}"):
        read_stats(path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("seen", np.zeros(4, np.int64)),
        ("seen", np.zeros(3, np.float64)),
        ("input_amax", np.zeros((3, 2), np.float32)),
        ("down_amax", np.zeros(3, np.float64)),
        ("sum_gn", np.zeros((2, 3))),
        ("max_n", np.zeros(6)),
        ("count", np.zeros(3, np.int64)),
        ("count", np.zeros((3, 2), np.float32)),
    ],
)
def test_forged_statistics_of_other_shapes_are_refused(tmp_path, name, array):
    """Their checksum is valid: an attacker can compute one."""
    tensors = {f"layers.0.{key}": value for key, value in make_stats(0).tensors().items()}
    write_stats(tmp_path / "stats.safetensors", {**tensors, f"layers.0.experts.{name}": array})
    with pytest.raises(UsageError, match="not a statistics file"):
        read_stats(tmp_path)
