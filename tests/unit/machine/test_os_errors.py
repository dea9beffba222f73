"""Detection of out-of-memory errors, and the address-space limit that is checked before a run."""

import errno
import resource
import sys

import pytest

from halfbyte.errors import MachineError
from halfbyte.machine import resources
from halfbyte.machine.os_errors import out_of_memory_error
from halfbyte.machine.resources import addresses_left, refuse_few_addresses

GIB = 1 << 30


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_out_of_memory_errors_are_recognized(error):
    reported = out_of_memory_error(error)
    assert reported is not None
    assert (reported.what, reported.exit_code) == ("out of memory", 3)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("shapes differ"), ImportError("No module named 'x'"), OSError(errno.EIO, "I/O error"), ValueError()],
)
def test_other_errors_are_not_out_of_memory(error):
    assert out_of_memory_error(error) is None


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        OSError("Could not find/load shared object file 'libllvmlite.so'"),
    ],
)
def test_a_library_that_fails_to_load_is_out_of_memory_only_under_an_address_space_limit(monkeypatch, error):
    assert out_of_memory_error(error) is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    assert out_of_memory_error(error) is not None


def test_addresses_left_is_the_limit_minus_mapped_memory(monkeypatch):
    assert addresses_left() is None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 50, resource.RLIM_INFINITY))
    left = addresses_left()
    assert left is not None and (1 << 50) - 64 * GIB < left < (1 << 50) - (1 << 20)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert addresses_left() == 0


@pytest.mark.parametrize(
    ("held", "threads", "loaded", "measures", "needed"),
    [
        (0, 1, True, True, GIB + (72 << 20)),
        (0, 64, True, False, GIB + 64 * (72 << 20)),
        (5 * GIB, 4, False, False, 6 * GIB + 4 * (72 << 20)),
        (0, 4, False, True, GIB + 5 * (1 << 29) + 4 * (72 << 20)),
    ],
)
def test_a_limit_is_refused_one_byte_below_what_is_needed(monkeypatch, held, threads, loaded, measures, needed):
    if loaded:
        monkeypatch.setitem(sys.modules, "torch", sys)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    for left, refused in ((needed, False), (needed - 1, True), (None, False)):
        monkeypatch.setattr(resources, "addresses_left", lambda left=left: left)
        if refused:
            with pytest.raises(MachineError, match=r"may need .* of address space, but the limit leaves"):
                refuse_few_addresses(held, threads, measures=measures)
        else:
            refuse_few_addresses(held, threads, measures=measures)
