"""One round: a small random model is released in this process, and by turns in others.

Every round makes, audits and compares a checkpoint, and writes its card and report, with the next recipe. By turns it
also writes and verifies its provenance, runs a whole release whose commands are those of tests/flow/fake_stage.py,
starts and ends the engine of tests/flow/fake_engine.py, and types `halfbyte release` as a user would, whose stages are
all real. The output of a recipe must have the same bytes in every round.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "flow")]

from calibratable import DECART, UNSERVED_RELEASE, WAFER, arguments, small, texts  # noqa: E402 - beside the tests
from release_runner import made  # noqa: E402

from halfbyte.cli import main as cli  # noqa: E402
from halfbyte.errors import EXIT_INTERRUPTED, InterruptedRunError  # noqa: E402
from halfbyte.release import write_provenance  # noqa: E402
from halfbyte.serve.engine_process import then_shell  # noqa: E402
from halfbyte.serve.ports import held_port  # noqa: E402
from halfbyte.serve.run import run_engine  # noqa: E402
from halfbyte.ui.console import Output  # noqa: E402

FAKE_ENGINE = ROOT / "tests" / "flow" / "fake_engine.py"
RECIPE = ROOT / "src" / "halfbyte" / "recipes" / "kimi-k2.6-nvfp4a16.yaml"
FAKE_BLOCK = {
    "audit": {"sample": 2},
    "compare": {"data": ["a=a.jsonl"], "samples": 4},
    "scripts": {"gpus": "1xB200"},
    "serve": {"emulate": True},
    "probe": {"profile": "mini", "budget": "10s"},
    "eval": {"suite": "mini", "against": "source", "limit": 4},
    "bench": {"shape": ["8:8"], "blocks": 1},
    "gates": {"audit": "passed", "compare": {"max_kl": 0.1}, "probe": "passed", "eval": "accept"},
    "provenance": True,
    "card": True,
    "report": True,
}


class RoundFailedError(Exception):
    """A command of a round did not do its work."""


class Rounds:
    """What all rounds share: one source, its texts, and a folder that every round leaves as it found it."""

    def __init__(self, root: Path, *, typed_every: int = 25) -> None:
        self.work, self.say = root / "work", root / "say"
        self.work.mkdir()
        self.say.mkdir()
        self.source = small(root / "source", experts=8)
        self.data = texts(root / "texts.jsonl")
        self.recipe = root / "release.yaml"
        block = UNSERVED_RELEASE.format(data=self.data)
        self.recipe.write_text(RECIPE.read_text(encoding="utf-8") + block, encoding="utf-8")
        self.recipes: Sequence[Sequence[str]] = (
            ("-r", "kimi-k2.6-mxfp4-wafer"),
            arguments(self.data, recipe=WAFER),
            ("-r", "kimi-k2.6-nvfp4a16"),
            arguments(self.data, recipe=DECART),
            ("-r", "kimi-k2.6-bf16"),
        )
        self.digests: dict[int, str] = {}
        self.typed_every = typed_every
        os.environ["HALFBYTE_FAKE"] = str(self.say)

    def __call__(self, number: int) -> list[str]:
        """Run a round; return the names of its steps."""
        out = self.work / "out"
        self.pipeline(number, out)
        extra = self.extra(number)
        if extra is not None:
            extra(out)
        shutil.rmtree(out)
        return ["pipeline", *([extra.__name__] if extra is not None else [])]

    def extra(self, number: int) -> Callable[[Path], None] | None:
        """Return the additional steps of a round: all of them within six rounds, the slowest less often."""
        if number % self.typed_every == self.typed_every - 1:
            return self.typed_release
        return (None, self.provenance, self.fake_release, None, self.engine, self.fake_release)[number % 6]

    def pipeline(self, number: int, out: Path) -> None:
        """Create a checkpoint and all of its evidence with the functions behind the commands."""
        which = number % len(self.recipes)
        command("quantize", self.source, out, *self.recipes[which])
        command("audit", out, "--against", self.source)
        sizes = ("--samples", 6, "--length", 24)
        kept = ("-o", out / "halfbyte" / "compare.json")
        command("compare", self.source, out, "--data", f"news={self.data}", *sizes, *kept)
        command("card", out)
        command("report", out)
        digest = weights_digest(out)
        if self.digests.setdefault(which, digest) != digest:
            raise RoundFailedError(f"round {number}: {self.recipes[which]} made other bytes than before")

    def provenance(self, out: Path) -> None:
        """Write where it comes from, and believe nothing of it."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = write_provenance.main(str(out), str(self.source))
        finished("write_provenance", code, said.getvalue())
        command("verify", out)

    def fake_release(self, _: Path) -> None:
        """Run a release with a server and all stages, then once more, when everything is kept."""
        out, said = self.work / "fake", io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                ended = [made(self.source, out, FAKE_BLOCK).run(Output()) for _ in range(2)]
            except InterruptedRunError:
                raise KeyboardInterrupt from None
        finished("release with fake commands", ended[1].judged.verdict != "ACCEPT", said.getvalue())
        ran = (self.say / "ran").read_text().split("\n")[:-1]
        (self.say / "ran").unlink()
        shutil.rmtree(out)
        if len(ran) != len(FAKE_BLOCK) + 1:  # the gates are not a stage; quantize and the source's server are two more
            raise RoundFailedError(f"the fake release ran {ran}")

    def engine(self, _: Path) -> None:
        """Start an engine, ask a shell to use it, and end both."""
        log, said = self.work / "engine.log", io.StringIO()
        with held_port(None) as port, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            engine = [sys.executable, str(FAKE_ENGINE), str(port)]
            then = then_shell('test -n "$HALFBYTE_URL"', "fake")
            url, how = f"http://127.0.0.1:{port}", {"served_name": "fake", "then": then, "patience": 0.1}
            code = run_engine(engine, dict(os.environ), url, log=log, out=Output(), **how)
        finished("engine", code, said.getvalue())
        for path in self.work.glob("engine.log*"):
            path.unlink()

    def typed_release(self, _: Path) -> None:
        """Type `halfbyte release`: a process of its own, whose stages are processes too."""
        out = self.work / "typed"
        words = ["release", str(self.source), str(out), "-r", str(self.recipe)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [sys.executable, "-m", "halfbyte", *words], env=environment, capture_output=True, text=True, check=False
        )
        finished("halfbyte release", done.returncode, done.stdout + done.stderr)
        verdict = json.loads((out / "halfbyte" / "release.json").read_text())["verdict"]
        shutil.rmtree(out)
        if verdict != "ACCEPT":
            raise RoundFailedError(f"the release was judged {verdict}")


def command(*words: object) -> None:
    """Run a command in this process; show its output only if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run([str(word) for word in words])
    finished(f"halfbyte {words[0]}", code, said.getvalue())


def finished(name: str, code: int, said: str) -> None:
    """Raise unless a command ended well; Ctrl-C, which commands answer with an exit code, is raised again."""
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise RoundFailedError(f"{name} ended with exit code {int(code)}:\n{said[-2000:]}")


def weights_digest(out: Path) -> str:
    """Return one hash of all shards."""
    digest = hashlib.sha256()
    for path in sorted(out.glob("*.safetensors")):
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
