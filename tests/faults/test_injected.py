"""Fault injection works even after a test that failed before waiting for its command."""

WAITS = "import time\ntime.sleep(300)"


def test_a_command_that_nobody_waited_for_is_ended_by_the_next(forking, place):
    left = forking.start("inspect", place / "source", before=WAITS)
    ended = forking.run("inspect", place / "source")
    assert left.ended is not None
    assert (left.ended.code, ended.code) == (-9, 0), ended.words


def test_a_command_that_has_ended_is_not_killed_again(forking, place):
    job = forking.start("inspect", place / "source")
    ended = job.wait()
    assert ended.code == 0, ended.words
    assert job.kill() is ended
