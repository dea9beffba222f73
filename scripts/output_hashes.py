"""Hash the output of every shipped recipe on kimi-mini, to verify that a code change does not alter output bytes.

    python scripts/output_hashes.py -o before.json                        # on the old commit
    python scripts/output_hashes.py --against before.json                 # on the new one; exit code 1 on a difference
    python scripts/output_hashes.py --halfbyte OTHER/.venv/bin/halfbyte   # another checkout's command

The script does not import halfbyte. It runs the command line and hashes the files (shards, index, configs, tokenizer;
not `halfbyte/`, which contains dates and versions, nor the card). Recipes that calibrate use two small local files
instead of the Hub. Recipes that prune keep half of kimi-mini's 32 experts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "models" / "kimi-mini"
CALIBRATION = [
    "--data", f"chat={ROOT / 'data/calibration/instructions.jsonl'}:messages",
    "--data", f"text={ROOT / 'data/calibration/articles.jsonl'}:article",
    "--samples", "16",
    "--set", "calibrate.sequence_length=128",
]  # fmt: skip
NOT_OUTPUT = {"README.md"}  # the card


def main() -> int:
    """Build all recipes, print or store the hashes, and compare them with --against."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halfbyte", default=str(ROOT / ".venv" / "bin" / "halfbyte"), help="the command to run")
    parser.add_argument("-o", "--out", type=Path, help="write the hashes as JSON")
    parser.add_argument("--against", type=Path, help="compare with a file of -o")
    options = parser.parse_args()
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    expected = json.loads(options.against.read_text()) if options.against is not None else None
    hashes: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="output-hashes-") as scratch:
        for recipe in recipe_names(options.halfbyte):
            hashes[recipe] = build(options.halfbyte, recipe, Path(scratch) / recipe)
            print(f"{recipe}: {len(hashes[recipe])} files, {digest_of(hashes[recipe])[:16]}", file=sys.stderr)
    text = json.dumps(hashes, indent=1, sort_keys=True) + "\n"
    if options.out is not None:
        options.out.write_text(text)
    elif expected is None:
        print(text, end="")
    return 0 if expected is None else report(expected, hashes)


def recipe_names(halfbyte: str) -> list[str]:
    """Return the names of the shipped recipes."""
    done = subprocess.run([halfbyte, "recipes", "list", "--json"], capture_output=True, text=True, check=True)
    return sorted(row["name"] for row in json.loads(done.stdout))


def build(halfbyte: str, recipe: str, out: Path) -> dict[str, str]:
    """Quantize kimi-mini with a recipe and return the SHA-256 of each output file."""
    shown = subprocess.run(
        [halfbyte, "recipes", "show", recipe, "--json"], capture_output=True, text=True, check=True
    ).stdout
    settings = json.loads(shown)
    command = [halfbyte, "quantize", str(SOURCE), str(out), "-r", recipe, "-q"]
    if settings.get("calibrate"):
        command += CALIBRATION
    if settings.get("prune"):
        command += ["--set", "prune.keep=16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nexit code {done.returncode}\n{done.stderr}")
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    names = {path.relative_to(out).as_posix(): path for path in files}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if not name.startswith("halfbyte/") and name not in NOT_OUTPUT
    }


def digest_of(hashes: dict[str, str]) -> str:
    """Return one hash over the names and hashes of an output."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def report(expected: dict[str, dict[str, str]], measured: dict[str, dict[str, str]]) -> int:
    """Print every file that differs; return the exit code."""
    differences = [
        f"{recipe}/{name}: {expected.get(recipe, {}).get(name)} -> {measured.get(recipe, {}).get(name)}"
        for recipe in sorted({*expected, *measured})
        for name in sorted({*expected.get(recipe, {}), *measured.get(recipe, {})})
        if expected.get(recipe, {}).get(name) != measured.get(recipe, {}).get(name)
    ]
    print("\n".join(differences) or f"{sum(map(len, measured.values()))} files of {len(measured)} recipes: all equal")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
