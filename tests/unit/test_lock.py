"""The lock files have every pin of constraints.txt with hashes, and the Makefile installs nothing without a hash."""

import hashlib
import importlib.util
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from halfbyte.publish.sbom import closure

ROOT = Path(__file__).parents[2]
LOCKS = [ROOT / "requirements" / name for name in ("lock-dev.txt", "lock-vllm.txt")]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
WHEEL = "locked_case-1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def lock():
    spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(path):
    """Return the requirement and the hashes of each entry of a lock."""
    text = path.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+(?=--hash)", line.strip())
            yield requirement, hashes


def test_each_pin_is_in_one_lock_and_each_lock_has_only_pins(lock):
    pins = {name: str(pin) for name, pin in lock.pins(lock.CONSTRAINTS).items() if name not in lock.NOT_LOCKED}
    locked = [Requirement(requirement) for path in LOCKS for requirement, _ in entries(path)]
    assert sorted(map(str, locked)) == sorted(pins.values())


def test_each_entry_has_hashes_and_nothing_but_hashes():
    for path in LOCKS:
        for requirement, hashes in entries(path):
            assert hashes, requirement
            assert all(HASH.fullmatch(one.strip()) for one in hashes), requirement


def test_the_first_lock_has_all_that_the_development_environment_needs(lock):
    locked = {canonicalize_name(Requirement(requirement).name) for requirement, _ in entries(LOCKS[0])}
    assert set(closure("halfbyte[dev]")) - locked <= {"halfbyte", *lock.NOT_LOCKED}


def test_what_builds_without_isolation_is_locked():
    locked = {canonicalize_name(Requirement(requirement).name) for requirement, _ in entries(LOCKS[0])}
    assert {"hatchling", "setuptools"} <= locked


@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        ("numpy-2.3.5.tar.gz", True),
        ("numpy-2.3.4.tar.gz", False),
        ("numpy-2.3.5-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.3.5-cp314-cp314-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl", True),
        ("numpy-2.3.5-cp39-cp39-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.3.5-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("numpy-2.3.5-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.3.5-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.3.5-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("numpy-2.3.5-cp311-cp311-win_amd64.whl", False),
        ("numpy-2.3.5-py3-none-any.whl", True),
        ("numpy-2.3.5-py2.py3-none-any.whl", True),
        ("numpy-2.3.5-py3-none-manylinux_2_28_x86_64.whl", True),
        ("numpy-2.3.5-py3.11.egg", False),
        ("index.html", False),
    ],
)
def test_which_files_a_lock_names(lock, file, chosen):
    assert lock.is_chosen(file, Version("2.3.5")) is chosen


def commands(tmp_path):
    asked = ["make", "-n", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/.vllm-ready"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [shlex.split(line) for line in said.splitlines() if " install " in line]


def test_make_installs_locks_first_and_then_only_by_constraints(tmp_path):
    installs = commands(tmp_path)
    locked = [line for line in installs if "--require-hashes" in line]
    assert [line[-1] for line in locked] == ["requirements/lock-dev.txt", "requirements/lock-vllm.txt"]
    assert all({"--no-deps", "--no-build-isolation", "-r"} <= set(line) for line in locked)
    assert [("--require-hashes" in line) for line in installs] == [True, False, True, False]
    rest = [line for line in installs if line not in locked]
    assert all("--no-build-isolation" in line and line[line.index("-c") + 1] == "constraints.txt" for line in rest)


def test_the_audit_asks_about_both_locks_and_takes_no_silence_for_an_answer():
    command = ["make", "--no-print-directory", "-n", "audit-deps"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = shlex.split(said.splitlines()[-1])
    assert {"--strict", "--require-hashes", *(str(path.relative_to(ROOT)) for path in LOCKS)} <= set(words)


@pytest.fixture
def wheel(tmp_path):
    """Return the SHA-256 of a one-module distribution, which is stored next to its lock."""
    path = tmp_path / WHEEL
    inside = "locked_case-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("locked_case.py", "")
        made.writestr(f"{inside}/METADATA", "Metadata-Version: 2.1\nName: locked-case\nVersion: 1.0\n")
        made.writestr(f"{inside}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{inside}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(tmp_path, line):
    """Install like the Makefile, from a folder into a folder."""
    (tmp_path / "lock.txt").write_text(line + "\n")
    first = next(words for words in commands(tmp_path) if "--require-hashes" in words)
    options = first[first.index("install") : -1]
    where = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "into")]
    command = [sys.executable, "-m", "pip", *options, str(tmp_path / "lock.txt"), *where]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_file_with_the_right_hash_is_installed(tmp_path, wheel):
    done = install(tmp_path, f"locked-case==1.0 --hash=sha256:{'0' * 64} --hash=sha256:{wheel}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "into" / "locked_case.py").is_file()


def test_a_file_with_another_hash_is_refused(tmp_path, wheel):
    other = wheel[:-1] + ("0" if wheel[-1] != "0" else "1")
    done = install(tmp_path, f"locked-case==1.0 --hash=sha256:{other}")
    assert done.returncode != 0
    assert "DO NOT MATCH" in done.stderr
    assert not (tmp_path / "into" / "locked_case.py").exists()


def test_a_line_without_a_hash_is_refused(tmp_path, wheel):
    done = install(tmp_path, "locked-case==1.0")
    assert done.returncode != 0
    assert "--require-hashes" in done.stderr
