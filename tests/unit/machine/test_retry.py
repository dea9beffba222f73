"""Exponential backoff."""

from halfbyte.machine.retry import Backoff


def test_waits_double_up_to_the_limit():
    backoff = Backoff(attempts=5, first_wait_s=1.0, longest_wait_s=5.0)
    assert [backoff.wait_s(attempt) for attempt in (1, 2, 3, 4)] == [1, 2, 4, 5]


def test_a_requested_wait_replaces_the_doubled_one_within_the_limit():
    backoff = Backoff(attempts=5, first_wait_s=1.0, longest_wait_s=5.0)
    assert [backoff.wait_s(3, requested) for requested in (0.0, 2.5, 60.0)] == [0, 2.5, 5]
