"""Run load blocks with `vllm bench serve`, in one long-lived process of vLLM's Python.

Requests, blocks and the start have timeouts. A process that exceeds one is terminated.
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

from halfbyte.endpoint.client import PATHS, api_key, without_keys
from halfbyte.errors import MachineError
from halfbyte.evidence.benchmark import LoadPoint
from halfbyte.serve.installed import engine_environment, installed

STARTS_WITHIN_S = 300.0  # importing vLLM from a cold disk and loading a tokenizer
_SPARE_S = 60.0  # for creating prompts and computing results
_ENDS_WITHIN_S = 5.0
_SCRIPT = Path(__file__).with_name("generator_process.py")
_TAIL = 5
# By chat or not. `generator_process` replaces the prompts; `timed_trace` is the only data set sent as token ids.
_DATA_SET = {False: ("--dataset-name", "timed_trace", "--no-self-timed"), True: ("--dataset-name", "random")}


@dataclass(frozen=True, slots=True)
class Order:
    """One block of requests to one server."""

    url: str
    model: str
    tokenizer: str
    point: LoadPoint
    requests: int
    name: str
    body_seed: int
    head_seed: int
    request_within_s: float
    trust_remote_code: bool = False

    @property
    def within_s(self) -> float:
        """Timeout of the block: its rounds times the request timeout."""
        rounds = -(-self.requests // self.point.concurrency)
        return rounds * self.request_within_s + _SPARE_S

    def arguments(self) -> list[str]:
        """Return the arguments of `vllm bench serve`."""
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
        """Return the input line of the process."""
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
    """A generator of load blocks."""

    def block(self, order: Order) -> dict[str, Any]:
        """Run a block. Return {"result", "processor_share"} or {"failed": reason}."""
        ...


def seed_of(*parts: object) -> int:
    """Return a deterministic number below 2^31 from all parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


class VllmGenerator:
    """A context that manages the load generator's process. Its output goes to a log."""

    def __init__(self, log: Path, python: Sequence[str] | None = None) -> None:
        command = installed("vllm").command if python is None else Path(python[0])
        self._command = [*(python or (str(command.with_name("python")),)), str(_SCRIPT)]
        key = {"OPENAI_API_KEY": api_key()} if api_key() else {}  # read by vLLM's benchmark
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
        """Run one block. If the process exits or times out, the block fails and the next one starts a new process."""
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
            return {"failed": f"the block timed out after {within:.0f} s"}
        if not line:
            self.end()
            return {"failed": f"the load generator exited: {self._log_tail()}"}
        self._answered = True
        return json.loads(line)

    def end(self) -> None:
        """Terminate the process group."""
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
                    # A separate session, so that Ctrl-C reaches only this process, which terminates the other.
                    self._process = subprocess.Popen(
                        self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                        env=self._environment, start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                fix = "vLLM's environment must have a `python` next to its `vllm`"
                raise MachineError(f"cannot start {self._command[0]}: {error.strerror}", fix=fix) from None
        return self._process

    def _line(self, stdout: IO[bytes], within: float) -> bytes:
        """Return one line of output, or nothing if the process exited. Raise TimeoutError if it takes too long."""
        until = time.monotonic() + within
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                left = until - time.monotonic()
                if left <= 0 or not ready.select(left):
                    raise TimeoutError
                data = os.read(stdout.fileno(), 1 << 16)
                if not data:
                    return b""
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _log_tail(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").split("\n")
        except OSError:
            return "no output"
        lines = [line.strip() for line in lines if line.strip()]
        return without_keys(" / ".join(lines[-_TAIL:])) or "no output"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise BrokenPipeError
    return stream
