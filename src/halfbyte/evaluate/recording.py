"""lm-eval's API models with our transport: lm-eval's payloads and parsers, our sending, retries and records.

This module imports lm-eval. Only `harness` imports this module. Differences from lm-eval's transport:
- The end-of-text string is never added to the stop list. lm-eval adds it only without concurrency.
- A failed request is recorded and the run continues. lm-eval aborts and loses its results.
- Empty answers (reasoning used all tokens) and truncated answers are recorded as such.
- Likelihoods are requested for token ids from the server's tokenizer. A local tokenizer may differ.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from halfbyte.endpoint.client import PATHS, Api
from halfbyte.endpoint.sending import Outcome, Sender
from halfbyte.errors import CheckFailedError
from halfbyte.evaluate.preflight import ServerTokens
from halfbyte.evaluate.samples import Scope, Store, request_key

_api_models: Any = importlib.import_module("lm_eval.models.openai_completions")
MOST_CHAT_STOPS = 4  # lm-eval sends at most so many stop strings to a chat
ROUNDING = 1e-3  # tolerance for log-probabilities above 0
_LONGEST = 3  # prompts whose tokens are counted before the run
FAILED_TEXT = ""
FAILED_LIKELIHOOD = (float("-inf"), False)

Item = tuple[str, int, int]  # lm-eval task, document number, request number
Read = Callable[[int, dict[str, Any]], dict[str, Any]]


@dataclass(slots=True)
class Recorder:
    """Answer lm-eval's requests from the store or the server, and record each."""

    sender: Sender
    store: Store
    scope: Scope
    max_context: int | None
    tokens: ServerTokens | None
    progress: Callable[[int, int], None]  # finished, total
    records: dict[Item, dict[str, Any]] = field(default_factory=dict[Item, dict[str, Any]])
    sent: list[str] = field(default_factory=list[str])  # keys of requests that were not in the store

    def answer(self, instances: Sequence[Any], payloads: Sequence[dict[str, Any]], api: Api, read: Read) -> list[Any]:
        """Return the answers. A request that failed after the last retry gives None."""
        items: list[Item] = [(str(row.task_name), int(row.doc_id), int(row.idx)) for row in instances]
        keys = [request_key(self.scope, item, payload) for item, payload in zip(items, payloads, strict=True)]
        stored = [self.store.get(key) for key in keys]
        missing = [number for number, record in enumerate(stored) if record is None]
        self._refuse_long_prompts([payloads[number] for number in missing], api)
        finished = len(items) - len(missing)
        self.progress(finished, len(items))

        def keep(position: int, outcome: Outcome) -> None:
            nonlocal finished
            number = missing[position]
            record = self._record(keys[number], items[number], payloads[number], outcome, lambda b: read(number, b))
            stored[number] = self.store.add(record)  # scored as stored, so that a resumed run scores the same
            finished += 1
            self.progress(finished, len(items))

        self.sent += [keys[number] for number in missing]
        self.sender.send(PATHS[api], [payloads[number] for number in missing], keep)
        records = cast("list[dict[str, Any]]", stored)
        self.records.update(zip(items, records, strict=True))
        return [record.get("answer") if record.get("error") is None else None for record in records]

    def _record(
        self, key: str, item: Item, payload: dict[str, Any], outcome: Outcome, read: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        prompt = json.dumps(payload.get("prompt", payload.get("messages")), ensure_ascii=False)
        record: dict[str, Any] = {
            "kind": "request",
            "key": key,
            "url": self.scope.url,
            "task": item[0],
            "seed": self.scope.seed,
            "doc": item[1],
            "request": item[2],
            "prompt_hash": hashlib.sha256(prompt.encode()).hexdigest(),
            "attempts": outcome.attempts,
            "latency_s": round(outcome.latency_s, 4),
            "error": outcome.error,
        }
        if outcome.body is not None:
            try:
                record |= read(outcome.body)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                record["error"] = f"unreadable response: {type(error).__name__}: {error}"
        return record

    def _refuse_long_prompts(self, payloads: Sequence[dict[str, Any]], api: Api) -> None:
        """Raise if a prompt does not fit into the context, which the server would truncate or reject."""
        if self.max_context is None or self.tokens is None:
            return
        name = "prompt" if api == "completions" else "messages"
        for payload in sorted(payloads, key=lambda payload: -len(json.dumps(payload[name])))[:_LONGEST]:
            count = self.tokens.count(payload[name])
            needed = count + int(payload.get("max_tokens", 1))
            if needed > self.max_context:
                raise CheckFailedError(
                    f"{self.scope.task}: a prompt of {count:,} tokens and its answer need {needed:,} tokens, "
                    f"but the server's context is {self.max_context:,}",
                    where=self.scope.url,
                    fix=f"serve with a context of at least {needed:,} tokens",
                )


def _usage(body: dict[str, Any]) -> dict[str, int | None]:
    """Return the server's token counts, or None for invalid values."""
    usage: Any = body.get("usage")
    counts = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    values = {name: counts.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {name: count if isinstance(count, int) and count >= 0 else None for name, count in values.items()}


def _written(text: Any) -> dict[str, Any]:
    """Return the fields of a text answer. Raise if it is not text."""
    if text is not None and not isinstance(text, str):
        raise TypeError(f"expected text, got {type(text).__name__}")  # pyright: ignore[reportUnknownArgumentType]
    return {"answer": text or "", "null": text is None}


def _ended(choice: dict[str, Any]) -> dict[str, str | None]:
    """Return the server's finish reason."""
    reason: Any = choice.get("finish_reason")
    return {"finish_reason": reason if reason is None or isinstance(reason, str) else json.dumps(reason)}


class RecordingCompletions(_api_models.LocalCompletionsAPI):
    """lm-eval's `local-completions` with recording."""

    def __init__(self, recorder: Recorder, *, request_seed: int) -> None:
        super().__init__(
            base_url=recorder.scope.url + PATHS["completions"],
            model=recorder.scope.model,
            tokenizer_backend=None,
            seed=request_seed,
        )
        self._recorder = recorder

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate texts."""
        payloads = [self._payload(row.args[0], row.args[1]) for row in requests]
        answers = self._recorder.answer(requests, payloads, "completions", self._read_text)
        return [FAILED_TEXT if answer is None else answer for answer in answers]

    def _payload(self, context: Any, options: dict[str, Any]) -> dict[str, Any]:
        message = self.create_message([context])
        return self._create_payload(
            message, generate=True, gen_kwargs=copy.deepcopy(options), seed=self._seed, eos=None
        )

    def _read_text(self, _: int, body: dict[str, Any]) -> dict[str, Any]:
        text = self.parse_generations(body)[0]
        return {**_written(text), **_ended(body["choices"][0]), **_usage(body)}

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihoods of continuations."""
        tokens = self._recorder.tokens
        assert tokens is not None, "the preflight refuses such tasks without a tokenizer"
        pairs = [row.args for row in requests]  # lm-eval tokenizes the whole text, and the context without final spaces
        texts = [text for context, more in pairs for text in (context.rstrip(), context + more)]
        tokens.fetch(texts, self._recorder.sender)
        self._instances = requests
        return cast("list[tuple[float, bool]]", super().loglikelihood(requests, disable_tqdm=True))

    def tok_encode(self, string: str, **_: Any) -> list[int]:
        """Return the server's tokens of a text."""
        tokens = self._recorder.tokens
        assert tokens is not None
        return tokens.encode(string)

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        whole = [context + more for _, context, more in requests]
        lengths = [len(context) for _, context, _ in requests]
        payloads = [self._create_payload([ids], generate=False, seed=self._seed) for ids in whole]

        def read(number: int, body: dict[str, Any]) -> dict[str, Any]:
            logprobs = body["choices"][0]["logprobs"]["token_logprobs"]
            if len(logprobs) != len(whole[number]) + 1:  # without echo, every choice would score the same
                raise ValueError(f"{len(logprobs)} log-probabilities for {len(whole[number])} tokens and one more")
            for logprob in logprobs[lengths[number] : -1]:  # lm-eval would pick a choice with NaN
                if not -math.inf < logprob <= ROUNDING:
                    raise ValueError(f"{logprob} is not a valid log-probability")
            ((value, greedy),) = self.parse_logprobs(body, tokens=[whole[number]], ctxlens=[lengths[number]])
            return {"answer": [value, greedy], "null": False, "finish_reason": None, **_usage(body)}

        answers = self._recorder.answer(self._instances, payloads, "completions", read)
        return [FAILED_LIKELIHOOD if answer is None else (answer[0], answer[1]) for answer in answers]


class RecordingChat(_api_models.LocalChatCompletion):
    """lm-eval's `local-chat-completions` with recording."""

    def __init__(self, recorder: Recorder, *, request_seed: int) -> None:
        super().__init__(
            base_url=recorder.scope.url + PATHS["chat"],
            model=recorder.scope.model,
            seed=request_seed,
            tokenized_requests=False,
        )
        self._recorder = recorder

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate chat replies."""
        payloads = [self._payload(row.args[0], row.args[1]) for row in requests]
        answers = self._recorder.answer(requests, payloads, "chat", self._read_turn)
        return [FAILED_TEXT if answer is None else answer for answer in answers]

    def _payload(self, context: Any, options: dict[str, Any]) -> dict[str, Any]:
        until: Any = options.get("until") or []
        if not isinstance(until, str) and len(until) > MOST_CHAT_STOPS:
            what = f"{self._recorder.scope.task} has more than {MOST_CHAT_STOPS} stop strings, the limit of a chat"
            raise CheckFailedError(what, where="until", fix="shorten the list in the suite task's `generation`")
        message = self.create_message([context])
        return self._create_payload(
            message, generate=True, gen_kwargs=copy.deepcopy(options), seed=self._seed, eos=None
        )

    def _read_turn(self, _: int, body: dict[str, Any]) -> dict[str, Any]:
        choice = body["choices"][0]
        content = choice["message"]["content"]  # lm-eval scores missing content as an empty, wrong answer
        text = self.parse_generations(body)[0] if content is not None else None
        return {**_written(text), **_ended(choice), **_usage(body)}
