"""Make the README's pictures from a real run: `python scripts/make_pictures.py [OUT]` (minutes; `pip install pyte`).

The demo runs in a terminal of its own (a pty whose screen pyte keeps); the screen at its end becomes an SVG without
scripts or fonts from anywhere. The report that it wrote is photographed by a headless Chromium.
"""

from __future__ import annotations

import base64
import fcntl
import io
import os
import pty
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

COLUMNS, LINES = 118, 30
WIDTH, HEIGHT = 1180, 1060  # of the report's picture, in CSS pixels
BEGIN = "$ halfbyte release"
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{chrome}">
<style>{styles} text {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
white-space: pre; }}</style>
<rect width="100%" height="100%" rx="6" fill="#16181d"/>
<g transform="translate(16 14)" clip-path="none">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def screen_of(command: list[str]) -> list[list[Any]]:
    """Run a command in a terminal; return the characters of the lines that it leaves there."""
    import pyte

    screen: Any = pyte.Screen(COLUMNS, 200)  # high enough that nothing scrolls away
    stream: Any = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                stream.feed(os.read(ours, 65536))
            except OSError:  # the other end is closed
                break
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    lines = [[screen.buffer[row][column] for column in range(COLUMNS)] for row in range(screen.lines)]
    return [line for line in lines if "".join(cell.data for cell in line).strip()]


def terminal_svg(lines: list[list[Any]], title: str) -> str:
    """Return the lines of a screen as a picture."""
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in lines:
        text = Text()
        for cell in line:
            color = None if cell.fg == "default" else cell.fg.replace("brown", "yellow")
            text.append(cell.data, Style(color=color if color != "brightblack" else "bright_black", bold=cell.bold))
        text.rstrip()
        console.print(text, no_wrap=True)
    return console.export_svg(title=title, code_format=SVG)


def photograph(report: Path, picture: Path) -> None:
    """Let a browser draw a page."""
    program = find_chromium()
    if program is None:
        sys.exit(INSTALL)
    with tempfile.TemporaryDirectory() as folder, Chromium(program, Path(folder) / "profile") as browser:
        page = Page(browser, report, width=WIDTH)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        drawn = page.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
    picture.write_bytes(base64.b64decode(drawn["data"]))


def main(folder: str | None = None) -> None:
    """Run the demo, then make both pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(folder or f"{temporary}/kimi-mini-NVFP4").absolute()
        lines = screen_of([sys.executable, "examples/demo.py", "nvfp4", str(out)])
        begin = next(at for at, line in enumerate(lines) if "".join(cell.data for cell in line).startswith(BEGIN))
        (PICTURES / "release.svg").write_text(terminal_svg(lines[begin:], "halfbyte release"), encoding="utf-8")
        photograph(out / "halfbyte" / "report.html", PICTURES / "report.png")
    for picture in sorted(PICTURES.iterdir()):
        print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
