"""The bounded shard cache: fetching, eviction, and no deadlock."""

import contextlib
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from halfbyte.checkpoint.remote import shard_cache as module
from halfbyte.checkpoint.remote.retry import StoppedError
from halfbyte.checkpoint.remote.shard_cache import Shelf
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
    made = []

    def call(letters, room, **options):
        store = Store(names(letters), options.get("sizes"))
        shelf = Shelf(store, tmp_path, {}, room * NBYTES)
        made.append(shelf)
        return store, shelf

    yield call
    for shelf in made:
        shelf.close()


def until(true, seconds=10):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def here(folder):
    return sorted(path.name[0] for path in folder.glob("*.safetensors"))


def read(shelf, store, letter):
    name = f"{letter}.safetensors"
    assert shelf.open(name).read(0, len(store.data[name])).tobytes() == store.data[name]


def settled(store):
    count = len(store.fetched)
    time.sleep(0.1)
    return len(store.fetched) == count


def test_shards_come_ahead_in_the_order_of_the_steps_as_far_as_there_is_room(make, tmp_path):
    store, shelf = make("abcde", 3)
    shelf.expect(steps("c", "ca", "e", "b", "d"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "c", "e"])
    assert settled(store)
    assert sorted(store.fetched) == names("ace")


def test_what_no_step_reads_any_more_goes_and_makes_room(make, tmp_path):
    store, shelf = make("abc", 1)
    shelf.expect(steps("a", "ab"[1], "c"), lambda _: None)
    for number, letter in enumerate("abc"):
        until(lambda letter=letter: here(tmp_path) == [letter])
        read(shelf, store, letter)
        shelf.finished((str(number), None))
    until(lambda: here(tmp_path) == [])
    assert Counter(store.fetched) == dict.fromkeys(names("abc"), 1)


def test_a_shard_of_two_steps_stays_until_the_second_is_finished(make, tmp_path):
    _, shelf = make("ab", 2)
    shelf.expect(steps("a", "ab"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    shelf.finished(("0", None))
    assert here(tmp_path) == ["a", "b"]
    shelf.finished(("1", None))
    assert here(tmp_path) == []


def test_what_was_read_stays_until_it_is_final_if_there_is_room(make, tmp_path):
    store, shelf = make("abc", 2)
    shelf.expect(steps("a", "b", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    store.gates["c.safetensors"] = threading.Event()
    shelf.used(("0", None))
    until(lambda: here(tmp_path) == ["b"])  # room is short, so it goes
    store.gates["c.safetensors"].set()
    until(lambda: here(tmp_path) == ["b", "c"])
    shelf.used(("1", None))
    shelf.used(("2", None))
    assert settled(store)
    assert here(tmp_path) == ["b", "c"]
    shelf.finished(("1", None))
    assert here(tmp_path) == ["c"]


def test_a_small_one_that_comes_late_does_not_take_the_room(make, tmp_path):
    store, shelf = make("abc", 2, sizes={"b.safetensors": 2 * NBYTES, "c.safetensors": 10})
    shelf.expect(steps("a", "b", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a"])
    assert settled(store)
    assert store.fetched == names("a")


def test_who_reads_what_nobody_expected_gets_it_at_the_cost_of_what_is_needed_last(make, tmp_path):
    store, shelf = make("abcx", 3)
    shelf.expect(steps("a", "b", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b", "c"])
    time.sleep(0.3)  # a file has its name a moment before the shelf knows
    read(shelf, store, "x")
    assert here(tmp_path) == ["a", "b", "x"]


def test_who_comes_too_early_waits_for_the_step_before(make, tmp_path):
    store, shelf = make("abc", 2)
    shelf.expect(steps("ab", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(read, shelf, store, "c")
        time.sleep(0.1)
        assert not early.done()
        assert here(tmp_path) == ["a", "b"]  # which would have to come twice
        shelf.finished(("0", None))
        early.result(10)
    assert Counter(store.fetched) == dict.fromkeys(names("abc"), 1)


def test_an_order_that_was_wrong_costs_time_and_nothing_else(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.2)
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    store, shelf = make("abc", 2)
    shelf.expect(steps("ab", "c"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    read(shelf, store, "c")  # and step 0 will never be finished before
    assert len(here(tmp_path)) == 2
    read(shelf, store, "a")
    read(shelf, store, "b")


def test_without_an_order_what_was_read_longest_ago_goes(make, tmp_path):
    store, shelf = make("abc", 2)
    for letter in "abac":
        read(shelf, store, letter)
    assert here(tmp_path) == ["a", "c"]
    assert store.fetched == names("abc")


def test_what_is_being_read_does_not_go(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.1)
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    store, shelf = make("ab", 1)
    with ThreadPoolExecutor(1) as pool:
        with shelf.borrow("a.safetensors") as file:
            other = pool.submit(read, shelf, store, "b")
            time.sleep(0.3)
            assert not other.done()
            assert file.read(0, NBYTES).tobytes() == store.data["a.safetensors"]
        other.result(10)
    assert here(tmp_path) == ["b"]


def test_many_readers_of_few_places_never_exceed_the_bound(make, tmp_path):
    store, shelf = make("abcdefgh", 3)
    order = ["ab", "bc", "cd", "de", "ef", "fg", "gh"]
    shelf.expect(steps(*order), lambda _: None)
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
                read(shelf, store, letter)
        shelf.finished((str(number), None))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(step, range(len(order))))
    done.set()
    watcher.join()
    assert 0 < peak <= 3 * NBYTES
    assert here(tmp_path) == []


def test_a_shard_larger_than_the_cache_is_refused_in_a_sentence(make):
    _, shelf = make("a", 0.5)
    with pytest.raises(MachineError, match=r"shard 'a.safetensors' has 1.0 kB, more than the cache limit of 0.5 kB"):
        shelf.open("a.safetensors").read(0, 1)


def test_an_error_of_fetching_is_raised_where_it_is_read_and_others_go_on(make):
    store, shelf = make("ab", 2)
    store.failing.add("a.safetensors")
    shelf.expect(steps("a", "b"), lambda _: None)
    read(shelf, store, "b")
    with pytest.raises(CheckpointError, match=r"no a.safetensors"):
        shelf.open("a.safetensors").read(0, 1)


def test_a_stop_wakes_all_who_wait(make):
    store, shelf = make("ab", 2)
    store.gates["a.safetensors"] = gate = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(read, shelf, store, "a")
        until(lambda: store.fetched)
        shelf.stop()
        with pytest.raises(StoppedError):
            waiting.result(5)
    gate.set()


def test_what_an_earlier_run_left_counts_and_goes_first_if_nobody_needs_it(make, tmp_path):
    for letter in "xyz":
        (tmp_path / f"{letter}.safetensors").write_bytes(bytes(NBYTES))
    store, shelf = make("abxyz", 2)
    shelf.expect(steps("a", "b"), lambda _: None)
    until(lambda: here(tmp_path) == ["a", "b"])
    assert settled(store)


def test_what_a_larger_cache_left_is_cut_to_the_bound_before_anything_comes(make, tmp_path):
    for letter in "abcd":
        (tmp_path / f"{letter}.safetensors").write_bytes(bytes(NBYTES))
    store, shelf = make("abcd", 2)
    for name in names("ab"):
        store.gates[name] = threading.Event()
    shelf.expect(steps("a", "b", "c", "d"), lambda _: None)
    until(lambda: len(store.fetched) == 2)
    assert here(tmp_path) == []  # a and b are fetched again (no known checksum), c and d were evicted
    for gate in store.gates.values():
        gate.set()


def test_all_goes_when_all_was_used_and_stays_otherwise(make, tmp_path):
    store, shelf = make("ab", 2)
    read(shelf, store, "a")
    shelf.close()
    assert here(tmp_path) == ["a"]
    store, shelf = make("ab", 2)
    read(shelf, store, "b")
    shelf.close(used_up=True)
    assert [path for path in tmp_path.rglob("*")] == []
