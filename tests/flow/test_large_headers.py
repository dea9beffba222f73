"""`inspect` and `plan` on the headers of whole models: seconds of a core and memory, in a process of its own.

The bounds are several times what was measured (docs/log.md), for machines that do something else too.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from halfbyte.source.geometry import KIMI_K26

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))
from synth import write_headers  # noqa: E402 - beside the tests, not in the package

RECIPE = ("-r", "kimi-k2.6-mxfp4-wafer", "--no-measure")
K3_LIKE = replace(KIMI_K26, layers=93, experts=896)
BOUNDS = {"k2.6": (KIMI_K26, 208_550, 60, 1_500), "k3-like": (K3_LIKE, 742_000, 240, 5_000)}


# The peak by its own words: the kernel's count for a child begins with the memory of the process that forked it.
_COMMAND = """
import sys
from pathlib import Path
from halfbyte.cli import run
code = run(sys.argv[1:])
print("peak", Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(code)
"""


def measured(*argv):
    """Run a command; return its exit code, seconds of a core, the most megabytes that it had, and its output."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-c", _COMMAND, *map(str, argv)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    printed, _, peak = process.stdout.read().rpartition("peak ")
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime, int(peak) / 1e3, printed


@pytest.mark.parametrize("model", ["k2.6", pytest.param("k3-like", marks=pytest.mark.slow)])
def test_the_headers_of_a_whole_model(tmp_path, model):
    geometry, tensors, seconds, megabytes = BOUNDS[model]
    counted = write_headers(tmp_path / model, geometry)
    assert counted["tensors"] >= tensors
    for command in (("inspect", tmp_path / model), ("plan", tmp_path / model, *RECIPE)):
        code, took, peak, printed = measured(*command)
        print(f"{model}: {command[0]} of {counted['tensors']:,} tensors: {took:.1f} s, {peak:,.0f} MB")
        assert code == 0, printed
        assert took < seconds
        assert peak < megabytes
