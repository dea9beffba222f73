"""A real Chromium for tests, controlled through --remote-debugging-pipe, without a driver, library or port."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / ".browser"  # where `make browser` puts one
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = "no Chromium: run `make browser`, or `apt-get install chromium`, or set HALFBYTE_CHROMIUM to one"
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """Return a Chromium: the configured one, that of `make browser`, or the system's."""
    named = os.environ.get("HALFBYTE_CHROMIUM")
    local = HERE / "chromium"
    return named or (str(local) if local.is_file() else next(filter(None, map(shutil.which, NAMES)), None))


class Chromium:
    """A browser process; a context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        shell = f'exec "$0" "$@" 3<&{read} 4>&{write}'
        words = ["bash", "-c", shell, program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        libraries = HERE / "al2023/lib"
        own = {"LD_LIBRARY_PATH": str(libraries)} if program.startswith(str(HERE)) and libraries.is_dir() else {}
        with (profile.parent / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                words, pass_fds=(read, write), stdout=log, stderr=log, env={**os.environ, **own}
            )
        os.close(read)
        os.close(write)
        self._held, self._number, self.events = b"", 0, []

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def ask(self, method: str, session: str | None = None, **params):
        """Send a command and return its result; keep events that arrive before it."""
        self._number += 1
        message = {
            "id": self._number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next(60)
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def wait_for(self, method: str) -> None:
        """Wait for an event."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next(60))

    def _next(self, seconds: float):
        until = time.monotonic() + seconds
        while b"\0" not in self._held:
            waiting = select.poll()
            waiting.register(self._read, select.POLLIN)
            assert waiting.poll(1_000 * max(0, until - time.monotonic())), "Chromium does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium ended"
            self._held += piece
        line, _, self._held = self._held.partition(b"\0")
        return json.loads(line)


class Page:
    """One tab with a file, and everything it logged, requested and blocked."""

    def __init__(self, browser: Chromium, path: Path, *, width: int = 1100, dark: bool = False) -> None:
        self.browser = browser
        browser.events.clear()
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        browser.events.clear()
        start = time.monotonic()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        browser.wait_for("Page.loadEventFired")
        self.seconds = time.monotonic() - start

    def ask(self, method: str, **params):
        return self.browser.ask(method, self.session, **params)

    def value(self, expression: str):
        """Return the value of an expression in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def said(self, *methods: str) -> list[dict]:
        """Return events of some kinds since the page started to load."""
        self.value("new Promise(done => setTimeout(done, 150))")
        return [event for event in self.browser.events if event.get("method") in methods]

    def requests(self) -> list[str]:
        """Return all requested addresses except the page and its embedded pictures."""
        asked = [event["params"]["request"]["url"] for event in self.said("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith("data:")]
