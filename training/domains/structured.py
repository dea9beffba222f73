"""JSON to a given schema: short texts, and lists of notes, turned into exactly the object that was asked for.

Kept for the tests: who the text is about (a first name with a family name). Difficulty: `FIELDS` and
`NULLABLE_PERCENT`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.domains.word_problems import NAMES
from training.sample import Item, Sample, held_out
from training.words.structured_records import LARGEST_INTEGER, LARGEST_SMALL_INTEGER, RECORDS, WORDS, Field, Record

DOMAIN = "structured"
MIX = {  # percent
    "keys": 35,  # "Extract name, age as JSON", and a text
    "schema": 40,  # a JSON schema and a text
    "notes": 15,  # a JSON schema and "key: value" lines
    "table": 10,  # two people in the text, an array of objects
}
THINKING_PERCENT = 10
FIELDS = {"keys": 6, "schema": 6, "notes": 4, "table": 3}  # the most that are asked for, besides the name
NULLABLE_PERCENT = 30  # how many fields may be missing ...
MISSING_PERCENT = 40  # ... and how many of these the text does not mention: their value is null
LONGEST_LIST = 4

_FORMS = [form for form, percent in MIX.items() for _ in range(percent)]
_SURNAMES = (Path(__file__).parents[1] / "words" / "structured_surnames.txt").read_text().split()
_KEYS_ONLY = ("Extract {keys} as JSON.", "Give {keys} as a JSON object.", "Read the text. Return JSON with {keys}.")
_BY_SCHEMA = (
    "Return JSON for this schema: {schema}",
    "Fill this JSON schema: {schema}",
    "Schema: {schema}\nReply in JSON.",
)
_ROWS = ("List {keys} of everyone as a JSON array.", "Extract a JSON array. Each object has {keys}.")


@dataclass(frozen=True, slots=True)
class Task:
    """An instruction, a text, the value that is right, and the schema that it must fit."""

    instruction: str
    text: str
    answer: Any
    schema: Mapping[str, Any]


def train_sample(rng: random.Random) -> Sample:
    """Return one thing to learn, in one of the forms of `MIX`."""
    task = _task(rng, test=False)
    thinking = rng.randrange(100) < THINKING_PERCENT
    reply = {"role": "assistant", "content": json.dumps(task.answer)}
    if thinking:
        reply["reasoning_content"] = _reasoning(task.answer)
    return Sample(DOMAIN, messages=(_ask(task, rng), reply), thinking=thinking)


def test_items(count: int, seed: int) -> list[Item]:
    """Return tasks about people who are in no training text."""
    rng = random.Random(f"{DOMAIN} {seed}")
    items: list[Item] = []
    for position in range(count):
        task = _task(rng, test=True)
        fields = {"text": task.text, "schema": task.schema, "boilerplate": [task.instruction]}
        messages = (_ask(task, rng),)
        items.append(Item(DOMAIN, f"{DOMAIN}-{seed}-{position}", messages=messages, answer=task.answer, fields=fields))
    return items


def score(item: Item, output: str) -> bool:
    """Whether the output is JSON and equal to the answer, types included."""
    value = parse(output)
    return _canonical(value) == _canonical(item.answer)


def valid(item: Item, output: str) -> bool:
    """Whether the output is JSON that fits the schema, right or not."""
    return fits(parse(output), item.fields["schema"])


def parse(output: str) -> Any:
    """Return the value that the text after any thinking holds; `NotImplemented` (which no JSON gives) if it is none."""
    text = output.rpartition("</think>")[2].replace("<|im_end|>", "").strip()
    try:
        return json.loads(text)
    except ValueError:
        return NotImplemented


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Check a value against the part of JSON Schema that our schemas use."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is_a(value, name) for name in types):
        return False
    if value is None:
        return True
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, list):
        return all(fits(entry, schema["items"]) for entry in value)
    if isinstance(value, dict):
        properties = schema["properties"]
        known = set(schema.get("required", ())) <= set(value) <= set(properties)
        return known and all(fits(entry, properties[key]) for key, entry in value.items())
    return True


def _is_a(value: Any, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return name == ("null" if value is None else "boolean")
    if isinstance(value, int):
        return name in {"integer", "number"}
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value)) == name


def _canonical(value: Any) -> str:
    return "" if value is NotImplemented else json.dumps(value, sort_keys=True)  # 1, 1.0 and true all differ as text


def _ask(task: Task, rng: random.Random) -> dict[str, str]:
    parts = (task.instruction, task.text) if rng.randrange(2) else (f"Text: {task.text}", task.instruction)
    return {"role": "user", "content": "\n".join(parts)}


def _reasoning(answer: Any) -> str:
    rows = answer if isinstance(answer, list) else [answer]
    return " ".join(", ".join(f"{key} is {_plain(value)}" for key, value in row.items()) + "." for row in rows)


def _plain(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return " and ".join(value) if isinstance(value, list) else str(value)


def _task(rng: random.Random, *, test: bool) -> Task:
    form = rng.choice(_FORMS)
    record = rng.choice(RECORDS)
    most = min(FIELDS[form], len(record.fields))
    fields = rng.sample(record.fields, rng.randrange(min(2, most), most + 1))
    keys = [rng.choice(record.who), *(rng.choice(field.keys) for field in fields)]
    if len(set(keys)) < len(keys):
        return _task(rng, test=test)
    nullable = [rng.randrange(100) < NULLABLE_PERCENT for _ in fields]
    texts, rows = [], []
    for _ in range(2 if form == "table" else 1):
        who = _person(rng, test=test)
        values = [
            None if may and rng.randrange(100) < MISSING_PERCENT else _value(field, rng)
            for field, may in zip(fields, nullable, strict=True)
        ]
        rows.append(dict(zip(keys, [who, *values], strict=True)))
        texts.append(_notes(rows[-1]) if form == "notes" else _text(who, record, fields, values, rng))
    schema = _schema(keys, fields, nullable)
    named = " and ".join((", ".join(keys[:-1]), keys[-1]))
    if form == "table":
        return Task(rng.choice(_ROWS).format(keys=named), " ".join(texts), rows, {"type": "array", "items": schema})
    wording = rng.choice(_KEYS_ONLY).format(keys=named)
    if form != "keys":
        wording = rng.choice(_BY_SCHEMA).format(schema=json.dumps(schema))
    return Task(wording, texts[0], rows[0], schema)


def _person(rng: random.Random, *, test: bool) -> str:
    while True:
        who = f"{rng.choice(NAMES)} {rng.choice(_SURNAMES)}"
        if held_out(f"{DOMAIN}|{who}") == test:
            return who


def _value(field: Field, rng: random.Random) -> Any:
    if field.kind == "integer":
        return rng.randrange(2, LARGEST_INTEGER + 1)
    if field.kind == "small integer":
        return rng.randrange(2, LARGEST_SMALL_INTEGER + 1)
    if field.kind == "number":
        return float(f"{rng.randrange(1, 30)}.{rng.randrange(1, 10)}")
    if field.kind == "boolean":
        return rng.randrange(2) == 1
    if field.kind.startswith("list of "):
        return rng.sample(WORDS[field.kind.removeprefix("list of ")], rng.randrange(1, LONGEST_LIST + 1))
    return rng.choice(WORDS[field.kind])


def _text(who: str, record: Record, fields: Sequence[Field], values: Sequence[Any], rng: random.Random) -> str:
    """State the values in any order, and sometimes something that no key asks for."""
    sentences = [
        _sentence(who, field, value, rng) for field, value in zip(fields, values, strict=True) if value is not None
    ]
    others = [field for field in record.fields if field not in fields]
    if others and (not sentences or rng.randrange(2)):
        extra = rng.choice(others)
        sentences.append(_sentence(who, extra, _value(extra, rng), rng))
    rng.shuffle(sentences)
    return " ".join(sentences)


def _sentence(who: str, field: Field, value: Any, rng: random.Random) -> str:
    if field.kind == "boolean":
        return field.sentences[0 if value else 1].format(who=who)
    words = value
    if isinstance(value, list):
        words = " and ".join((", ".join(value[:-1]), value[-1])) if len(value) > 1 else value[0]
    return rng.choice(field.sentences).format(who=who, v=words)


def _notes(row: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}: {_note(value)}" for key, value in row.items() if value is not None)


def _note(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _schema(keys: Sequence[str], fields: Sequence[Field], nullable: Sequence[bool]) -> dict[str, Any]:
    properties: dict[str, Any] = {keys[0]: {"type": "string"}}
    for key, field, may_be_null in zip(keys[1:], fields, nullable, strict=True):
        properties[key] = _property(field)
        if may_be_null:
            properties[key]["type"] = [properties[key]["type"], "null"]
    return {"type": "object", "properties": properties, "required": list(keys)}


def _property(field: Field) -> dict[str, Any]:
    if field.kind in {"integer", "small integer", "number", "boolean"}:
        return {"type": field.kind.removeprefix("small ")}
    if field.kind.startswith("list of "):
        return {"type": "array", "items": {"type": "string"}}
    enum = {"enum": list(WORDS[field.kind])} if field.is_enumerated else {}
    return {"type": "string", **enum}
