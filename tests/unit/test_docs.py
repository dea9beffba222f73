"""Documentation checks: generated parts are fresh, commands and code run, links are valid."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from halfbyte.evidence.folder import KINDS

ROOT = Path(__file__).parents[2]
WRITTEN = ("cli", "convert", "evidence", "formats", "pruning", "reliability", "speed", "statistics", "troubleshooting")
GENERATED = ["README.md", *(f"docs/{name}.md" for name in WRITTEN)]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WITH_OUR_COMMANDS = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def is_fresh(*pages: Path) -> bool:
    command = [sys.executable, "-m", "cogapp", "--check", "-U", "-I", str(ROOT / "docs"), *map(str, pages)]
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@pytest.mark.parametrize("page", GENERATED)
def test_generated_parts_are_fresh(page):
    assert "[[[cog" in (ROOT / page).read_text()
    assert is_fresh(ROOT / page), f"{page} is stale; fix: make docs"


def test_a_stale_page_would_be_noticed(tmp_path):
    stale = tmp_path / "cli.md"
    stale.write_text((ROOT / "docs/cli.md").read_text().replace("--no-disk", "--no-disc"))
    assert not is_fresh(stale)


def test_every_field_of_every_evidence_file_is_listed():
    text = (ROOT / "docs/evidence.md").read_text()
    for kind in KINDS.values():
        section = re.search(rf"^## halfbyte/{re.escape(kind.file)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, kind.file
        listed = set(re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE))
        assert listed >= {field.name for field in fields(kind)} - {"measured_files", "measured_folder"}, kind.file


def test_the_reference_has_every_command_and_its_help():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from generate import cli, walk
    finally:
        sys.path.pop(0)
    page = (ROOT / "docs/cli.md").read_text()
    for ctx in walk(cli, "halfbyte"):
        assert f"## {ctx.command_path}\n\n```text\n{ctx.get_help()}\n```" in page


@pytest.mark.parametrize("block", blocks("README.md", "bash"))
def test_readme_commands_run(block, tmp_path):
    for line in block.splitlines():
        assert line.startswith("halfbyte "), "a bash block holds commands that the test runs; use console for others"
    script = f"set -euo pipefail\n{block}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path, env=WITH_OUR_COMMANDS
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("README.md", "python"))
def test_readme_python_runs(block, tmp_path):
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_readme_has_something_to_run():
    assert blocks("README.md", "bash")
    assert blocks("README.md", "python")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("https://", "http://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_changelog_speaks_of_this_version_and_of_output_bytes():
    from halfbyte import __version__

    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in text or "## [Unreleased]" in text
    assert "### Output bytes" in text


def test_the_readme_names_what_is_exported_and_every_extra():
    import tomllib

    import halfbyte

    text = (ROOT / "README.md").read_text()
    listed = text.partition("`from halfbyte import ...` has these names: ")[2].partition("\n\n")[0]
    assert set(halfbyte.__all__) <= set(re.findall(r"`(\w+)", listed))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"`(\w+)`", text.partition("the extras are ")[2].partition(".\n")[0])
    assert sorted(named) == sorted(set(extras) - {"dev"})
