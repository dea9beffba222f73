"""Numeric options reject infinity, NaN and impossible durations."""

import pytest


@pytest.mark.parametrize("command", ["eval", "probe"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e30", "0", "604801"])
def test_a_timeout_is_a_time(halfbyte, command, value):
    code, _, said = halfbyte(command, "http://127.0.0.1:9", f"--timeout={value}")
    assert code == 2 and "--timeout" in said


@pytest.mark.parametrize("value", ["nan", "inf", "0", "1", "-0.1"])
def test_a_margin_is_a_share(halfbyte, value):
    code, _, said = halfbyte("eval", "http://127.0.0.1:9", f"--margin={value}")
    assert code == 2 and "--margin" in said
