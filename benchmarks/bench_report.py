"""Cost of the report of a large model: to write it (core, memory, size), and to open it in a real Chromium.

    python benchmarks/bench_report.py --machine xeon-2core [--pictures DIR]

60 layers of 384 experts, and 93 of 896 (Kimi-K3's numbers), with every kind of evidence (tests/report_evidence.py) and
losses of as many layers. `report` runs in a process of its own. Writes
benchmarks/results/report_<machine>_<yyyymm>.json; with --pictures also the whole page as a PNG.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import platform
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from bench_headers import measured  # noqa: E402 - beside us
from browser.chromium import INSTALL, Chromium, Page, find_chromium  # noqa: E402
from report_evidence import add_evidence, add_losses, write_output  # noqa: E402

SIZES = ((60, 384), (93, 896))
LOADS = 5
NOISE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded")
FULL_SIZE = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"


def write_one(folder: Path, layers: int, experts: int) -> dict[str, object]:
    """Make the evidence of a size and the report of it; return its cost."""
    out = write_output(folder)
    add_evidence(out, layers, experts)
    add_losses(out, layers, experts)
    cost = measured("report", out)
    if cost.code:
        sys.exit(cost.printed)
    page = out / "halfbyte" / "report.html"
    return {
        "layers": layers,
        "experts": experts,
        "core_seconds": round(cost.core_seconds, 2),
        "wall_seconds": round(cost.wall_seconds, 2),
        "peak_mb": round(cost.peak_mb),
        "nbytes": page.stat().st_size,
    }


def open_one(browser: Chromium, path: Path, picture: Path | None) -> dict[str, object]:
    """Load a report several times; return the seconds until `load`, console messages and requests."""
    pages = [Page(browser, path) for _ in range(LOADS)]
    last = pages[-1]
    noise, asked = last.said(*NOISE), last.requests()
    if picture is not None:
        width, height = last.value(FULL_SIZE)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = last.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
    return {
        "load_seconds": [round(page.seconds, 3) for page in pages],
        "elements": last.value("document.querySelectorAll('*').length"),
        "said_on_the_console": len(noise),
        "asked_for_besides": len([url for url in asked if url != path.resolve().as_uri()]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default=platform.machine(), help="for the result's name")
    parser.add_argument("--pictures", type=Path, help="a folder for PNG files of the pages")
    parser.add_argument("-o", "--output", type=Path, help="the result's file")
    given = parser.parse_args()
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)  # before any work
    today = datetime.datetime.now(tz=datetime.timezone.utc)
    output = given.output or ROOT / f"benchmarks/results/report_{given.machine}_{today:%Y%m}.json"
    program = find_chromium()
    if program is None:
        sys.exit(INSTALL)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch, Chromium(program, Path(scratch) / "profile") as browser:
        version = browser.ask("Browser.getVersion")["product"]
        for layers, experts in SIZES:
            folder = Path(scratch) / f"{layers}x{experts}"
            folder.mkdir()
            row = write_one(folder, layers, experts)
            picture = given.pictures / f"report-{layers}x{experts}.png" if given.pictures else None
            rows.append(row | open_one(browser, folder / "out" / "halfbyte" / "report.html", picture))
            print(json.dumps(rows[-1]), flush=True)
    result = {"date": f"{today:%Y-%m-%d}", "browser": version, "rows": rows}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
