"""`halfbyte compare` end to end: output, files and errors."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from pico import write_pico

from halfbyte.compare import stream
from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

TURNS = ["<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "<think>", "</think>"]
SPECIAL = ["[EOS]", "[PAD]", *TURNS]
WORDS = [f"w{number}" for number in range(100)]
TURN = "<|im_{{ message.role }}|>w1<|im_middle|>{{ message.content }}<|im_end|>"
TEMPLATE = f"{{%- for message in messages -%}}{TURN}{{%- endfor -%}}"


def _give_words(folder: Path, words: list[str]) -> None:
    """Replace the small checkpoint's tokenizer by one of whole words."""
    (folder / "tiktoken.model").unlink()
    ids = {word: number for number, word in enumerate([*words, "?"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[EOS]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("compare")
    _give_words(write_pico(root / "source", experts=8), WORDS)
    for name in ("bf16", "mxfp4-wafer"):
        quantize(root / "source", root / name, load_recipe(f"kimi-k2.6-{name}"), threads=1, verify_source=False)
    random = np.random.default_rng(0)

    def words(count):
        return " ".join(random.choice(WORDS, count))

    texts = [{"text": words(random.integers(5, 60))} for _ in range(60)]
    (root / "texts.jsonl").write_text("\n".join(json.dumps(text) for text in texts))
    chats = [
        {
            "topic": ("sums", "tales")[at % 2],
            "messages": [{"role": "user", "content": words(9)}, {"role": "assistant", "content": words(5)}],
        }
        for at in range(60)
    ]
    (root / "chats.jsonl").write_text("\n".join(json.dumps(chat) for chat in chats))
    return root


@pytest.fixture
def compared(place, halfbyte):
    def run(out, *options, data=("news=texts.jsonl",), size=("--samples", "12", "--length", "40")):
        parted = [pair.rpartition("=") for pair in data]
        named = [f"{domain}{equals}{place / file}" for domain, equals, file in parted]
        pairs = [part for pair in named for part in ("--data", pair)]
        return halfbyte("compare", place / "source", place / out, *pairs, *size, *options)

    return run


def test_a_twin_is_the_same_to_the_last_bit(compared):
    code, out, err = compared("bf16", "--json")
    value = json.loads(out)
    assert code == 0
    assert value["total"]["kl"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert value["total"]["top1"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert value["total"]["perplexity_ratio"]["value"] == 1.0
    assert [layer["relative_error"] for layer in value["layers"]] == [0.0] * 3
    assert value["emulated"] == {}
    assert err.splitlines()[0].startswith("layer 0  1 of 3  relative error 0  ")


def test_the_table_says_what_the_json_says(compared):
    code, out, err = compared("mxfp4-wafer")
    assert code == 0
    assert out.splitlines()[0].split("   ")[0] == "layer"
    facts = dict(line.split("   ", 1) for line in out.splitlines()[4:])
    value = json.loads(compared("mxfp4-wafer", "--json", "-q")[1])
    assert facts["KL"].strip().startswith(f"{value['total']['kl']['value']:.4g} (")
    assert facts["emulated"].strip() == "nothing: weights only"
    assert value["total"]["kl"]["low"] < value["total"]["kl"]["value"] < value["total"]["kl"]["high"]
    assert "next: " in err


def test_no_file_is_recommended_in_a_source(compared):
    code, _, err = compared("source")
    assert code == 0
    assert "next: " not in err


@pytest.mark.parametrize("data", [("x=few.jsonl",), ("few.jsonl",), ("x=few.jsonl", "y=texts.jsonl")])
def test_a_small_file_without_other_options_is_compared(place, compared, data):
    rows = (place / "texts.jsonl").read_text().splitlines()
    (place / "few.jsonl").write_text("\n".join(rows[:3]) + "\n")
    code, out, err = compared("bf16", "--json", data=data, size=("--length", "8"))
    assert code == 0, err
    count = json.loads(out)["rows"][0]
    assert 0 < count < 128
    assert count % len(data) == 0
    code, _, err = compared("bf16", data=data, size=("--length", "8", "--samples", "128"))
    assert code == 2
    assert "of " in err


def test_domains_from_a_column_and_answers_alone(compared, tmp_path):
    file = tmp_path / "plot.json"
    code, out, _ = compared(
        "mxfp4-wafer", "--score", "answers", "--json", "-o", str(file), data=("{topic}=chats.jsonl",)
    )
    value, plot = json.loads(out), json.loads(file.read_text())
    assert code == 0
    assert set(value["domains"]) == {"sums", "tales"}
    assert value["scored"] == "answers"
    # An answer has five words and its end; the last one may be cut by the end of the data.
    assert {*plot["by_document"]["tokens"][:-1]} <= {5, 6}
    assert plot["total"] == value["total"]
    assert len(plot["by_layer"]["relative_error"]) == 3
    everything = json.loads(compared("mxfp4-wafer", "--json", data=("{topic}=chats.jsonl",))[1])
    assert everything["total"]["tokens"] > 3 * value["total"]["tokens"]


def test_what_was_emulated_is_said(compared):
    plain = json.loads(compared("mxfp4-wafer", "--json")[1])
    value = json.loads(compared("mxfp4-wafer", "--json", "--activations", "as-served", "--kv", "fp8")[1])
    assert value["emulated"] == {"activations": "mxfp4, into 48 linears", "kv": "fp8, cast without scales"}
    assert value["total"]["kl"]["value"] > plain["total"]["kl"]["value"]
    _, out, _ = compared("mxfp4-wafer", "--kv", "fp8")
    assert "kv fp8, cast without scales" in out


def test_padded_rows_two_files_and_bf16(compared):
    code, out, _ = compared(
        "mxfp4-wafer", "--json", "--rows", "padded", "--dtype", "bfloat16", data=("a=texts.jsonl", "b=chats.jsonl")
    )
    value = json.loads(out)
    assert code == 0
    assert list(value["domains"]) == ["a", "b"]
    assert (value["dtype"], value["total"]["documents"]) == ("bfloat16", 12)


def test_threads_change_nothing(compared):
    values = [json.loads(compared("mxfp4-wafer", "--json", "--threads", str(n))[1]) for n in (1, 3)]
    for value in values:
        del value["seconds"]
    assert values[0] == values[1]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"data": ()}, "Missing option '--data'"),
        ({"data": ("news=nothing.jsonl",)}, "file not found"),
        ({"size": ("--samples", "900")}, "only 4 of 900 rows available"),
    ],
)
def test_data_that_is_not_there_is_refused(compared, options, what):
    code, out, err = compared("bf16", **options)
    assert (code, out) == (2, "")
    assert what.lower() in err.lower()
    assert "  fix   " in err


def test_another_vocabulary_is_refused(place, compared):
    other = place / "other-words"
    if not other.exists():
        _give_words(write_pico(other, experts=8), WORDS[::-1])
    code, _, err = compared("other-words")
    assert code == 2
    assert "the checkpoints tokenize the same text differently" in err.splitlines()[0]


def test_another_number_of_layers_is_refused_before_any_work(place, compared):
    if not (place / "short").exists():
        _give_words(write_pico(place / "short", experts=8, layers=2), WORDS)
    code, out, err = compared("short")
    assert (code, out) == (2, "")
    assert err.startswith("✗ the checkpoints differ in num_hidden_layers: 3 and 2\n")


def test_a_file_that_could_not_be_written_is_said_before_any_work(compared):
    code, _, err = compared("bf16", "-o", "/no/such/folder/plot.json")
    assert code == 2
    assert "layer 0" not in err


def test_ctrl_c_leaves_nothing_behind(compared, monkeypatch, tmp_path):
    real = stream.compare

    def interrupted(rows, first, second, *, progress, **how):
        def stop(step):
            progress(step)
            raise KeyboardInterrupt

        return real(rows, first, second, progress=stop, **how)

    monkeypatch.setattr(stream, "compare", interrupted)
    before = threading.active_count()
    code, out, err = compared("mxfp4-wafer", "-o", str(tmp_path / "plot.json"))
    assert (code, out) == (130, "")
    assert "interrupted" in err
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before
