"""The installed package is complete: the wheel, in an empty environment outside the repository."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import halfbyte
from halfbyte.recipe.load import recipe_names, recipe_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIGHT = ["click", "rich", "PyYAML", "pydantic"]  # what `recipes` and `--help` need; not torch, numba, numpy
WITHOUT_PYTHONPATH = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def pip(python: Path | str, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("halfbyte-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Return the `halfbyte` command of an environment with only the wheel and its light dependencies."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), *LIGHT)
    pip(python, "install", "--no-deps", str(wheel))
    return venv / "bin" / "halfbyte"


@pytest.fixture
def run(installed, tmp_path):
    def call(*argv: str) -> str:
        done = subprocess.run(
            [str(installed), *argv], capture_output=True, text=True, check=False, cwd=tmp_path, env=WITHOUT_PYTHONPATH
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_the_wheel_has_every_file_of_the_package(wheel):
    package = ROOT / "src"
    ours = [path for path in (package / "halfbyte").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(package).as_posix() for path in ours}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == wanted
    assert "halfbyte/py.typed" in packed
    assert sum(name.startswith("halfbyte/recipes/") and name.endswith(".yaml") for name in packed) >= 1


def test_the_wheel_has_the_license(wheel):
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_installed_recipes_list(run):
    lines = run("recipes", "list").splitlines()
    assert [line.split()[0] for line in lines[1:]] == recipe_names()


def test_installed_recipes_show(run):
    for name in recipe_names():
        assert run("recipes", "show", name) == recipe_text(name)


def test_installed_help_and_version(run):
    assert "Serve and measure:" in run("--help")
    assert run("--version") == f"halfbyte {PROJECT['version']}\n"


def test_the_version_is_in_one_place():
    assert halfbyte.__version__ == version("halfbyte") == PROJECT["version"]


def test_the_command_is_an_entry_point():
    (script,) = entry_points(group="console_scripts", name="halfbyte")
    assert script.value == "halfbyte.cli.main:main"


def test_constraints_pin_every_direct_dependency_to_a_version_it_allows():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {requirement.name.lower().replace("_", "-"): requirement for requirement in map(Requirement, lines)}
    assert all(str(pin.specifier).startswith("==") for pin in pins.values())
    extras = [text for texts in PROJECT["optional-dependencies"].values() for text in texts]
    for wanted in map(Requirement, [*PROJECT["dependencies"], *extras]):
        pin = pins[wanted.name.lower().replace("_", "-")]
        assert wanted.specifier.contains(str(pin.specifier).removeprefix("==")), (wanted, pin)


def test_torch_is_pinned_exactly_for_every_python():
    # A marker or a range here would let pip replace a CPU build by gigabytes of CUDA libraries.
    assert "\ntorch==2.13.0\n" in (ROOT / "constraints.txt").read_text()
