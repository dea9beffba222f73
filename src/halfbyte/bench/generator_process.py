"""The load generator's process, run by vLLM's Python, which does not need halfbyte.

Importing `vllm bench serve` takes ten seconds. This process imports it once and runs its `main_async` for each JSON
line on stdin, with the arguments of the command line. Each result is one JSON line on stdout. It differs from the
command in three points: prompts are token ids of exact length, requests have a timeout (vLLM's is six hours), and a
response without the server's token count is an error.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# The modules next to this file must not shadow modules that vLLM imports.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

HEAD = 8  # unique tokens at the start of each prompt, which defeat prefix caches
_LIBRARY_FILES = ("argparse.py", "ast.py", "asyncio/base_events.py", "datetime.py", "inspect.py", "tarfile.py",
                  "typing.py", "zipfile.py", "zipfile/__init__.py")  # fmt: skip
_RECORDS = 4000


def main() -> None:
    """Answer each line of stdin with one line. Redirect vLLM's output to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    generator = Generator()
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        try:
            answer = generator.block(order)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Generator:
    """vLLM's benchmark, imported once, with cached tokenizers and texts."""

    def __init__(self) -> None:
        self._serve: Any = None
        self._tokenizers: dict[str, Any] = {}
        self._bodies: dict[tuple[str, str], list[int]] = {}

    def block(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one block. Return the result of `--save-detailed` without texts, and the share of a core used."""
        serve = self._benchmark()
        arguments = self._parse(order["arguments"])
        tokenizer = self._tokenizer(arguments)
        lengths = (order["prompt_tokens"], order["output_tokens"], arguments.num_prompts)
        words = ordinary_tokens(tokenizer)
        body = words if order["content"] == "random" else self._body(order["content"], arguments.tokenizer, tokenizer)
        prompts = make_prompts(body, words, lengths[0], lengths[2], order["body_seed"], order["head_seed"],
                               shuffled=order["content"] == "random")  # fmt: skip
        requests = [
            serve.SampleRequest(
                prompt=tokenizer.decode(prompt) if order["as_text"] else prompt,
                prompt_len=lengths[0],
                expected_output_len=lengths[1],
                request_id=f"{order['name']}-{at}",
            )
            for at, prompt in enumerate(prompts)
        ]
        serve.get_samples = _always(requests)
        serve.get_tokenizer = _always(tokenizer)  # loaded once, not for every block
        serve.ASYNC_REQUEST_FUNCS[arguments.backend] = self._bounded(arguments.backend, order["request_within_s"])
        before, start = _cpu_seconds(), time.perf_counter()
        result: dict[str, Any] = asyncio.run(serve.main_async(arguments))
        seconds = time.perf_counter() - start
        result.pop("generated_texts", None)
        return {"result": result, "processor_share": (_cpu_seconds() - before) / seconds if seconds else 0.0}

    def _benchmark(self) -> Any:
        if self._serve is None:
            self._serve = importlib.import_module("vllm.benchmarks.serve")
            self._request_functions = dict(self._serve.ASYNC_REQUEST_FUNCS)
        return self._serve

    def _parse(self, arguments: Sequence[str]) -> Any:
        parser = self._serve.FlexibleArgumentParser()
        self._serve.add_cli_args(parser)
        return parser.parse_args(list(arguments))

    def _tokenizer(self, arguments: Any) -> Any:
        name = arguments.tokenizer
        if name not in self._tokenizers:
            load = importlib.import_module("vllm.tokenizers").get_tokenizer
            self._tokenizers[name] = load(name, trust_remote_code=arguments.trust_remote_code)
        return self._tokenizers[name]

    def _body(self, content: str, name: str, tokenizer: Any) -> list[int]:
        if (content, name) not in self._bodies:
            self._bodies[content, name] = list(tokenizer.encode(text_of(content), add_special_tokens=False))
        return self._bodies[content, name]

    def _bounded(self, backend: str, seconds: float) -> Any:
        """Return vLLM's request function with a timeout. Failures have an error message."""
        request_function = self._request_functions[backend]

        async def send(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
            started = time.perf_counter()
            try:
                output = await asyncio.wait_for(request_function(request_func_input, session, pbar), seconds)
            except asyncio.TimeoutError:
                output = importlib.import_module("vllm.benchmarks.lib.endpoint_request_func").RequestFuncOutput()
                output.start_time, output.prompt_len = started, request_func_input.prompt_len
                output.error = f"timed out after {seconds:g} s"
            if output.success and not output.output_tokens:  # vLLM would count with the tokenizer, perhaps wrongly
                output.success, output.error = False, "the server does not report its output tokens (no usage)"
            return output

        return send


def _always(value: Any) -> Callable[..., Any]:
    """Return a function that always returns this value."""

    def constant(*_: Any, **__: Any) -> Any:
        return value

    return constant


def make_prompts(  # noqa: PLR0913 - everything that determines a prompt
    body: Sequence[int],
    words: Sequence[int],
    tokens: int,
    count: int,
    body_seed: int,
    head_seed: int,
    *,
    shuffled: bool,
) -> list[list[int]]:
    """Return prompts of exactly `tokens` tokens: a unique head, then content.

    Both servers get the same content (`body_seed`) with different heads (`head_seed`), so cached prompts of an earlier
    block, or of the other arm on the same server, do not help.
    """
    content, heads = random.Random(body_seed), random.Random(head_seed)
    prompts: list[list[int]] = []
    for _ in range(count):
        head = [heads.choice(words) for _ in range(min(HEAD, tokens))]
        rest = tokens - len(head)
        if shuffled:
            prompts.append(head + [content.choice(body) for _ in range(rest)])
        else:
            start = content.randrange(len(body))
            prompts.append(head + [body[(start + at) % len(body)] for at in range(rest)])
    return prompts


def ordinary_tokens(tokenizer: Any) -> list[int]:
    """Return the ids of ordinary tokens. Special tokens could end a turn or start an image."""
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    return sorted(set(tokenizer.get_vocab().values()) - special)


def text_of(content: str) -> str:
    """Return a few hundred kilobytes of text from the Python installation.

    prose: the language reference of `help()`. code: modules of the standard library. json: random records.
    """
    if content == "prose":
        return "\n\n".join(importlib.import_module("pydoc_data.topics").topics.values())
    if content == "code":
        library = Path(os.__file__).parent
        return "\n\n".join((library / name).read_text() for name in _LIBRARY_FILES if (library / name).exists())
    if content == "json":
        drawn = random.Random(0)
        names = ("Ada", "Boris", "Chen", "Dilan", "Eva", "Femi", "Goro", "Hana")
        records = [
            {"id": at, "name": drawn.choice(names), "score": round(drawn.uniform(0, 100), 2),
             "active": drawn.choice((True, False)), "tags": drawn.sample(names, 2)}
            for at in range(_RECORDS)
        ]  # fmt: skip
        return json.dumps(records, indent=1)
    raise ValueError(f"unknown content {content!r}")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
