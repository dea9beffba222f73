"""The doctor's facts on fake machines, the disk measurement, and its advice."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from halfbyte.doctor import advice
from halfbyte.doctor import facts as doctor
from halfbyte.doctor.facts import Cpu, Disk, Gpu, Machine
from halfbyte.machine.resources import Memory, cpu_limit, memory_limit

GB = 1_000_000_000
PLAIN = Machine(
    python="3.11.0",
    system="Linux",
    cpu=Cpu("a CPU", 8, 8, ("avx2",), "skylake", 8),
    memory=Memory(64 * GB, 60 * GB, None),
    gpus=(),
    torch_build="CUDA 13.0",
    disk=None,
    versions={"numba": "0.65.0", "vllm": "0.32.0"},
    problems={},
)


def write(root, files: dict[str, str]):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def sentences(**changes) -> list[str]:
    return [item.text for item in advice.advise(replace(PLAIN, **changes))]


def test_this_machine():
    machine = doctor.examine()
    assert machine.problems == {}
    assert machine.cpu.numba_target
    assert machine.cpu.numba_threads
    assert machine.torch_build
    assert machine.gpus is not None
    assert machine.versions["torch"]
    assert machine.memory.total_nbytes > GB
    assert 0 < machine.cpu.usable_cores <= machine.cpu.cores


def test_cpu_and_memory_from_proc(tmp_path):
    cpuinfo = "processor\t: 0\nmodel name\t: Made Up 9000\nflags\t\t: fpu avx2 amx_tile sse4_2\n\nprocessor\t: 1\n"
    meminfo = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    500 kB\n"
    root = write(tmp_path, {"proc/cpuinfo": cpuinfo, "proc/meminfo": meminfo})
    cpu = doctor.cpu_facts({"target": "znver4", "threads": 3}, root)
    assert (cpu.model, cpu.flags) == ("Made Up 9000", ("avx2", "amx_tile"))
    assert (cpu.numba_target, cpu.numba_threads) == ("znver4", 3)
    assert doctor.memory_facts(root) == Memory(1_024_000, 512_000, None)


def test_what_cannot_be_read_is_unknown(tmp_path):
    assert doctor.memory_facts(tmp_path) == Memory(None, None, None)
    cpu = doctor.cpu_facts({}, tmp_path)
    assert cpu.flags is None
    lines = dict(replace(PLAIN, cpu=cpu, memory=Memory(None, None, None), gpus=None).lines())
    assert lines["cpu features"] == "unknown"
    assert lines["numba"] == "compiles for unknown, unknown threads"
    assert lines["memory"] == "unknown, unknown available"
    assert lines["gpu"] == "unknown"


def test_only_a_limit_below_the_memory_is_worth_a_word():
    tight, loose = (replace(PLAIN, memory=Memory(64 * GB, 60 * GB, limit * GB)) for limit in (32, 65))
    assert dict(tight.lines())["memory"] == "64.0 GB, 60.0 GB available, limited to 32.0 GB"
    assert dict(loose.lines())["memory"] == "64.0 GB, 60.0 GB available"


def test_limits_of_version_2_control_groups_come_from_the_tightest_around_us(tmp_path):
    files = {
        "proc/self/cgroup": "0::/slice/job\n",
        "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
        "sys/fs/cgroup/slice/memory.max": "4000\n",
        "sys/fs/cgroup/slice/job/memory.max": "8000\n",
    }
    root = write(tmp_path, files)
    assert (cpu_limit(root), memory_limit(root)) == (1.5, 4000)
    assert doctor.memory_facts(root).limit_nbytes == 4000
    assert doctor.cpu_facts({}, root).usable_cores <= 1.5


def test_limits_of_version_1_control_groups(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "5000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    root = write(tmp_path, files)
    assert (cpu_limit(root), memory_limit(root)) == (0.5, 5000)


def test_no_limits(tmp_path):
    files = {
        "proc/self/cgroup": "4:memory:/\n2:cpu:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/unified/memory.max": "max\n",
    }
    root = write(tmp_path, files)
    assert (cpu_limit(root), memory_limit(root)) == (None, None)
    assert (cpu_limit(tmp_path / "none"), memory_limit(tmp_path / "none")) == (None, None)


def test_the_disk_is_measured_and_nothing_stays(tmp_path):
    disk = doctor.disk_facts(tmp_path, nbytes=9_000_000)
    assert disk.problem is None
    assert disk.write_nbytes_per_s > 0
    assert disk.read_nbytes_per_s > 0
    assert disk.filesystem
    assert list(tmp_path.iterdir()) == []


def test_the_whole_file_is_written_and_read(tmp_path, monkeypatch):
    moved = {"write": 0, "read": 0}
    real_write, real_read = os.write, os.read

    def write_some(descriptor, data):
        moved["write"] += len(data)
        return real_write(descriptor, data)

    def read_some(descriptor, count):
        data = real_read(descriptor, count)
        moved["read"] += len(data)
        return data

    monkeypatch.setattr(os, "write", write_some)
    monkeypatch.setattr(os, "read", read_some)
    doctor.disk_facts(tmp_path, nbytes=9_000_000)
    assert moved == {"write": 9_000_000, "read": 9_000_000}


def test_a_folder_that_cannot_be_measured_is_unknown_not_a_crash(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    disk = doctor.disk_facts(tmp_path, nbytes=1_000_000)
    assert (disk.write_nbytes_per_s, disk.problem) == (None, "No space left on device")
    assert "not measured: No space left on device" in dict(replace(PLAIN, disk=disk).lines())["disk"]
    assert list(tmp_path.iterdir()) == []


def test_a_nearly_full_disk_is_left_alone(tmp_path):
    assert doctor.disk_facts(tmp_path, nbytes=10**15).problem == "not enough free space to measure"


@pytest.mark.parametrize(("kill", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_stopping_the_measurement_leaves_no_file(tmp_path, kill, code):
    program = (
        "import sys, time, os\n"
        "from halfbyte.cli import main as cli\n"
        "def stuck(descriptor):\n"
        "    print('writing', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "os.fsync = stuck\n"
        "cli.main(['doctor', '-q', '--dir', sys.argv[1]])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr.readline() == "writing\n"
        process.send_signal(kill)
        process.communicate(timeout=30)
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arch", "fp4"),
    [
        ("sm_100", "nvfp4"),
        ("sm_103", "nvfp4"),
        ("sm_120", "nvfp4"),
        ("gfx950", "mxfp4"),
        ("sm_90", "none"),
        ("sm_80", "none"),
        ("gfx942", "none"),
        ("sm_999", None),
    ],
)
def test_fp4_tensor_cores_by_architecture(arch, fp4):
    assert Gpu("a GPU", arch, GB).fp4 == fp4


def test_a_broken_library_is_named_with_its_complaint(tmp_path, monkeypatch):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('llvmlite is too old')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    machine = doctor.examine()
    assert machine.problems == {"numba": "ImportError: llvmlite is too old"}
    assert machine.cpu.numba_target is None
    assert machine.torch_build
    first = advice.advise(machine)[0]
    assert (first.level, "llvmlite is too old" in first.text) == ("bad", True)


def test_a_file_in_the_current_folder_does_not_pass_for_a_library(tmp_path, monkeypatch):
    (tmp_path / "numba.py").write_text("raise ImportError('not numba')")
    monkeypatch.chdir(tmp_path)
    assert doctor.examine().problems == {}


def test_a_capable_machine_hears_nothing_bad():
    gpu = Gpu("NVIDIA B200", "sm_100", 192 * GB)
    disk = Disk("/data", "xfs", 3000 * GB, 1.0 * GB, 2.0 * GB)
    found = advice.advise(replace(PLAIN, gpus=(gpu, gpu), disk=disk))
    assert [item.text for item in found] == [
        "enough memory for two copies (source and output) of one MoE layer of Kimi-K2.6 (9.5 GB in INT4)",
        "NVIDIA B200: NVFP4 tensor cores; choose a recipe that writes nvfp4",
        "reading Kimi-K2.6 (595 GB) at this speed takes 5 min, writing it takes 10 min",
    ]
    assert {item.level for item in found} == {"good", "note"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpus": (Gpu("NVIDIA H200", "sm_90", 141 * GB),)}, "NVIDIA H200: no FP4 tensor cores"),
        ({"gpus": (Gpu("AMD MI355X", "gfx950", 288 * GB),)}, "AMD MI355X: MXFP4 tensor cores"),
        ({"gpus": (Gpu("New", "sm_999", GB),)}, "New: this version does not know whether sm_999 has FP4 tensor cores"),
        ({"gpus": None, "problems": {"torch": "ImportError: libcudart"}}, "GPUs are unknown: ImportError: libcudart"),
        ({"torch_build": "CPU"}, "this torch is a CPU build"),
        ({"cpu": Cpu("old", 8, 2, (), "core2", 2)}, "this CPU has no AVX2"),
        ({"cpu": Cpu("cut", 8, 2, ("avx2",), "core2", 2)}, "only 2 of 8 cores are usable"),
        ({"memory": Memory(64 * GB, 60 * GB, 8 * GB)}, "8.0 GB of memory is not enough"),
        ({"disk": Disk("/data", "ext4", 70 * GB)}, "70 GB free: a 4-bit Kimi-K2.6 of 595 GB does not fit"),
        ({"disk": Disk("/shm", "tmpfs", 3000 * GB, GB, GB)}, "/shm is in memory (tmpfs), not on disk"),
        ({"disk": Disk("/d", "nfs", 3000 * GB, 0.05 * GB, GB)}, "writing it takes 3 h 18 min"),
        ({"versions": {"numba": "1", "vllm": None}}, "vLLM is not installed"),
    ],
)
def test_sentences(changes, sentence):
    assert any(sentence in text for text in sentences(**changes))
    assert not any(sentence in text for text in sentences())


def test_what_makes_halfbyte_unusable_comes_first():
    old = advice.advise(PLAIN, python=(3, 9))
    assert (old[0].level, old[0].fix) == ("bad", "install Python 3.10 or newer")
    missing = advice.advise(replace(PLAIN, versions={"numba": None, "vllm": None}))
    assert (missing[0].level, missing[0].fix) == ("bad", "pip install numba")
    assert [item.level for item in advice.advise(PLAIN)].count("bad") == 0
