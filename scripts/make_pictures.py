"""Create the README pictures from a real run of the demo: `python scripts/make_pictures.py` (`pip install pyte` first).

The demo runs in a pty whose screen pyte tracks. The final screen becomes an SVG without scripts or external fonts. A
headless Chromium takes a screenshot of the report.
"""

from __future__ import annotations

import base64
import fcntl
import html
import itertools
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
sys.path.insert(0, str(ROOT / "tests"))

from browser.chromium import INSTALL, Chromium, Page, find_chromium  # noqa: E402

OUT = "runs/demo-nvfp4"  # deleted before the run
COLUMNS, LINES = 118, 30
WIDTH, HEIGHT = 1180, 1060  # of the report's screenshot, in CSS pixels
BEGIN = "$ halfbyte release"
TITLE = "make demo: each stage with its time, the gates, and the verdict"
COLORS = {"default": "#d5d8dc", "green": "#7ec77b", "red": "#f07a7a", "brown": "#e5c07b", "brightblack": "#8b949e"}
CELL, LINE, MARGIN = 8.4, 20, 16  # character width, line height and margin in SVG units


def screen_of(command: list[str]) -> list[list[Any]]:
    """Run a command in a terminal and return the cells of its final screen."""
    import pyte

    screen: Any = pyte.Screen(COLUMNS, 200)  # high enough to avoid scrolling
    stream: Any = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # EOF: the process closed its end
                break
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {process.returncode}")
    lines = [[screen.buffer[row][column] for column in range(COLUMNS)] for row in range(screen.lines)]
    return [line for line in lines if "".join(cell.data for cell in line).strip()]


def terminal_svg(lines: list[list[Any]], title: str) -> str:
    """Render screen lines as SVG, one text element per run of equally styled characters."""
    drawn: list[str] = []
    for number, line in enumerate(lines):
        y, column = MARGIN + LINE * (number + 0.75), 0
        for (color, bold), cells in itertools.groupby(line, lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in cells)
            if text.strip():
                look = f'x="{MARGIN + CELL * column:.1f}" y="{y:.0f}" fill="{COLORS.get(color, COLORS["default"])}"'
                weight = ' font-weight="bold"' if bold else ""
                drawn.append(f'<text {look}{weight} textLength="{CELL * len(text):.1f}">{html.escape(text)}</text>')
            column += len(text)
    width, height = 2 * MARGIN + CELL * COLUMNS, 2 * MARGIN + LINE * len(lines)
    style = "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{html.escape(title)}</title><style>{style}</style>",
        '<rect width="100%" height="100%" rx="6" fill="#16181d"/>',
        *drawn,
        "</svg>\n",
    ])  # fmt: skip


def screenshot(report: Path, picture: Path) -> None:
    """Save a screenshot of a page."""
    program = find_chromium()
    if program is None:
        sys.exit(INSTALL)
    with tempfile.TemporaryDirectory() as folder, Chromium(program, Path(folder) / "profile") as browser:
        page = Page(browser, report, width=WIDTH)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        image = page.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    picture.write_bytes(base64.b64decode(image["data"]))


def main() -> None:
    """Run the demo from scratch, then create both pictures."""
    PICTURES.mkdir(exist_ok=True)
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    lines = screen_of([sys.executable, "examples/demo.py", "nvfp4"])
    begin = next(at for at, line in enumerate(lines) if "".join(cell.data for cell in line).startswith(BEGIN))
    (PICTURES / "release.svg").write_text(terminal_svg(lines[begin:], TITLE), encoding="utf-8")
    screenshot(ROOT / OUT / "halfbyte" / "report.html", PICTURES / "report.png")
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
