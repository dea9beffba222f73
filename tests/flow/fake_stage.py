"""Instant stand-ins for release stages: `python fake_stage.py COMMAND WORDS...` writes the result of the real one.

Files in the folder HALFBYTE_FAKE control it: `slow-STAGE` delays a stage, `code-STAGE` has its exit code,
`result-STAGE` replaces its result, `nothing-STAGE` suppresses it, `says-STAGE` is its error message. Every start adds a
line to `ran`.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

SAY = Path(os.environ["HALFBYTE_FAKE"])
POINT = {"failed": 0, "requests": 4, "tokens_per_second": 1.0, "label": "x"}
MEASURED = ("audit", "compare", "probe", "eval", "bench")
LOADED = (".safetensors", ".json", ".jinja", ".py", ".model")
WHOLE = json.loads(
    Path(__file__).with_name("fake_evidence.json").read_text()
)  # all fields, which GOOD replaces in part
ROWS = {"audit": "findings", "probe": "probes", "eval": "tasks", "bench": "points"}
GOOD = {
    "audit": {"passed": True, "findings": [{"check": "bytes", "level": "good"}]},
    "compare": {"total": {"kl": {"value": 0.01}, "top1": {"value": 0.99}}},
    "probe": {"accepted": True, "probes": [{"name": "json", "gate": True, "verdict": "passed"}]},
    "eval": {"label": "ACCEPT", "tasks": [{"task": "mmlu", "label": "ACCEPT"}]},
    "bench": {"points": [POINT]},
    "source": {"label": "SCORED", "tasks": [{"task": "mmlu", "label": "SCORED"}]},
    "scripts": {},
    "report": {},
}


def stage(words: list[str]) -> str:
    if Path(words[0]).is_absolute():
        return "provenance"  # it has two folder arguments
    if words[0] != "serve":
        return words[0]
    return "scripts" if "--write" in words else "source" if "--then" in words else "serve"


def write(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def quantize(out: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        if not (out / name).exists():
            write(out / name, {})
    write(out / "halfbyte" / "plan.json", {"fingerprint": "p1", "parts": {}, "shards": {}, "recipe": {}})


def measured(out: Path) -> dict[str, str]:
    """Return the measured files with their hashes, as in measured_files.py."""
    files = [path for path in sorted(out.iterdir()) if path.suffix in LOADED and not path.name.startswith("LICENSE")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def completed(name: str, found: dict) -> dict:
    """Return a result with every field that it does not name itself."""
    whole, rows = WHOLE[name], ROWS.get(name)
    if rows in found:
        found = {**found, rows: [{**whole[rows][0], **row} for row in found[rows]]}
    if name == "compare" and "total" in found:
        found = {**found, "total": {**whole["total"], **found["total"]}}
    return {**whole, **found}


def result(name: str, words: list[str]) -> Path | None:
    if name == "source":
        return Path(words[words.index("--log") + 1]).parents[1] / "eval-source" / "eval.json"
    if name in ("probe", "eval", "bench"):
        return Path(words[words.index("-o") + 1]) / f"{name}.json"
    places = {"audit": "halfbyte/audit.json", "compare": "halfbyte/compare.json", "card": "README.md",
              "scripts": "halfbyte/serve/serve.json", "report": "halfbyte/report.html",
              "provenance": "halfbyte/provenance.json"}  # fmt: skip
    out = words[{"compare": 2, "provenance": 0}.get(name, 1)]
    return Path(out) / places[name] if name in places else None


def main(words: list[str]) -> int:
    name = stage(words)
    with (SAY / "ran").open("a") as file:
        file.write(f"{name} {os.getpid()}\n")
    print(f"{name} is working", flush=True)
    if (SAY / f"slow-{name}").exists():
        time.sleep(600)
    code = int((SAY / f"code-{name}").read_text()) if (SAY / f"code-{name}").exists() else 0
    if code:
        more = (SAY / f"says-{name}").read_text() if (SAY / f"says-{name}").exists() else ""
        print(f"✗ {name} says no{more}\n  fix   another", flush=True)
    if name == "serve":
        if code:
            return code
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        print(json.dumps({"url": "http://127.0.0.1:9", "model": "m", "boot": "booted"}, indent=2), flush=True)
        time.sleep(600)
    if (SAY / f"nothing-{name}").exists():
        return code
    if name == "quantize":
        quantize(Path(words[2]))
    told = SAY / f"result-{name}"
    path = result(name, words)
    if path is not None:
        found = json.loads(told.read_text()) if told.exists() else {**GOOD.get(name, {}), "by": words}
        if name in MEASURED and isinstance(found, dict):
            found = completed(name, found)
        if name in MEASURED and isinstance(found, dict):
            out = path.parents[2 if name in ("probe", "eval", "bench") else 1]
            found = {"measured_files": measured(out), **found}
        write(path, found)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
