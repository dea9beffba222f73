"""What a calibrated run can be given wrong: one clear sentence, the right exit code, and nothing left behind."""

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

from halfbyte.calibrate.named_files import with_data
from halfbyte.measuring import calibrate
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
    """Run a command that must fail; return its sentence and its fix."""

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
    assert "'abisee/cnn_dailymail' is a data set on the Hub, and the library 'datasets' is not installed" in said
    assert "pip install datasets, or give a file instead: --data news=path" in said


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="this machine has the library")
def test_the_command_itself_says_so(place, tmp_path):
    """In a process of its own, once."""
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
    "missing": (None, "there is no such file"),
    "empty": ("", "the file is empty"),
    "blank": ("\n\n", "the file is empty"),
    "without text": ('{"article": ""}\n', "it has 0 of 6 samples"),
    "too short": ('{"article": "a b c"}\n' * 5, "it has 5 of 6 samples"),
    "broken": ('{"article": "a"}\n{"article": \n', "it is not JSON"),
    "not objects": ("[1, 2]\n", "it is a JSON list, not an object"),
    "numbers": ('{"article": 5}\n' * 6, "'article' is a number, not"),
    "other columns": ('{"body": "a"}\n' * 6, "none of the columns body is known to hold text"),
    "not UTF-8": (b'{"article": "\xff"}\n' * 6, "it is not JSON"),
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
    assert said.startswith("there is no column 'body'; there is article")


@pytest.mark.parametrize("data", ["texts.jsonl", "=texts.jsonl", "news=", "news=texts.csv"])
def test_pairs_that_are_none(place, refused, data):
    said = refused(place / "source", "-r", WAFER, "--data", data)
    assert re.match(r"'.*' is not a (domain and a file|file that is read here)", said)


def test_options_that_do_not_go_together(place, refused):
    data = ["--data", f"news={place / 'texts.jsonl'}"]
    assert refused(place / "source", "-r", WAFER, "--samples", 4).startswith("--samples counts samples of --data")
    assert refused(place / "source", "-r", PLAIN, *data).startswith(f"recipe '{PLAIN}' reads no data")
    said = refused(place / "source", "-r", PLAIN, "--stats", place / "stats")
    assert said.startswith(f"recipe '{PLAIN}' reads no statistics")
    assert refused(place / "source", "-r", PLAIN, verb="calibrate").startswith(f"recipe '{PLAIN}' has no data")


def test_statistics_go_with_no_other_data(place, refused):
    """It would be read by nobody, and someone would believe that it was."""
    data, samples = ("--data", f"news={place / 'texts.jsonl'}"), ("--samples", 4)
    for options in (data, samples, (*data, *samples)):
        said = refused(place / "source", "-r", WAFER, "--stats", place / "stats", *options)
        assert said.startswith(f"{options[0]} cannot go with --stats, which were measured on their own data")


def test_vocabularies(place, refused, tmp_path):
    words = arguments(place / "texts.jsonl")
    source = small(tmp_path / "source")
    stored = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text("{}")
    assert refused(source, *words).startswith("it is not a vocabulary")
    stored["model"]["vocab"] = {token: number + 100 for token, number in stored["model"]["vocab"].items()}
    stored["added_tokens"][0]["id"] = 300
    (source / "tokenizer.json").write_text(json.dumps(stored))
    assert re.match(r"the vocabulary has the token \d+, the model only 128", refused(source, *words))
    (source / "tokenizer.json").unlink()
    assert refused(source, *words).startswith("there is no vocabulary")
    with_words(source)
    (source / "tokenizer_config.json").unlink()
    assert refused(source, *words).startswith("the vocabulary has neither a pad token nor an end of text")


@pytest.mark.parametrize("verb", ["quantize", "calibrate"])
def test_a_model_that_cannot_be_run(place, refused, tmp_path, verb):
    source = with_words(write_pico(tmp_path / "source", "qwen3-moe"))
    said = refused(source, *arguments(place / "texts.jsonl"), verb=verb)
    assert said.startswith("no forward for model_type 'qwen3_moe'")


@pytest.mark.parametrize("module", ["self_attn.o_proj", "mlp.experts.0.down_proj", "mlp.shared_experts.up_proj"])
def test_weights_that_are_not_finite(place, halfbyte, tmp_path, module):
    """Found where they are used, in the middle of a run; whatever is final by then may stay, nothing half-written."""
    source, out = small(tmp_path / "source", "bf16"), tmp_path / "out"
    tensors = load_file(source / "model.safetensors")
    tensors[f"model.layers.1.{module}.weight"][0, 0] = float("nan")
    save_file(tensors, source / "model.safetensors")
    code, _, said = halfbyte("quantize", source, out, *arguments(place / "texts.jsonl"))
    assert code == 2, said
    assert re.search(r"✗ layer 1: \S+ has values that are not finite\n", said)
    assert not list(out.rglob("*.part"))
    assert not list(out.glob("*.safetensors"))
    assert not (out / "config.json").exists()


def test_statistics_that_are_not_those(place, refused, tmp_path):
    words = ("-r", WAFER)
    other = small(tmp_path / "other", seed=3)
    said = refused(other, *words, "--stats", place / "stats")
    assert said.startswith("these statistics were measured on other weights")
    said = refused(place / "source", *words, "--stats", place / "texts.jsonl")
    assert said.startswith("these are no statistics of halfbyte's")
    said = refused(place / "source", *words, "--stats", place / "source/model-00001-of-000006.safetensors")
    assert said.startswith("these are no statistics of halfbyte's")
    for nothing in (place / "source", place / "nowhere"):
        said = refused(place / "source", *words, "--stats", nothing)
        assert said.startswith("there are no finished statistics here")
    said = refused(place / "source", *words, "--stats", place / "two-layers")
    assert said.startswith("these statistics have no layer 2")


def test_damaged_statistics_are_refused(place, refused, tmp_path):
    """One bit of an amax: before anything is written, and not as scales that nobody can explain."""
    shutil.copytree(place / "stats", tmp_path / "stats")
    path = tmp_path / "stats/stats.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x40
    path.write_bytes(data)
    said = refused(place / "source", "-r", WAFER, "--stats", tmp_path / "stats")
    assert said.startswith("these statistics are damaged")


def test_statistics_without_what_the_backstop_needs(place, refused):
    """Said before anything is written."""
    sets = ("--set", "quantize.input_scale.backstop=all_experts", "--set", "quantize.input_scale.min_tokens=1000")
    said = refused(place / "source", "-r", WAFER, *sets, "--stats", place / "stats")
    assert said.startswith("these statistics have experts in layer 1 that the backstop wants to see on all tokens")


def test_folders_for_statistics(place, halfbyte, tmp_path):
    words, source = arguments(place / "texts.jsonl"), place / "source"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.txt").write_text("mine")
    for folder, sentence in (
        (source / "stats", "the output folder lies inside the source"),
        (tmp_path / "thesis", "this is not a folder of statistics"),
        (tmp_path / "thesis/thesis.txt", "this is not a folder of statistics"),
    ):
        code, _, said = halfbyte("calibrate", source, "-o", folder, *words)
        assert (code, sentence in said) == (2, True), said
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "thesis/thesis.txt").read_text() == "mine"
    assert not (source / "stats").exists()
