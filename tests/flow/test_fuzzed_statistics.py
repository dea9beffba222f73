"""Forged statistics and prune plans with a valid checksum: a run succeeds or reports the problem."""

import json
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy
from attacks.bounds import check_answer, run_bounded, within
from attacks.damage import ODD_TEXTS, damaged_json, damaged_value
from attacks.files import BYTES, IN_PLACE
from calibratable import small, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pruning import plan_of, some

from halfbyte.calibrate.store import stats_sha256
from halfbyte.cli import main as cli
from halfbyte.plan.prune_plan import write_prune_plan

WAFER, REAP = "kimi-k2.6-nvfp4-wafer", "kimi-k2.6-reap-25"
SHORT = "calibrate.sequence_length=64"
TYPES = ["int64", "float32", "float64", "float16", "uint8", "bool", "int8"]
SHAPES = [(), (0,), (1,), (8,), (8, 1), (1, 8), (8, 2), (2, 2, 2), (0, 0)]
VALUES = [0, 1, -1, float("nan"), float("inf"), 1e308, 1e-320, 2**62, 65504]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source, its statistics, and a plan for it."""
    root = tmp_path_factory.mktemp("place")
    source = small(root / "source", experts=8)
    data = texts(root / "texts.jsonl")
    words = ["calibrate", source, "-r", WAFER, "--data", f"news={data}", "--samples", 6, "--set", SHORT]
    assert cli.run([str(word) for word in (*words, "-o", root / "stats")]) == 0
    write_prune_plan(root / "plan.json", plan_of(source, some(source, 4)))
    return root


@pytest.fixture(scope="module")
def measured(place):
    path = place / "stats/stats.safetensors"
    with safetensors.safe_open(path, "np") as opened:
        about = json.loads(opened.metadata()["halfbyte"])
        return about, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


@pytest.fixture
def run(place, capsys):
    """Run a command on the source into a new folder; check for a message and an exit code."""

    def call(verb, *argv):
        out = place / "out"
        shutil.rmtree(out, ignore_errors=True)
        with within(60):
            code = cli.run([str(word) for word in (verb, place / "source", out, *argv)])
        printed = capsys.readouterr()
        check_answer(code, printed.out, printed.err)
        return code

    return call


@st.composite
def edits(draw, names):
    """Return up to three edits of arrays."""
    kinds = st.one_of(
        st.tuples(st.just("type"), st.sampled_from(TYPES)),
        st.tuples(st.just("shape"), st.sampled_from(SHAPES)),
        st.tuples(st.just("value"), st.sampled_from(VALUES)),
        st.tuples(st.just("name"), st.sampled_from([*ODD_TEXTS[:6], "layers.1.experts.more", "layers.99.x.y", "a.b"])),
        st.tuples(st.just("gone"), st.none()),
    )
    return draw(st.lists(st.tuples(st.sampled_from(names), kinds), max_size=3))


def edited(arrays, changes):
    found = dict(arrays)
    for name, (kind, what) in changes:
        if name not in found:
            continue
        array = found.pop(name)
        with np.errstate(all="ignore"):
            match kind:
                case "type":
                    found[name] = array.astype(what)
                case "shape":
                    found[name] = np.resize(array, what)
                case "value":
                    fits = what if array.dtype.kind == "f" or np.isfinite(what) else 0
                    found[name] = np.full_like(array, np.array(fits).astype(array.dtype))
                case "name":
                    found[what] = array
    return found


def write_stats(path, about, arrays, checksum):
    """Write statistics with a right, wrong or missing checksum."""
    told = about
    if isinstance(about, dict):
        bare = {key: value for key, value in about.items() if key != "sha256"}
        sums = {"right": {"sha256": stats_sha256(bare, arrays)}, "wrong": {"sha256": "0" * 64}, "none": {}}
        told = {**bare, **sums[checksum]}
    path.write_bytes(safetensors.numpy.save(arrays, {"halfbyte": json.dumps(told)}))


def test_statistics(place, measured, run):
    about, arrays = measured
    path = place / "forged.safetensors"
    codes = []

    @settings(suppress_health_check=list(HealthCheck))
    @given(changes=edits(sorted(arrays)), told=st.one_of(st.just(about), damaged_value(about)),
           checksum=st.sampled_from(["right", "right", "right", "wrong", "none"]))  # fmt: skip
    def fuzz(changes, told, checksum):
        write_stats(path, told, edited(arrays, changes), checksum)
        codes.append(run("quantize", "-r", WAFER, "--stats", path))
        codes.append(run("prune", "--keep", "4", "--no-loops", "--stats", path))

    fuzz()
    assert {0, 2} <= set(codes)  # some are right, and some are refused


def test_prune_plans(place, run):
    path = place / "forged.json"
    valid = json.loads((place / "plan.json").read_text())
    codes = []

    @given(raw=damaged_json(valid))
    def fuzz(raw):
        path.write_bytes(raw)
        codes.append(run("prune", "--no-loops", "--plan", path))

    fuzz()
    assert 2 in codes


@pytest.mark.parametrize("attack", [*IN_PLACE, "empty", "nul_bytes", "deep_lists", "million_empty_lists", "controls"])
def test_anything_in_place_of_statistics_and_plans(place, halfbyte, tmp_path, attack):
    for option, valid in (("--stats", place / "stats/stats.safetensors"), ("--plan", place / "plan.json")):
        path = tmp_path / valid.name
        shutil.copy(valid, path)
        {**IN_PLACE, **BYTES}[attack](path)
        words = ("--keep", "4") if option == "--stats" else ()
        code, _, _ = run_bounded(
            halfbyte, "prune", place / "source", tmp_path / "out", "--no-loops", *words, option, path
        )
        assert code == (0 if attack == "no_permission" and os.geteuid() == 0 else 2)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


def test_a_sparse_file_that_says_it_has_a_terabyte_of_counts(place, halfbyte, tmp_path):
    path = tmp_path / "stats.safetensors"
    entry = {"dtype": "I64", "shape": [1 << 37], "data_offsets": [0, 1 << 40]}
    header = json.dumps({"__metadata__": {"halfbyte": "{}"}, "layers.1.experts.count": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + (1 << 40))
    code, _, said = run_bounded(
        halfbyte, "prune", place / "source", tmp_path / "out", "--no-loops", "--keep", "4", "--stats", path
    )
    assert code == 2
    assert "larger than 1,024 MiB" in said
