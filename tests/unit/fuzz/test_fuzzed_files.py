"""Readers of halfbyte's own files return or raise a HalfbyteError for arbitrary bytes."""

import json
from dataclasses import asdict

import pytest
from attacks.damage import damaged_bytes, damaged_json, damaged_lines
from card_evidence import evaluation
from hypothesis import given
from pico import write_pico

from halfbyte.bench.importers import read_results
from halfbyte.bench.records import read_records
from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.output_folder import FOLDER, read_plan
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.cli import pipeline_output as show
from halfbyte.engine.pipeline import quantize
from halfbyte.evaluate.parity import known_then
from halfbyte.evaluate.results import read_baseline, refuse_missing_items, refuse_other_questions
from halfbyte.evaluate.samples import Sample, Store, check_pairs, load_samples
from halfbyte.evidence.evaluation import SuiteFacts
from halfbyte.plan.manifest import read_plan_file
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan, read_prune_plan
from halfbyte.plan.prune_record import read_record
from halfbyte.plan.pruned import RouterShape
from halfbyte.probe.client import Trace
from halfbyte.probe.tool_cases import read_cases
from halfbyte.recipe.load import load_recipe, recipe_text
from halfbyte.release import status

RECIPE = "kimi-k2.6-mxfp4-wafer"
PRUNE = PrunePlan(
    router=RouterShape(4, 2, 1, 1),
    layers={layer: LayerChoice((0, 2), (1.0, None, 2.0, 0.5), {0: "super expert"}) for layer in (1, 2)},
    rule=None,
    source={"name": "m"},
).as_dict()
SAMPLE = asdict(
    Sample("candidate", "t", "s", 0, 1, None, "a", "b", "c", "4", "4", {"f": "4"}, {"m,f": 1.0}, "stop", False, 3, 4,
           0.1, 1, None)
)  # fmt: skip
SUITE = {"name": "quick", "hash": "abc", "data": {"t": "d"}}
HEAD = evaluation()
HEAD |= {"suite": HEAD["suite"] | SUITE, "arguments": HEAD["arguments"] | {"limit": 4}, "tasks": HEAD["tasks"][2:]}
HEAD["tasks"][0]["candidate"]["samples"] = 1
REQUEST = {"kind": "request", "id": "a", "again": False, "answer": "x", "error": None, "key": "k"}
TRACE = [{"kind": "run", "asked": {"url": "http://x"}}, REQUEST, {"kind": "finished"}, REQUEST]
STORED = [
    {"kind": "endpoint", "fingerprint": "f", "stable": True, "probes": []},
    {"kind": "request", "key": "k", "error": None, "answer": "x", "prompt_tokens": 1, "finish_reason": "stop"},
    {"kind": "void", "keys": ["k"]},
]
POINT = {"prompt": 8, "output": 4, "concurrency": 1}
TIMES = {"start": 0.0, "ttft": 0.1, "latency": 0.5, "gaps": [0.1, 0.1, 0.1], "prompt": 8, "output": 4, "problem": ""}
BLOCK = {"arm": "A", "point": POINT, "turn": 0, "seconds": 1.0, "requests": [TIMES], "problem": ""}
BENCH = [{"settings": {"servers": {"A": "http://x"}}}, BLOCK]
VLLM = {
    "start_times": [0.0], "ttfts": [0.1], "itls": [[0.1]], "input_lens": [8], "output_lens": [4], "errors": [""],
    "duration": 1.0, "max_concurrency": 1, "num_prompts": 1, "request_rate": "inf", "e2els": [0.5],
}  # fmt: skip
CASES = [{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}]}]


def earlier_head(path):
    results = read_baseline(path.parent)
    refuse_other_questions(results, path.parent, SuiteFacts(**HEAD["suite"]), 4)
    refuse_missing_items(results, path.parent, 1)
    known_then(results)


def earlier_samples(path):
    samples = load_samples(path.parent)
    check_pairs(samples, [Sample(**SAMPLE)])


def closed(kind):
    """Open a file to resume it, and close it."""

    def read(path):
        with kind(path):
            pass

    return read


# File, valid contents, reader.
FILES = {
    "prune plan": ("prune-plan.json", PRUNE, read_prune_plan),
    "eval.json": ("eval.json", HEAD, earlier_head),
    "json beside": ("x.json", HEAD, json_object),
    "other plan": ("x.json", {"fingerprint": "a", "parts": {"recipe": "b"}}, show._read_plan),
    "vllm bench": ("vllm.json", VLLM, lambda path: read_results(path, "A")),
}
LINES = {
    "eval.jsonl": ("eval.jsonl", [SAMPLE, SAMPLE], earlier_samples),
    "probe.jsonl": ("probe.jsonl", TRACE, closed(Trace)),
    "requests.jsonl": ("requests.jsonl", STORED, closed(Store)),
    "bench.jsonl": ("bench.jsonl", BENCH, read_records),
    "imported bench.jsonl": ("bench.jsonl", BENCH, lambda path: read_results(path, "A")),
    "tool cases": ("samples.jsonl", CASES, read_cases),
    "journal": ("journal.jsonl", [{"shard": "a", "nbytes": 1, "seconds": 0.5}], lambda path: Journal(path).lines()),
}


@pytest.mark.parametrize("name", FILES)
def test_files(survives, folder, name):
    file, valid, reader = FILES[name]

    @given(raw=damaged_json(valid))
    def fuzz(raw):
        (folder / file).write_bytes(raw)
        survives(reader, folder / file)

    fuzz()


@pytest.mark.parametrize("name", LINES)
def test_lines(survives, folder, name):
    file, valid, reader = LINES[name]

    @given(raw=damaged_lines(valid))
    def fuzz(raw):
        (folder / file).write_bytes(raw)
        survives(reader, folder / file)

    fuzz()


@pytest.fixture(scope="module")
def made(folder):
    """An output with its plan and journal."""
    out = folder / "out"
    quantize(write_pico(folder / "source"), out, load_recipe(RECIPE))
    return out


OF_AN_OUTPUT = {
    "plan.json": [
        lambda out: read_plan_file(out / FOLDER / "plan.json"),
        read_plan,
        lambda out: show.status(show.Output(quiet=True), status.read_status(out)),
        read_record,
    ],
    "journal.jsonl": [status.read_status],
}


@pytest.mark.parametrize("name", OF_AN_OUTPUT)
def test_files_of_an_output(survives, made, capsys, name):
    path = made / FOLDER / name
    before = path.read_bytes()
    lines = [json.loads(line) for line in before.splitlines() if line.strip()] if name.endswith("l") else []
    damaged = damaged_lines(lines) if lines else damaged_json(json.loads(before))

    @given(raw=damaged)
    def fuzz(raw):
        path.write_bytes(raw)
        for reader in OF_AN_OUTPUT[name]:
            survives(reader, made)

    try:
        fuzz()
    finally:
        path.write_bytes(before)


@given(raw=damaged_bytes(recipe_text(RECIPE).encode()))
def test_recipes(survives, folder, raw):
    path = folder / "recipe.yaml"
    path.write_bytes(raw)
    survives(load_recipe, path)
