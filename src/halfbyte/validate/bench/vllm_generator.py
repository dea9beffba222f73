"""Blocks of load from the real `vllm bench serve`, run in a process of vLLM's Python that is started once.

Nothing here can wait for ever: a request, a block and the start have limits, and a process that exceeds one is ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from halfbyte.errors import MachineError
from halfbyte.serve.installed import engine_environment, installed
from halfbyte.validate.bench.shapes import Point
from halfbyte.validate.endpoint import PATHS, api_key, without_keys

STARTS_WITHIN_S = 300.0  # importing vLLM from a cold disk, and loading a tokenizer
_SPARE_S = 60.0  # beyond what the requests may take: making prompts, summing up
_ENDS_WITHIN_S = 5.0
_SCRIPT = Path(__file__).with_name("generator_process.py")
_TAIL = 5
# Prompts are made in `generator_process`. By chat or not: `timed_trace` is the one kind that vLLM sends as token ids.
_DATA_SET = {False: ("--dataset-name", "timed_trace", "--no-self-timed"), True: ("--dataset-name", "random")}


@dataclass(frozen=True, slots=True)
class Order:
    """One block of requests to one server."""

    url: str
    model: str
    tokenizer: str
    point: Point
    requests: int
    name: str
    body_seed: int
    head_seed: int
    request_within_s: float
    trust_remote_code: bool = False

    @property
    def within_s(self) -> float:
        """How long the block may take at most: as many rounds as there are, each as slow as is allowed."""
        rounds = -(-self.requests // self.point.concurrency)
        return rounds * self.request_within_s + _SPARE_S

    def arguments(self) -> list[str]:
        """Return what `vllm bench serve` would be called with."""
        return [
            *("--backend", "openai-chat" if self.point.chat else "openai", "--base-url", self.url),
            *("--endpoint", PATHS["chat" if self.point.chat else "completions"]),
            *("--model", self.model, "--tokenizer", self.tokenizer),
            *_DATA_SET[self.point.chat],
            *("--num-prompts", str(self.requests)),
            *("--max-concurrency", str(self.point.concurrency), "--ignore-eos", "--temperature", "0"),
            *("--seed", str(self.body_seed), "--ready-check-timeout-sec", "0", "--disable-tqdm", "--save-detailed"),
            *(("--trust-remote-code",) if self.trust_remote_code else ()),
        ]

    def as_json(self) -> str:
        """Return the line for the process."""
        return json.dumps(
            {
                "name": self.name,
                "arguments": self.arguments(),
                "prompt_tokens": self.point.prompt,
                "output_tokens": self.point.output,
                "content": self.point.content,
                "as_text": self.point.chat,
                "body_seed": self.body_seed,
                "head_seed": self.head_seed,
                "request_within_s": self.request_within_s,
            }
        )


class LoadGenerator(Protocol):
    """What runs blocks; the tests of faults have a small one."""

    def block(self, order: Order) -> dict[str, Any]:
        """Run a block; return {"result", "processor_share"} or {"failed": why}."""
        ...


def seed_of(*parts: object) -> int:
    """Return a number below 2^31 that depends on all parts and on nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


class VllmGenerator:
    """The process; a context, at whose end it is gone. Its output goes to a log."""

    def __init__(self, log: Path, python: Sequence[str] | None = None) -> None:
        command = installed("vllm").command if python is None else Path(python[0])
        self._command = [*(python or (str(command.with_name("python")),)), str(_SCRIPT)]
        key = {"OPENAI_API_KEY": api_key()} if api_key() else {}  # where vLLM's benchmark takes it from
        self._environment = engine_environment(command, {"TOKENIZERS_PARALLELISM": "false", **key})
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = False
        self._read = b""

    def __enter__(self) -> VllmGenerator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def block(self, order: Order) -> dict[str, Any]:
        """Run one block. A process that ends or exceeds the limit is a failed block; the next one starts anew."""
        process = self._started()
        within = order.within_s + (0 if self._answered else STARTS_WITHIN_S)
        try:
            stdin = _pipe(process.stdin)
            stdin.write(f"{order.as_json()}\n".encode())
            stdin.flush()
            line = self._line(_pipe(process.stdout), within)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self.end()
            return {"failed": f"the block did not end within {within:.0f} s"}
        if not line:
            self.end()
            return {"failed": f"the load generator ended: {self._last_words()}"}
        self._answered = True
        return json.loads(line)

    def end(self) -> None:
        """End the process and what it started."""
        process, self._process, self._answered, self._read = self._process, None, False, b""
        if process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                _pipe(stream).close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.end()
            try:
                with self._log.open("ab") as log:
                    # In a session of its own: a terminal's Ctrl-C is for us, and we end it.
                    self._process = subprocess.Popen(
                        self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                        env=self._environment, start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                fix = "vLLM's environment must have a `python` beside its `vllm`"
                raise MachineError(f"cannot start {self._command[0]}: {error.strerror}", fix=fix) from None
        return self._process

    def _line(self, stdout: IO[bytes], within: float) -> bytes:
        """Return one line of the process, nothing if it ended; TimeoutError when it takes too long."""
        until = time.monotonic() + within
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                left = until - time.monotonic()
                if left <= 0 or not ready.select(left):
                    raise TimeoutError
                found = os.read(stdout.fileno(), 1 << 16)
                if not found:
                    return b""
                self._read += found
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return "without a word"
        said = [line.strip() for line in lines if line.strip()]
        return without_keys(" / ".join(said[-_TAIL:])) or "without a word"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise BrokenPipeError
    return stream
