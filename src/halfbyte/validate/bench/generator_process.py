"""The load generator's own process, run by the Python that vLLM is installed in; halfbyte is not needed there.

`vllm bench serve` takes ten seconds to import. Here it is imported once, and its `main_async` runs for each line of
JSON on stdin, with the arguments that the command line would have got; one line of JSON on stdout answers. Three
things differ from the command, and only these: what is asked (prompts of exact lengths as token ids, which no server
can count otherwise); no request may last longer than a limit (vLLM's own is six hours); and an answer whose tokens the
server does not count is an error.
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

# Beside this file are modules of halfbyte whose names others may look for.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

HEAD = 8  # tokens at the beginning of each prompt that no other has: one would do, a prefix cache compares from there
CONTENTS = ("random", "prose", "code", "json")
_LIBRARY_FILES = ("argparse.py", "ast.py", "asyncio/base_events.py", "datetime.py", "inspect.py", "tarfile.py",
                  "typing.py", "zipfile.py", "zipfile/__init__.py")  # fmt: skip
_RECORDS = 4000


def main() -> None:
    """Answer one line for each line of stdin until it ends; whatever vLLM prints goes to stderr."""
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
    """vLLM's benchmark, imported once, and the tokenizers and texts that were needed so far."""

    def __init__(self) -> None:
        self._serve: Any = None
        self._tokenizers: dict[str, Any] = {}
        self._bodies: dict[tuple[str, str], list[int]] = {}

    def block(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run one block; return what `--save-detailed` saves, less the texts, and the processor time it took."""
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
        before, start = _processor_seconds(), time.perf_counter()
        found: dict[str, Any] = asyncio.run(serve.main_async(arguments))
        seconds = time.perf_counter() - start
        found.pop("generated_texts", None)
        return {"result": found, "processor_share": (_processor_seconds() - before) / seconds if seconds else 0.0}

    def _benchmark(self) -> Any:
        if self._serve is None:
            self._serve = importlib.import_module("vllm.benchmarks.serve")
            self._asked = dict(self._serve.ASYNC_REQUEST_FUNCS)
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
        """Return vLLM's function for one request, with a limit; what goes wrong is an error with words."""
        asked = self._asked[backend]

        async def ask(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
            started = time.perf_counter()
            try:
                output = await asyncio.wait_for(asked(request_func_input, session, pbar), seconds)
            except asyncio.TimeoutError:
                output = importlib.import_module("vllm.benchmarks.lib.endpoint_request_func").RequestFuncOutput()
                output.start_time, output.prompt_len = started, request_func_input.prompt_len
                output.error = f"no end within {seconds:g} s"
            if output.success and not output.output_tokens:  # vLLM would count with the tokenizer, and may be wrong
                output.success, output.error = False, "the server does not say how many tokens it made (no usage)"
            return output

        return ask


def _always(value: Any) -> Callable[..., Any]:
    """Return a function that returns this, whatever it is asked."""

    def given(*_: Any, **__: Any) -> Any:
        return value

    return given


def make_prompts(  # noqa: PLR0913 - what decides a prompt
    body: Sequence[int],
    words: Sequence[int],
    tokens: int,
    count: int,
    body_seed: int,
    head_seed: int,
    *,
    shuffled: bool,
) -> list[list[int]]:
    """Return prompts of exactly so many tokens: a head that only this prompt has, and then content.

    Both servers get the same content (`body_seed`), each with heads of its own (`head_seed`): what one has cached of
    an earlier prompt, or of the other's where both are one server, does not help.
    """
    content, heads = random.Random(body_seed), random.Random(head_seed)
    made: list[list[int]] = []
    for _ in range(count):
        head = [heads.choice(words) for _ in range(min(HEAD, tokens))]
        rest = tokens - len(head)
        if shuffled:
            made.append(head + [content.choice(body) for _ in range(rest)])
        else:
            start = content.randrange(len(body))
            made.append(head + [body[(start + at) % len(body)] for at in range(rest)])
    return made


def ordinary_tokens(tokenizer: Any) -> list[int]:
    """Return the ids that stand for text; one of those with a meaning could end a turn, or begin an image."""
    special = set(tokenizer.all_special_ids) | set(getattr(tokenizer, "added_tokens_decoder", {}))
    return sorted(set(tokenizer.get_vocab().values()) - special)


def text_of(content: str) -> str:
    """Return a few hundred kilobytes of one kind, from Python itself: nothing is shipped or fetched.

    prose: the language's reference, as `help()` has it; code: modules of the standard library; json: made-up records.
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
    raise ValueError(f"no content is named {content}")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
