"""Retries of failed tasks and their messages; a fake object replaces Ray."""

import errno
from types import SimpleNamespace

import pytest
from pico import write_pico

from halfbyte.checkpoint.atomic_write import WAITING_NBYTES
from halfbyte.engine.backends.ray.cluster import ATTEMPTS, Node, TaskPool, TaskResources
from halfbyte.engine.backends.ray.driver import _task_resources, task_cpus
from halfbyte.engine.backends.ray.worker import TaskResult, as_result
from halfbyte.engine.pipeline import plan
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.recipe.load import load_recipe

GB = 1 << 30


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class LocalRayletDiedError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class FakeRay:
    """Answer every task with the next outcome of its name; the last one repeats."""

    exceptions = SimpleNamespace(
        RayError=RayError,
        RayTaskError=RayTaskError,
        LocalRayletDiedError=LocalRayletDiedError,
        OutOfMemoryError=OutOfMemoryError,
    )

    def __init__(self, outcomes):
        self.outcomes, self.begun, self.cancelled = outcomes, [], []

    def remote(self, work):
        def options(**options):
            def remote(name, attempt, cpus):
                self.begun.append((name, attempt, options["num_cpus"], options["memory"]))
                return (name, attempt)

            assert options["max_retries"] == 0
            return SimpleNamespace(remote=remote)

        return SimpleNamespace(options=options)

    def wait(self, refs, num_returns=1, timeout=None):
        return refs[:1], refs[1:]

    def get(self, ref):
        outcomes = self.outcomes[ref[0]]
        outcome = outcomes[min(ref[1], len(outcomes)) - 1]
        if isinstance(outcome, RayError):
            raise outcome
        return outcome if isinstance(outcome, TaskResult) else TaskResult("n1", error=outcome)

    def cancel(self, ref, force):
        assert force
        self.cancelled.append(ref)

    def nodes(self):
        return [
            {"Alive": True, "NodeID": "a", "NodeManagerAddress": "n1", "Resources": {"CPU": 8, "memory": 6 * GB}},
            {"Alive": False, "NodeID": "b", "NodeManagerAddress": "n2", "Resources": {"CPU": 64, "memory": 64 * GB}},
        ]


GOOD = TaskResult("n1", entry={})


def run(outcomes):
    """Return the results, Ray, the messages, and the tasks that were cleaned up."""
    ray, said, tidied = FakeRay(outcomes), [], []
    pool = TaskPool(ray, TaskResources(3, 4 * GB), said.append, tidied.append)
    try:
        done = dict(pool.each(as_result, list(outcomes), lambda name, attempt, cpus: (name, attempt, cpus)))
    except Exception as error:
        done = error
    return done, ray, said, tidied


def test_all_are_done():
    done, ray, said, tidied = run({"a": [GOOD], "b": [GOOD]})
    assert done == {"a": GOOD, "b": GOOD}
    assert (said, tidied, ray.cancelled) == ([], [], [])


@pytest.mark.parametrize("failure", [RayError("worker gone"), OSError(errno.ESTALE, "stale"), MemoryError("none left")])
def test_what_another_machine_may_not_have_is_tried_again_there(failure):
    done, ray, said, tidied = run({"a": [failure, failure, GOOD]})
    assert done == {"a": GOOD}
    assert [attempt for _, attempt, _, _ in ray.begun] == [1, 2, 3]
    assert [line.rpartition("; ")[2] for line in said] == ["retrying, attempt 2 of 4", "retrying, attempt 3 of 4"]
    assert tidied == ["a", "a"]


@pytest.mark.parametrize("failure", [OutOfMemoryError("killed"), MemoryError()])
def test_without_memory_more_of_a_machine_is_asked_for_but_not_more_than_one_has(failure):
    _, ray, _, _ = run({"a": [failure, failure, GOOD]})
    assert [begun[2:] for begun in ray.begun] == [(3, 4 * GB), (6, 6 * GB), (8, 6 * GB)]


def test_no_task_is_tried_for_ever():
    done, ray, _, tidied = run({"a": [RayError("worker gone.\nmuch more")], "b": [GOOD]})
    assert isinstance(done, MachineError)
    assert done.what == "a failed 4 times; last error: worker gone"
    assert "finished work is kept" in done.fix
    assert len([begun for begun in ray.begun if begun[0] == "a"]) == ATTEMPTS == len(tidied)


def test_the_last_error_of_a_disk_is_said_as_locally():
    failure = OSError(errno.EIO, "Input/output error", "/data/x")
    done, _, _, _ = run({"a": [failure]})
    assert done is failure


@pytest.mark.parametrize(
    "failure", [CheckpointError("wrong", where="x"), OSError(errno.ENOSPC, "full"), MachineError("cannot write")]
)
def test_what_would_fail_everywhere_is_not_tried_again_and_ends_the_others(failure):
    done, ray, said, _ = run({"a": [failure], "b": [GOOD]})
    assert done is failure
    assert (len(ray.begun), said, ray.cancelled) == (2, [], [("b", 1)])


def test_a_worker_without_halfbyte():
    done, _, _, _ = run({"a": [RayTaskError(ModuleNotFoundError("No module named 'halfbyte'"))]})
    assert isinstance(done, MachineError)
    assert "install the same version of halfbyte on all nodes" in done.fix


def test_a_bug_in_a_task_is_a_bug():
    bug = RayTaskError(ZeroDivisionError())
    assert run({"a": [bug]})[0] is bug


def test_a_cluster_that_is_lost():
    done, _, _, _ = run({"a": [LocalRayletDiedError("raylet died.")]})
    assert isinstance(done, MachineError)
    assert "this machine left the cluster" in done.what


@pytest.mark.parametrize(
    ("cores", "tasks", "threads", "cpus"),
    [
        ([32], 64, None, 4),
        ([32] * 16, 64, None, 8),
        ([2], 64, None, 2),
        ([32], 2, None, 16),
        ([32], 1, None, 32),
        ([32] * 4, 64, 12, 12),
        ([8], 64, 12, 8),
        ([], 5, None, 1),
    ],
)
def test_cores_of_a_task(cores, tasks, threads, cpus):
    assert task_cpus(cores, tasks, threads) == cpus


def test_a_task_asks_for_no_more_memory_than_a_node_has(tmp_path):
    made = plan(write_pico(tmp_path / "source"), load_recipe("kimi-k2.6-mxfp4-wafer"))
    small, large = Node("a", "n1", 8, GB >> 4), Node("b", "n2", 8, GB)
    assert _task_resources(made, [small], 6, None) == TaskResources(4, GB >> 4)
    assert _task_resources(made, [small, large], 6, None).memory_nbytes > WAITING_NBYTES > small.memory_nbytes
