"""lm-eval's own API models, with our hands on the wire: its payloads and parsers, our sending, retries and records.

This module imports lm-eval; only `harness` imports this module. What differs from lm-eval's own sending, and why:
- the stop list has never the end-of-text string added: lm-eval adds it with one request at a time and not with more;
- a request that fails is counted and recorded, and the run goes on: lm-eval ends it and loses what it had;
- an answer without content (thinking took all tokens) and one that was cut are recorded as such;
- likelihoods are asked for token ids from the server's own tokenizer: a tokenizer loaded here can be another one.
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

from halfbyte.errors import CheckFailedError
from halfbyte.validate.endpoint import PATHS, Api
from halfbyte.validate.evaluate.store import Scope, Store, request_key
from halfbyte.validate.evaluate.tokens import ServerTokens
from halfbyte.validate.sending import Outcome, Sender

_api_models: Any = importlib.import_module("lm_eval.models.openai_completions")
MOST_CHAT_STOPS = 4  # lm-eval sends no more of them to a chat
ROUNDING = 1e-3  # above 0, of a log-likelihood that is 0
_LONGEST = 3  # prompts that are counted in tokens before anything is asked
FAILED_TEXT = ""
FAILED_LIKELIHOOD = (float("-inf"), False)

Item = tuple[str, int, int]  # task of lm-eval, number of the document, number of the request in it
Read = Callable[[int, dict[str, Any]], dict[str, Any]]


@dataclass(slots=True)
class Recorder:
    """Answers lm-eval's requests from the store or from the server, and keeps what is known of each."""

    sender: Sender
    store: Store
    scope: Scope
    max_context: int | None
    tokens: ServerTokens | None
    progress: Callable[[int, int], None]  # how many are finished, of how many
    records: dict[Item, dict[str, Any]] = field(default_factory=dict[Item, dict[str, Any]])
    asked: list[str] = field(default_factory=list[str])  # the names of the requests that were sent now

    def answer(self, instances: Sequence[Any], payloads: Sequence[dict[str, Any]], api: Api, read: Read) -> list[Any]:
        """Return an answer for each; None where there is none after the last retry."""
        items: list[Item] = [(str(one.task_name), int(one.doc_id), int(one.idx)) for one in instances]
        keys = [request_key(self.scope, item, payload) for item, payload in zip(items, payloads, strict=True)]
        found = [self.store.get(key) for key in keys]
        missing = [number for number, record in enumerate(found) if record is None]
        self._refuse_what_does_not_fit([payloads[number] for number in missing], api)
        finished = len(items) - len(missing)
        self.progress(finished, len(items))

        def keep(position: int, outcome: Outcome) -> None:
            nonlocal finished
            number = missing[position]
            record = self._record(keys[number], items[number], payloads[number], outcome, lambda b: read(number, b))
            found[number] = self.store.add(record)  # scored as it is written down, so that a later run scores the same
            finished += 1
            self.progress(finished, len(items))

        self.asked += [keys[number] for number in missing]
        self.sender.send(PATHS[api], [payloads[number] for number in missing], keep)
        records = cast("list[dict[str, Any]]", found)
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
                record["error"] = f"an answer that cannot be read: {type(error).__name__}: {error}"
        return record

    def _refuse_what_does_not_fit(self, payloads: Sequence[dict[str, Any]], api: Api) -> None:
        """A prompt that is longer than the context is cut or refused by the server: neither is a score."""
        if self.max_context is None or self.tokens is None:
            return
        name = "prompt" if api == "completions" else "messages"
        for payload in sorted(payloads, key=lambda one: -len(json.dumps(one[name])))[:_LONGEST]:
            count = self.tokens.count(payload[name])
            needed = count + int(payload.get("max_tokens", 1))
            if needed > self.max_context:
                raise CheckFailedError(
                    f"{self.scope.task}: a prompt of {count:,} tokens and its answer need {needed:,} tokens, "
                    f"the server has {self.max_context:,}",
                    where=self.scope.url,
                    fix=f"serve with a context of at least {needed:,} tokens",
                )


def _usage(body: dict[str, Any]) -> dict[str, int | None]:
    """Return the tokens that the server counted; None where it says something that is no count."""
    usage: Any = body.get("usage")
    counts = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    found = {name: counts.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {name: count if isinstance(count, int) and count >= 0 else None for name, count in found.items()}


def _written(text: Any) -> dict[str, Any]:
    """Return what a text answers; anything else is not a wrong answer but none."""
    if text is not None and not isinstance(text, str):
        raise TypeError(f"a text was asked for, and a {type(text).__name__} came")  # pyright: ignore[reportUnknownArgumentType]
    return {"answer": text or "", "null": text is None}


def _ended(choice: dict[str, Any]) -> dict[str, str | None]:
    """Return why an answer ended, in the server's words."""
    reason: Any = choice.get("finish_reason")
    return {"finish_reason": reason if reason is None or isinstance(reason, str) else json.dumps(reason)}


class RecordingCompletions(_api_models.LocalCompletionsAPI):
    """`local-completions`, recorded."""

    def __init__(self, recorder: Recorder, *, request_seed: int) -> None:
        super().__init__(
            base_url=recorder.scope.url + PATHS["completions"],
            model=recorder.scope.model,
            tokenizer_backend=None,
            seed=request_seed,
        )
        self._recorder = recorder

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Ask for texts."""
        payloads = [self._payload(one.args[0], one.args[1]) for one in requests]
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
        """Ask how likely continuations are."""
        tokens = self._recorder.tokens
        assert tokens is not None, "the pre-flight refuses such tasks without a tokenizer"
        pairs = [one.args for one in requests]  # lm-eval cuts the whole text, and the context without spaces at its end
        texts = [text for context, more in pairs for text in (context.rstrip(), context + more)]
        tokens.fetch(texts, self._recorder.sender)
        self._instances = requests
        return cast("list[tuple[float, bool]]", super().loglikelihood(requests, disable_tqdm=True))

    def tok_encode(self, string: str, **_: Any) -> list[int]:
        """Return the server's own tokens of a text."""
        tokens = self._recorder.tokens
        assert tokens is not None
        return tokens.encode(string)

    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        whole = [context + more for _, context, more in requests]
        lengths = [len(context) for _, context, _ in requests]
        payloads = [self._create_payload([ids], generate=False, seed=self._seed) for ids in whole]

        def read(number: int, body: dict[str, Any]) -> dict[str, Any]:
            told = body["choices"][0]["logprobs"]["token_logprobs"]
            if len(told) != len(whole[number]) + 1:  # a server that echoes nothing would score every choice alike
                raise ValueError(f"{len(told)} log-probabilities for {len(whole[number])} tokens and one more")
            for one in told[lengths[number] : -1]:  # a choice with NaN would be lm-eval's pick
                if not -math.inf < one <= ROUNDING:
                    raise ValueError(f"{one} is no log-probability")
            ((value, greedy),) = self.parse_logprobs(body, tokens=[whole[number]], ctxlens=[lengths[number]])
            return {"answer": [value, greedy], "null": False, "finish_reason": None, **_usage(body)}

        answers = self._recorder.answer(self._instances, payloads, "completions", read)
        return [FAILED_LIKELIHOOD if answer is None else (answer[0], answer[1]) for answer in answers]


class RecordingChat(_api_models.LocalChatCompletion):
    """`local-chat-completions`, recorded."""

    def __init__(self, recorder: Recorder, *, request_seed: int) -> None:
        super().__init__(
            base_url=recorder.scope.url + PATHS["chat"],
            model=recorder.scope.model,
            seed=request_seed,
            tokenized_requests=False,
        )
        self._recorder = recorder

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Ask for turns of chats."""
        payloads = [self._payload(one.args[0], one.args[1]) for one in requests]
        answers = self._recorder.answer(requests, payloads, "chat", self._read_turn)
        return [FAILED_TEXT if answer is None else answer for answer in answers]

    def _payload(self, context: Any, options: dict[str, Any]) -> dict[str, Any]:
        until: Any = options.get("until") or []
        if not isinstance(until, str) and len(until) > MOST_CHAT_STOPS:
            what = f"{self._recorder.scope.task} ends answers at more than {MOST_CHAT_STOPS} texts; a chat has no more"
            raise CheckFailedError(what, where="until", fix="give the suite's task a shorter list in `generation`")
        message = self.create_message([context])
        return self._create_payload(
            message, generate=True, gen_kwargs=copy.deepcopy(options), seed=self._seed, eos=None
        )

    def _read_turn(self, _: int, body: dict[str, Any]) -> dict[str, Any]:
        choice = body["choices"][0]
        content = choice["message"]["content"]  # lm-eval turns a missing one into an empty, wrong answer
        text = self.parse_generations(body)[0] if content is not None else None
        return {**_written(text), **_ended(choice), **_usage(body)}
