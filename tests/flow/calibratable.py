"""Small checkpoints that can be calibrated: pico with a tokenizer, texts for it, and commands to kill."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from pico import write_pico
from tokenizers import Tokenizer, models, pre_tokenizers

REPOSITORY = Path(__file__).parents[2]
END = "<|end|>"
WAFER, DECART, NVIDIA = "kimi-k2.6-nvfp4-wafer", "kimi-k2.7-code-nvfp4-decart", "kimi-k2.6-nvfp4-nvidia"
SHORT = "calibrate.sequence_length=24"
# Of a recipe: every stage that needs no server.
UNSERVED_RELEASE = """
release:
  audit: {{sample: 2}}
  compare: {{data: ["news={data}"], samples: 6, length: 24}}
  gates: {{audit: passed, compare: {{max_kl: 5.0}}}}
  provenance: true
  card: true
  report: true
"""
# A process that has imported all and computed nothing, so that its children are the command without the seconds before.
_LAUNCHER = """
import json, os, sys
import halfbyte.engine.measure_statistics, halfbyte.engine.activation_scales
import halfbyte.calibrate.report, halfbyte.audit.run
from halfbyte.cli import main as cli
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if not pid:
        words = os.open(job["words"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(words, 1); os.dup2(words, 2); os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if job["slow"]:
            import time, halfbyte.engine.runner as jobs, halfbyte.calibrate.stream as stream
            apply, run_layer = jobs.apply, stream.run_layer
            jobs.apply = lambda *given: (time.sleep(job["slow"]), apply(*given))[1]
            stream.run_layer = lambda *given, **more: (time.sleep(10 * job["slow"]), run_layer(*given, **more))[1]
        cli.main(job["argv"])
    print(pid, flush=True)
    if job["wait"]:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Launcher:
    """Run the command line in forked processes with all imports done."""

    def __init__(self, folder: Path) -> None:
        self._words = folder / "words.txt"
        self._server = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, *argv: object, slow: float = 0.0, wait: bool = False) -> int:
        """Start a command and return its process. `slow` adds seconds to every job, ten times as many to a layer."""
        job = {"argv": [str(argument) for argument in argv], "slow": slow, "wait": wait, "words": str(self._words)}
        assert self._server.stdin is not None
        self._words.unlink(missing_ok=True)
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        return self._number()

    def run(self, *argv: object) -> tuple[int, str]:
        """Run a command to completion; return its exit code and output."""
        self.start(*argv, wait=True)
        return self.exit_code(), self.words()

    def exit_code(self) -> int:
        """Return the exit code of a command started with `wait`; it must have exited."""
        return self._number()

    def words(self) -> str:
        """Return the output of the last command so far."""
        return self._words.read_text(encoding="utf-8") if self._words.exists() else ""

    def _number(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(30)


def is_running(pid: int) -> bool:
    """Return whether a child of a launcher is running (zombies are not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.001)


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    """Send a signal to a child of a launcher and wait for its exit."""
    os.kill(pid, signum)
    wait_until(lambda: not is_running(pid))


def with_words(folder: Path) -> Path:
    """Give a pico checkpoint a tokenizer of its size: one token per printable character."""
    characters = [chr(code) for code in range(32, 127)]
    words = {text: number for number, text in enumerate(["<unk>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (folder / "tiktoken.model").unlink(missing_ok=True)
    return folder


def small(folder: Path, kind: str = "int4-k2.6", **shape: int) -> Path:
    """Write a pico checkpoint that can be calibrated."""
    return with_words(write_pico(folder, kind, **shape))


def texts(path: Path, count: int = 16, seed: int = 0, column: str = "article") -> Path:
    """Write samples of different lengths, so that some rows are padded."""
    dice = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJ.,"
    lines = [{column: "".join(dice.choices(letters, k=dice.randint(5, 40)))} for _ in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def arguments(data: Path, *, recipe: str = WAFER, samples: int = 6, sets: tuple[str, ...] = ()) -> list[str]:
    """Return the arguments of a small calibrated run, without its folders."""
    words = ["-r", recipe, "--data", f"news={data}", "--samples", str(samples), "--set", SHORT]
    return words + [word for override in sets for word in ("--set", override)]


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a checkpoint, without halfbyte's own records."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.relative_to(folder).parts[0] != "halfbyte"
    ]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
