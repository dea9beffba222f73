"""The paused garbage collector: objects created during the pause become old, and are still collected later."""

import gc
import weakref

from halfbyte.machine.interrupts import gc_paused


class Loop:
    """An object that refers to itself, which only the collector can free."""

    def __init__(self):
        self.itself = self


def test_objects_created_during_the_pause_become_old_and_cycles_are_still_collected():
    assert gc.isenabled()
    with gc_paused():
        assert not gc.isenabled()
        kept, loop = [[number] for number in range(10_000)], Loop()
        dropped = weakref.ref(loop)
        del loop
    old = {id(item) for item in gc.get_objects(generation=2)}
    assert gc.isenabled()
    assert {id(kept), *map(id, kept)} <= old
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert dropped() is None


def test_a_nested_pause_ends_with_the_outer_one():
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
