"""The paused garbage collector: objects created during the pause become old, and are still collected later."""

import gc
import weakref

from halfbyte.machine.garbage_collector import paused


class Loop:
    """An object that refers to itself, which only the collector can free."""

    def __init__(self):
        self.itself = self


def test_what_stays_is_not_looked_through_again_and_what_does_not_is_collected():
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        kept, loop = [[number] for number in range(10_000)], Loop()
        dropped = weakref.ref(loop)
        del loop
    old = {id(one) for one in gc.get_objects(generation=2)}
    assert gc.isenabled()
    assert {id(kept), *map(id, kept)} <= old
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert dropped() is None


def test_a_pause_inside_a_pause_ends_with_the_outer_one():
    with paused():
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
