"""Invalid input of calibrated runs: one clear error, the right exit code, and no leftovers."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from types import ModuleType

import pytest
from calibratable import DECART, SHORT, WAFER, arguments, small, texts, with_words
from pico import write_pico
from safetensors.torch import load_file, save_file

from halfbyte.calibrate.datasets import with_data
from halfbyte.engine.calibrate import calibrate
from halfbyte.recipe.load import load_recipe

PLAIN = "kimi-k2.6-mxfp4-wafer"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its data, and statistics of it."""
    folder = tmp_path_factory.mktemp("place")
    texts(folder / "texts.jsonl")
    small(folder / "source")
    recipe = with_data(load_recipe(WAFER, [SHORT]), [f"news={folder / 'texts.jsonl'}"], 6)
    calibrate(folder / "source", folder / "stats", recipe)
    calibrate(folder / "source", folder / "two-layers", recipe, layers=2)
    return folder


@pytest.fixture
def refused(halfbyte, tmp_path):
    """Run a command that must fail; return its message and fix."""

    def run(*argv, code=2, verb="quantize"):
        out = tmp_path / "out"
        words = [verb, argv[0], *([out] if verb == "quantize" else ["-o", out]), *argv[1:]]
        found, printed, said = halfbyte(*words)
        assert found == code, said
        assert not printed
        assert not out.exists()
        assert "Traceback" not in said
        assert said.count("✗") == 1
        return said.partition("✗ ")[2]

    return run


def test_data_on_the_hub_without_the_library(place, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    said = refused(place / "source", "-r", WAFER, code=3)
    assert "'abisee/cnn_dailymail' is a dataset on the Hub, but the package 'datasets' is not installed" in said
    assert "pip install datasets, or use a local file: --data news=path" in said


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="this machine has the library")
def test_the_command_itself_says_so(place, tmp_path):
    """Run once, in a separate process."""
    words = ["quantize", place / "source", tmp_path / "out", "-r", DECART]
    command = [sys.executable, "-m", "halfbyte", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 3, done.stderr
    assert re.fullmatch(r"✗ .* is not installed\n  fix .*--data news=path\n", done.stderr)
    assert not (tmp_path / "out").exists()


def test_data_on_the_hub_without_a_network(place, refused, monkeypatch):
    library = ModuleType("datasets")

    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'abisee/cnn_dailymail' on the Hub")

    library.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", library)
    said = refused(place / "source", "-r", WAFER, code=3)
    assert "the Hub cannot be reached" in said
    assert "--data news=path" in said


FILES = {
    "missing": (None, "file not found"),
    "empty": ("", "the file is empty"),
    "blank": ("\n\n", "the file is empty"),
    "without text": ('{"article": ""}\n', "only 0 of 6 samples available"),
    "too short": ('{"article": "a b c"}\n' * 5, "only 5 of 6 samples available"),
    "broken": ('{"article": "a"}\n{"article": \n', "invalid JSON"),
    "not objects": ("[1, 2]\n", "expected a JSON object, found a list"),
    "numbers": ('{"article": 5}\n' * 6, "'article' is a number, not"),
    "other columns": ('{"body": "a"}\n' * 6, "cannot infer the text column from body"),
    "not UTF-8": (b'{"article": "\xff"}\n' * 6, "invalid JSON"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("verb", ["quantize", "calibrate"])
def test_files(place, refused, tmp_path, name, verb):
    content, sentence = FILES[name]
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = refused(place / "source", *arguments(path), verb=verb)
    assert said.startswith(sentence)
    assert str(path) in said


def test_a_column_that_is_not_there(place, refused):
    said = refused(place / "source", "-r", WAFER, "--data", f"news={place / 'texts.jsonl'}:body", "--samples", 4)
    assert said.startswith("no column 'body'; the columns are article")


@pytest.mark.parametrize("data", ["=texts.jsonl", "news=", "news=texts.csv"])
def test_pairs_that_are_none(place, refused, data):
    said = refused(place / "source", "-r", WAFER, "--data", data)
    assert re.match(r"'.*' is not a DOMAIN=FILE pair|unsupported file type '.*'", said)


def test_options_that_do_not_go_together(place, refused):
    data = ["--data", f"news={place / 'texts.jsonl'}"]
    assert refused(place / "source", "-r", WAFER, "--samples", 4).startswith("--samples requires --data")
    assert refused(place / "source", "-r", PLAIN, *data).startswith(f"recipe '{PLAIN}' does not use calibration data")
    said = refused(place / "source", "-r", PLAIN, "--stats", place / "stats")
    assert said.startswith(f"recipe '{PLAIN}' does not use statistics")
    said = refused(place / "source", "-r", PLAIN, verb="calibrate")
    assert said.startswith(f"recipe '{PLAIN}' has no calibration data")


def test_statistics_go_with_no_other_data(place, refused):
    """It would be silently ignored, although the user expects it to be used."""
    data, samples = ("--data", f"news={place / 'texts.jsonl'}"), ("--samples", 4)
    for options in (data, samples, (*data, *samples)):
        said = refused(place / "source", "-r", WAFER, "--stats", place / "stats", *options)
        assert said.startswith(f"{options[0]} cannot be combined with --stats, which were measured on their own data")


def test_vocabularies(place, refused, tmp_path):
    words = arguments(place / "texts.jsonl")
    source = small(tmp_path / "source")
    stored = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text("{}")
    assert refused(source, *words).startswith("not a valid tokenizer")
    stored["model"]["vocab"] = {token: number + 100 for token, number in stored["model"]["vocab"].items()}
    stored["added_tokens"][0]["id"] = 300
    (source / "tokenizer.json").write_text(json.dumps(stored))
    assert re.match(r"token \d+ exceeds the model's vocabulary size of 128", refused(source, *words))
    (source / "tokenizer.json").unlink()
    assert refused(source, *words).startswith("no tokenizer found")
    with_words(source)
    (source / "tokenizer_config.json").unlink()
    assert refused(source, *words).startswith("the tokenizer has neither a pad token nor an EOS token")


@pytest.mark.parametrize("verb", ["quantize", "calibrate"])
def test_a_model_that_cannot_be_run(place, refused, tmp_path, verb):
    source = with_words(write_pico(tmp_path / "source", "qwen3-moe"))
    said = refused(source, *arguments(place / "texts.jsonl"), verb=verb)
    assert said.startswith("unsupported model_type 'qwen3_moe'")


@pytest.mark.parametrize("module", ["self_attn.o_proj", "mlp.experts.0.down_proj", "mlp.shared_experts.up_proj"])
def test_weights_that_are_not_finite(place, halfbyte, tmp_path, module):
    """They are found during a run; final files may stay, partial ones may not."""
    source, out = small(tmp_path / "source", "bf16"), tmp_path / "out"
    tensors = load_file(source / "model.safetensors")
    tensors[f"model.layers.1.{module}.weight"][0, 0] = float("nan")
    save_file(tensors, source / "model.safetensors")
    code, _, said = halfbyte("quantize", source, out, *arguments(place / "texts.jsonl"))
    assert code == 2, said
    assert re.search(r"✗ layer 1: non-finite values in (expert \d+|\S+)\n", said)
    assert not list(out.rglob("*.part"))
    assert not list(out.glob("*.safetensors"))
    assert not (out / "config.json").exists()


def test_statistics_that_are_not_those(place, refused, tmp_path):
    words = ("-r", WAFER)
    other = small(tmp_path / "other", seed=3)
    said = refused(other, *words, "--stats", place / "stats")
    assert said.startswith("these statistics were measured on other weights")
    said = refused(place / "source", *words, "--stats", place / "texts.jsonl")
    assert said.startswith("not a statistics file")
    said = refused(place / "source", *words, "--stats", place / "source/model-00001-of-000006.safetensors")
    assert said.startswith("not a statistics file")
    for nothing in (place / "source", place / "nowhere"):
        said = refused(place / "source", *words, "--stats", nothing)
        assert said.startswith("no finished statistics found")
    said = refused(place / "source", *words, "--stats", place / "two-layers")
    assert said.startswith("these statistics lack layer 2")


def test_damaged_statistics_are_refused(place, refused, tmp_path):
    """One flipped bit of an amax is detected before anything is written."""
    shutil.copytree(place / "stats", tmp_path / "stats")
    path = tmp_path / "stats/stats.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x40
    path.write_bytes(data)
    said = refused(place / "source", "-r", WAFER, "--stats", tmp_path / "stats")
    assert said.startswith("these statistics are damaged")


def test_statistics_without_what_the_backstop_needs(place, refused):
    """Reported before anything is written."""
    sets = ("--set", "quantize.input_scale.backstop=all_experts", "--set", "quantize.input_scale.min_tokens=1000")
    said = refused(place / "source", "-r", WAFER, *sets, "--stats", place / "stats")
    assert said.startswith("these statistics lack the all-token values of experts in layer 1 for backstop all_experts")


def test_folders_for_statistics(place, halfbyte, tmp_path):
    words, source = arguments(place / "texts.jsonl"), place / "source"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.txt").write_text("mine")
    for folder, sentence in (
        (source / "stats", "the output folder is inside the source"),
        (tmp_path / "thesis", "not a statistics folder"),
        (tmp_path / "thesis/thesis.txt", "not a statistics folder"),
    ):
        code, _, said = halfbyte("calibrate", source, "-o", folder, *words)
        assert (code, sentence in said) == (2, True), said
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "thesis/thesis.txt").read_text() == "mine"
    assert not (source / "stats").exists()
