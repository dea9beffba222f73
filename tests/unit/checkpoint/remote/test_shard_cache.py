"""The bounded shard cache: fetching, eviction, and no deadlock."""

import contextlib
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from halfbyte.checkpoint.remote import shard_cache as module
from halfbyte.checkpoint.remote.download import StoppedError
from halfbyte.checkpoint.remote.shard_cache import ShardCache
from halfbyte.checkpoint.remote.store import Entry
from halfbyte.errors import CheckpointError, MachineError

NBYTES = 1000


class Store:
    """Files of a thousand bytes in memory; downloads can be delayed."""

    where, label, pin = "test://", "test", "1"

    def __init__(self, names, sizes=None):
        self.data = {name: os.urandom((sizes or {}).get(name, NBYTES)) for name in names}
        self.entries = {name: Entry(len(data), "", None) for name, data in self.data.items()}
        self.fetched = []
        self.gates = {}
        self.failing = set()

    def stream(self, name, begin, end):
        self.fetched.append(name)
        if name in self.gates:
            assert self.gates[name].wait(20)
        if name in self.failing:
            raise CheckpointError(f"no {name}")
        yield self.data[name][begin:end]

    def refuse_changed(self, name):
        pass


def names(letters):
    return [f"{letter}.safetensors" for letter in letters]


def steps(*letters):
    return [((str(number), None), frozenset(names(some))) for number, some in enumerate(letters)]


@pytest.fixture
def make(tmp_path):
    caches = []

    def call(letters, room, **options):
        store = Store(names(letters), options.get("sizes"))
        cache = ShardCache(store, tmp_path, {}, int(room * NBYTES))
        caches.append(cache)
        return store, cache

    yield call
    for cache in caches:
        cache.close()


def until(true, seconds=10):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def here(folder):
    return sorted(path.name[0] for path in folder.glob("*.safetensors"))


def read(cache, store, letter):
    name = f"{letter}.safetensors"
    assert cache.open(name).read(0, len(store.data[name])).tobytes() == store.data[name]


def settled(store):
    count = len(store.fetched)
    time.sleep(0.1)
    return len(store.fetched) == count


def test_shards_are_prefetched_in_step_order_up_to_the_limit(make, tmp_path):
    store, cache = make("abcde", 3)
    cache.expect(steps("c", "ca", "e", "b", "d"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "c", "e"])
    assert settled(store)
    assert sorted(store.fetched) == names("ace")


def test_shards_that_no_step_needs_are_evicted(make, tmp_path):
    store, cache = make("abc", 1)
    cache.expect(steps("a", "ab"[1], "c"), lambda _: None)
    for number, letter in enumerate("abc"):
        until(lambda letter=letter: here(tmp_path) == [letter])
        read(cache, store, letter)
        cache.finished((str(number), None))
    until(lambda: here(tmp_path) == [])
    assert Counter(store.fetched) == dict.fromkeys(names("abc"), 1)


def test_a_shard_of_two_steps_stays_until_the_second_is_finished(make, tmp_path):
    _, cache = make("ab", 2)
    cache.expect(steps("a", "ab"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    cache.finished(("0", None))
    assert here(tmp_path) == ["a", "b"]
    cache.finished(("1", None))
    assert here(tmp_path) == []


def test_read_shards_are_kept_until_final_if_there_is_space(make, tmp_path):
    store, cache = make("abc", 2)
    cache.expect(steps("a", "b", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    store.gates["c.safetensors"] = threading.Event()
    cache.used(("0", None))
    until(lambda: here(tmp_path) == ["b"])  # room is short, so it goes
    store.gates["c.safetensors"].set()
    until(lambda: here(tmp_path) == ["b", "c"])
    cache.used(("1", None))
    cache.used(("2", None))
    assert settled(store)
    assert here(tmp_path) == ["b", "c"]
    cache.finished(("1", None))
    assert here(tmp_path) == ["c"]


def test_a_small_later_shard_does_not_take_the_space(make, tmp_path):
    store, cache = make("abc", 2, sizes={"b.safetensors": 2 * NBYTES, "c.safetensors": 10})
    cache.expect(steps("a", "b", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a"])
    assert settled(store)
    assert store.fetched == names("a")


def test_an_unexpected_read_evicts_the_shard_needed_last(make, tmp_path):
    store, cache = make("abcx", 3)
    cache.expect(steps("a", "b", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b", "c"])
    time.sleep(0.3)  # a file has its name a moment before the cache knows
    read(cache, store, "x")
    assert here(tmp_path) == ["a", "b", "x"]


def test_a_read_ahead_of_its_step_waits_for_the_step_before(make, tmp_path):
    store, cache = make("abc", 2)
    cache.expect(steps("ab", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(read, cache, store, "c")
        time.sleep(0.1)
        assert not early.done()
        assert here(tmp_path) == ["a", "b"]  # which would have to come twice
        cache.finished(("0", None))
        early.result(10)
    assert Counter(store.fetched) == dict.fromkeys(names("abc"), 1)


def test_a_wrong_step_order_only_costs_time(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.2)
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    store, cache = make("abc", 2)
    cache.expect(steps("ab", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    read(cache, store, "c")  # and step 0 will never be finished before
    assert len(here(tmp_path)) == 2
    read(cache, store, "a")
    read(cache, store, "b")


def test_without_steps_the_least_recently_used_shard_is_evicted(make, tmp_path):
    store, cache = make("abc", 2)
    for letter in "abac":
        read(cache, store, letter)
    assert here(tmp_path) == ["a", "c"]
    assert store.fetched == names("abc")


def test_a_shard_in_use_is_not_evicted(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.1)
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    store, cache = make("ab", 1)
    with ThreadPoolExecutor(1) as pool:
        with cache.borrow("a.safetensors") as file:
            other = pool.submit(read, cache, store, "b")
            time.sleep(0.3)
            assert not other.done()
            assert file.read(0, NBYTES).tobytes() == store.data["a.safetensors"]
        other.result(10)
    assert here(tmp_path) == ["b"]


def test_many_readers_never_exceed_the_limit(make, tmp_path):
    store, cache = make("abcdefgh", 3)
    order = ["ab", "bc", "cd", "de", "ef", "fg", "gh"]
    cache.expect(steps(*order), lambda _: None)
    done, peak = threading.Event(), 0

    def look():
        found = {}
        for path in tmp_path.rglob("*.safetensors"):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                found[about.st_ino] = about.st_size
        return found

    def watch():
        nonlocal peak
        while not done.is_set():
            found = look()
            if found == look():  # else files came and went while they were counted
                peak = max(peak, sum(found.values()))

    def step(number):
        for _ in range(5):
            for letter in order[number]:
                read(cache, store, letter)
        cache.finished((str(number), None))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(step, range(len(order))))
    done.set()
    watcher.join()
    assert 0 < peak <= 3 * NBYTES
    assert here(tmp_path) == []


def test_a_shard_larger_than_the_cache_is_refused(make):
    _, cache = make("a", 0.5)
    with pytest.raises(MachineError, match=r"shard 'a.safetensors' has 1.0 kB, more than the cache limit of 500 bytes"):
        cache.open("a.safetensors").read(0, 1)


def test_a_fetch_error_is_raised_by_the_read_and_others_continue(make):
    store, cache = make("ab", 2)
    store.failing.add("a.safetensors")
    cache.expect(steps("a", "b"), lambda _: None)
    read(cache, store, "b")
    with pytest.raises(CheckpointError, match=r"no a.safetensors"):
        cache.open("a.safetensors").read(0, 1)


def test_stop_wakes_all_waiting_readers(make):
    store, cache = make("ab", 2)
    store.gates["a.safetensors"] = gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, cache, store, "a")
        until(lambda: store.fetched)
        cache.stop()
        with pytest.raises(StoppedError):
            waiting.result(5)
    gate.set()


def test_leftovers_count_toward_the_limit_and_are_evicted_first(make, tmp_path):
    for letter in "xyz":
        (tmp_path / f"{letter}.safetensors").write_bytes(bytes(NBYTES))
    store, cache = make("abxyz", 2)
    cache.expect(steps("a", "b"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    assert settled(store)


def test_leftovers_of_a_larger_cache_are_cut_to_the_limit(make, tmp_path):
    for letter in "abcd":
        (tmp_path / f"{letter}.safetensors").write_bytes(bytes(NBYTES))
    store, cache = make("abcd", 2)
    for name in names("ab"):
        store.gates[name] = threading.Event()
    cache.expect(steps("a", "b", "c", "d"), lambda _: None)
    until(lambda: len(store.fetched) == 2)
    assert here(tmp_path) == []  # a and b are fetched again (no known checksum), c and d were evicted
    for gate in store.gates.values():
        gate.set()


def test_close_deletes_shards_only_if_used_up(make, tmp_path):
    store, cache = make("ab", 2)
    read(cache, store, "a")
    cache.close()
    assert here(tmp_path) == ["a"]
    store, cache = make("ab", 2)
    read(cache, store, "b")
    cache.close(used_up=True)
    assert [path for path in tmp_path.rglob("*")] == []
