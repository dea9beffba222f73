"""Runs on a real Ray cluster whose nodes fetch the source themselves: the bytes of a local run, each shard once."""

import _thread
import os
import threading
import time
from collections import Counter

import pytest
from attacks.bounds import within
from calibratable import WAFER, small, texts
from fetching import Watch, weights_nbytes
from pruning import plan_of, some
from range_hub import COMMIT, REPO, Fault, RangeHub
from ray_cluster import RayCluster, everything

from halfbyte.calibrate.datasets import with_data
from halfbyte.checkpoint.remote.address import Cache
from halfbyte.checkpoint.remote.mirror import open_remote
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.errors import InterruptedRunError, UsageError
from halfbyte.prune.options import recipe_of_plan
from halfbyte.recipe.load import load_recipe

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'halfbyte[ray]'")

MXFP4 = "kimi-k2.6-mxfp4-wafer"
ADDRESS = f"hf://{REPO}"
LIMIT = 400_000  # of 1.3 MB; the largest shard has 317 kB


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    texts(folder / "texts.jsonl")
    return small(folder / "source", layers=4, experts=12, hidden=128, expert_width=96)


@pytest.fixture(scope="module")
def hub(source):
    with pytest.MonkeyPatch.context() as patch:
        from range_hub import speak_to

        served = RangeHub(source)
        speak_to(served, patch)
        yield served
        served.close()


@pytest.fixture(scope="module")
def cluster(hub):
    proxies = {name: "" for name in os.environ if "proxy" in name.lower()}
    started = RayCluster(**proxies, HF_ENDPOINT=hub.url, NO_PROXY="*")
    ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
    yield started
    ray.shutdown()
    started.close()


@pytest.fixture
def run(hub, cluster, tmp_path):
    hub.forget()
    hub.faults.clear()
    cluster.faults.clear()

    def call(out, recipe, *, limit=LIMIT, **more):
        given = open_remote(ADDRESS, Cache(tmp_path / "cache", limit))
        return quantize(given, tmp_path / out, recipe, ray=cluster.address, **more)

    return call


def same(tmp_path, source, recipe, **more):
    """Return whether `out` has every file of a local run, except its origin."""
    quantize(source, tmp_path / "local", recipe, **more)
    found = everything(tmp_path / "out")
    found.pop("halfbyte/fetched.json")
    found.pop("halfbyte/verified.json", None)
    local = everything(tmp_path / "local")
    local.pop("halfbyte/verified.json", None)
    return found == local


def whole_reads(hub, source):
    """Return how often each shard was fetched completely."""
    sizes = {path.name: path.stat().st_size for path in source.glob("*.safetensors")}
    return Counter(name for name, begin, end in hub.asked if begin == 0 and end == sizes.get(name))


def test_each_machine_fetches_what_its_shards_are_made_of(tmp_path, source, hub, cluster, run):
    cluster.faults.slow(0)  # and note who works
    with Watch(tmp_path / "cache") as watch:
        result = run("out", load_recipe(MXFP4))
    assert result.verified_shards == result.source_shards > 4
    assert same(tmp_path, source, load_recipe(MXFP4))
    assert 0 < watch.most <= 2 * LIMIT, "two machines that share this disk"
    assert weights_nbytes(tmp_path / "cache") == 0
    assert not list((tmp_path / "cache").glob(f"*/{COMMIT}/.tasks/*"))
    # Shards are smaller than a header read, so the driver and each worker read them completely.
    readers = 1 + len({process for process, _ in cluster.faults.jobs()})
    assert set(whole_reads(hub, source).values()) == {readers + 1}, "and one task each fetches it"


def test_a_worker_that_dies_between_leaves_nothing(tmp_path, source, cluster, run):
    cluster.faults.add("kill", 2)
    said = []
    run("out", load_recipe(MXFP4), progress=lambda progress: said.append(progress.shard))
    assert cluster.faults.left("kill") == 0
    assert sum("retrying, attempt" in line for line in said) == 2
    assert same(tmp_path, source, load_recipe(MXFP4))
    assert weights_nbytes(tmp_path / "cache") == 0
    assert not list((tmp_path / "cache").glob(f"*/{COMMIT}/.tasks/*"))


def test_a_shard_that_comes_damaged_ends_the_run_which_then_goes_on(tmp_path, source, hub, run):
    victim = sorted(source.glob("*.safetensors"))[2].name
    hub.faults.append(Fault(victim, "wrong", skip=1, least_nbytes=1 << 15, times=100))
    with pytest.raises(Exception, match=f"shard '{victim}' was damaged in two downloads"):
        run("out", load_recipe(MXFP4))
    hub.faults.clear()
    run("out", load_recipe(MXFP4))
    assert same(tmp_path, source, load_recipe(MXFP4))


def test_ctrl_c_while_shards_come_leaves_nothing(tmp_path, hub, run):
    hub.faults.append(Fault("model-", "slow", times=10**6, seconds=0.05, least_nbytes=1 << 15))
    seen = []

    def interrupt():
        end = time.monotonic() + 60
        while not seen and time.monotonic() < end:
            seen.extend((tmp_path / "cache").glob(f"*/{COMMIT}/.tasks/*/.parts/model*"))
            time.sleep(0.01)
        _thread.interrupt_main()

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with within(150), pytest.raises(InterruptedRunError):
        run("out", load_recipe(MXFP4))
    watcher.join()
    assert seen
    assert not list((tmp_path / "cache").glob(f"*/{COMMIT}/.tasks/*"))


def test_what_a_run_on_one_machine_has_left_takes_no_room(tmp_path, source, run):
    left = open_remote(ADDRESS, Cache(tmp_path / "cache", LIMIT)).root / sorted(source.glob("*.safetensors"))[1].name
    left.write_bytes(b"of a run that was killed")
    run("out", load_recipe(MXFP4))
    assert same(tmp_path, source, load_recipe(MXFP4))
    assert weights_nbytes(tmp_path / "cache") == 0


def test_pruning_and_given_statistics(tmp_path, source, run):
    plan = plan_of(source, some(source, 7))
    run("out", recipe_of_plan(plan, "layers"), prune_plan=plan)
    assert same(tmp_path, source, recipe_of_plan(plan, "layers"), prune_plan=plan)


def test_what_is_measured_is_measured_on_one_machine_first(tmp_path, source, run):
    short = ["calibrate.sequence_length=24", "shards=layers"]
    recipe = with_data(load_recipe(WAFER, short), [f"news={source.parent / 'texts.jsonl'}"], 4)
    with pytest.raises(UsageError, match="would fetch the complete remote source on every node") as refused:
        run("out", recipe)
    assert "halfbyte calibrate" in refused.value.fix
    assert not (tmp_path / "out").exists()
    calibrate(source, tmp_path / "stats", recipe)
    run("out", recipe, stats=tmp_path / "stats")
    assert same(tmp_path, source, recipe, stats=tmp_path / "stats")


def test_a_cache_that_is_too_small_for_a_task_is_said_first(tmp_path, hub, run):
    hub.forget()
    with pytest.raises(UsageError, match=r"is needed, 393\.6 kB, but the cache limit is 150\.0 kB"):
        run("out", load_recipe(MXFP4), limit=150_000)
    assert not (tmp_path / "out").exists()
    assert weights_nbytes(tmp_path / "cache") == 0
