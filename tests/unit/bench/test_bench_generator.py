"""Prompts of exact lengths, and a load generator that finishes, hangs or dies without affecting us."""

import json
import sys
import time
from types import MappingProxyType

import pytest

from halfbyte.bench.generator_process import make_prompts, ordinary_tokens, text_of
from halfbyte.bench.records import CONTENTS
from halfbyte.bench.vllm_generator import Order, VllmGenerator, seed_of
from halfbyte.evidence.benchmark import LoadPoint

WORDS = list(range(100, 1100))
ORDER = Order("http://127.0.0.1:1", "m", "t", LoadPoint(8, 4, 2), 4, "A0", 1, 2, 0.2)


def test_prompts_have_the_length_and_a_head_of_their_own():
    body = list(range(5000, 5300))
    a, b = (make_prompts(body, WORDS, 64, 20, 7, head, shuffled=False) for head in (1, 2))
    assert {len(prompt) for prompt in a + b} == {64}
    heads = {tuple(prompt[:8]) for prompt in a + b}
    assert len(heads) == 40, "no two prompts of either server begin alike"
    assert [prompt[8:] for prompt in a] == [prompt[8:] for prompt in b], "and then both ask for the same"
    at = body.index(a[0][8])
    assert a[0][8:] == (body + body)[at : at + 56], "in the order of the text"
    assert a == make_prompts(body, WORDS, 64, 20, 7, 1, shuffled=False), "seeded"
    assert make_prompts(body, WORDS, 5, 1, 7, 1, shuffled=True)[0][4] in WORDS, "shorter than a head"


def test_random_prompts_are_random():
    a, b = make_prompts(WORDS, WORDS, 400, 2, 7, 1, shuffled=True)
    assert len(set(a)) > 250
    assert a[8:] != b[8:]


class Tokenizer:
    all_special_ids = (3,)
    added_tokens_decoder = MappingProxyType({4: "[tool]"})

    def get_vocab(self):
        return {letter: at for at, letter in enumerate("abcdef")}


def test_special_tokens_are_never_sent():
    assert ordinary_tokens(Tokenizer()) == [0, 1, 2, 5]


def test_every_content_has_enough_text_of_its_kind():
    for content in CONTENTS[1:]:
        assert len(text_of(content)) > 200_000, content
    assert "def " in text_of("code")
    assert json.loads(text_of("json"))[0]["id"] == 0
    assert text_of("prose").count(". ") > 1000
    with pytest.raises(ValueError, match="unknown content"):
        text_of("random")


def test_seeds_depend_on_every_part():
    assert seed_of(0, "x", 1) == seed_of(0, "x", 1)
    assert len({seed_of(0, "x", turn, arm) for turn in range(50) for arm in "AB"}) == 100


def generator(tmp_path, program: str) -> VllmGenerator:
    script = tmp_path / "fake.py"
    script.write_text(program)
    return VllmGenerator(tmp_path / "log", [sys.executable, str(script)])


def test_blocks_of_one_process(tmp_path):
    program = """
import sys, os, json
for line in sys.stdin:
    print(json.dumps({"pid": os.getpid(), "order": json.loads(line)}), flush=True)
"""
    with generator(tmp_path, program) as result:
        first, second = result.block(ORDER), result.block(ORDER)
    assert first["pid"] == second["pid"], "started once"
    assert first["order"]["prompt_tokens"] == 8
    given = first["order"]["arguments"]
    assert "--ignore-eos" in given
    assert given[given.index("--max-concurrency") + 1] == "2"


def test_the_generator_has_the_key_and_no_reason_repeats_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HALFBYTE_API_KEY", "sk-very-secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    program = """
import sys, os, json
sys.stdin.readline()
print(json.dumps({"key": os.environ["OPENAI_API_KEY"]}), flush=True)
sys.stdin.readline()
sys.exit("no entry with " + os.environ["OPENAI_API_KEY"])
"""
    with generator(tmp_path, program) as result:
        assert result.block(ORDER) == {"key": "sk-very-secret"}
        assert result.block(ORDER)["failed"].endswith("no entry with ***")


def test_a_generator_that_hangs_is_ended_and_the_next_block_runs(tmp_path, monkeypatch):
    from halfbyte.bench import vllm_generator

    monkeypatch.setattr(vllm_generator, "STARTS_WITHIN_S", 0.0)
    monkeypatch.setattr(vllm_generator, "_SPARE_S", 1.0)
    program = f"""
import pathlib, sys, time
mark = pathlib.Path({str(tmp_path / "mark")!r})
for line in sys.stdin:
    if not mark.exists():
        mark.touch()
        time.sleep(600)
    print("{{}}", flush=True)
"""
    start = time.monotonic()
    with generator(tmp_path, program) as result:
        assert result.block(ORDER) == {"failed": "the block timed out after 1 s"}
        monkeypatch.setattr(vllm_generator, "_SPARE_S", 30.0)
        assert result.block(ORDER) == {}
    assert time.monotonic() - start < 30


def test_a_dead_generator_reports_the_reason(tmp_path):
    with generator(tmp_path, "import sys; sys.stdin.readline(); sys.exit('no vllm here')") as result:
        assert result.block(ORDER)["failed"].endswith("no vllm here")


def test_a_block_may_take_as_long_as_its_requests():
    assert ORDER.within_s == pytest.approx(2 * 0.2 + 60)
