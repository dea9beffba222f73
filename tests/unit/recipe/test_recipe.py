"""Recipes: shipped ones load, invalid ones are rejected with the exact what / where / fix."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from halfbyte.errors import RecipeError
from halfbyte.formats.registry import FORMATS, written_formats
from halfbyte.recipe import decisions
from halfbyte.recipe import schema as recipe_schema
from halfbyte.recipe.errors import block_keys, list_item
from halfbyte.recipe.load import Recipe, load_recipe, recipe_names, recipe_text

DATA = Path(__file__).parent
# Every section that a recipe can have, one key a line, so that the tests can name lines.
WHOLE = (DATA / "whole.yaml").read_text(encoding="utf-8")
LINES = WHOLE.splitlines()
PARTS = ["Recipe", "Quantize", "Calibrate", "Dataset", "Prune", "InputScale", "EngineConfig"]
# Finished checkpoints contain these and are audited with them: they change only if the recipe's decisions change.
SHIPPED = {
    "kimi-k2.6-bf16": "52e46b40f0c270aeeb9bad48e7ea8b775b04f087b344c7bd00bdc363f2ac87ec",
    "kimi-k2.6-fp8-reference": "f700cec6d7214503b78a698633d9a64651934d4bcdd8dfaea7fb20b1e41df746",
    "kimi-k2.6-mxfp4-wafer": "cf2e5bbba8edfb42b125a63f09a142a8bafe38dedb672c5d5111071b620de665",
    "kimi-k2.6-mxfp4a16": "e7c5f8679271e723ec7dc2aa34ccc6003166c0049f90d965d7c8a1bb337e6d16",
    "kimi-k2.6-nvfp4-gptq": "760a2fb2b6749a3beec0123288de52d851ae9a1736b4b97552594281b0451261",
    "kimi-k2.6-nvfp4-nvidia": "43bd196d1972c1f2dfeb5cf56279709fcbb25f7d52b9ae0cdd3384e2c2c9137c",
    "kimi-k2.6-nvfp4-reap192": "80fbc9dc45ad115a357ae2177d5301b74317b8da8222959235e4e7d624c61867",
    "kimi-k2.6-nvfp4-wafer": "e342c9bc02b92df40fc0d5d550e8968baa2520eb6fbc0ac4c7ccde0c72b02f36",
    "kimi-k2.6-nvfp4a16": "f956b031d858aa91143c673f0fc416f6bbafd5ac6b3d91aedbf814dbefa5f4b9",
    "kimi-k2.7-code-nvfp4-decart": "36dd7f26991d1e2201cd3167420c1286b0eeee58e810a9b0cbdd1cfcbb22e36d",
    "kimi-k2.7-code-nvfp4-nvidia": "6f07c7166eb0ddd93488c09c1d37270a4bbc5d8c0d95379178eabadc7033ebfe",
}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: str | Path, overrides: tuple[str, ...] = ()) -> tuple[str, str, str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    error = caught.value
    return error.what, error.where.replace(f"{path}", "F"), error.fix


def edited(tmp_path: Path, old: str, new: str) -> Path:
    assert WHOLE.count(old) == 1, old
    return write(tmp_path, WHOLE.replace(old, new))


# --- what ships ---


def test_the_systems_of_the_seeds_and_ours_ship() -> None:
    assert recipe_names() == [
        "kimi-k2.6-bf16",
        "kimi-k2.6-fp8-reference",
        "kimi-k2.6-mxfp4-wafer",
        "kimi-k2.6-mxfp4a16",
        "kimi-k2.6-nvfp4-gptq",
        "kimi-k2.6-nvfp4-nvidia",
        "kimi-k2.6-nvfp4-reap192",
        "kimi-k2.6-nvfp4-wafer",
        "kimi-k2.6-nvfp4a16",
        "kimi-k2.7-code-nvfp4-decart",
        "kimi-k2.7-code-nvfp4-nvidia",
    ]


@pytest.mark.parametrize("name", recipe_names())
def test_a_shipped_recipe_loads_and_round_trips(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe_text(name).startswith("# ")
    as_text = yaml.safe_dump(without_nulls(recipe.as_dict()))
    # null decides something only for calibrate.seed, which is lost with the others
    as_text = as_text.replace("calibrate:\n", "calibrate:\n  seed: null\n") if "\n  seed:" not in as_text else as_text
    again = load_recipe(write(tmp_path, as_text))
    assert again == recipe
    assert again.fingerprint() == recipe.fingerprint()
    assert Recipe.of(json.loads(json.dumps(recipe.as_dict()))) == recipe


def without_nulls(block: Any) -> Any:
    if isinstance(block, dict):
        return {key: without_nulls(value) for key, value in block.items() if value is not None}
    return [without_nulls(item) for item in block] if isinstance(block, list) else block


def test_shipped_recipes_decide_what_they_always_did() -> None:
    assert {name: load_recipe(name).fingerprint() for name in recipe_names()} == SHIPPED


@pytest.mark.parametrize("name", recipe_names())
def test_what_is_decided_is_what_was_checked(name: str) -> None:
    data = yaml.safe_load(recipe_text(name))
    data.pop("release", None)  # which decides nothing
    stored = load_recipe(name).as_dict()
    assert json.dumps(stored) == json.dumps(recipe_schema.Recipe.model_validate(data).model_dump(mode="json"))


@pytest.mark.parametrize("name", recipe_names())
def test_every_scalar_key_of_a_shipped_recipe_has_a_reason(name: str) -> None:
    lines = recipe_text(name).splitlines()
    seen: set[str] = set()  # a data set explains a key once; the next ones repeat it
    for before, line in itertools.pairwise(lines):
        key = re.match(r"\s+(?:- )?([a-z_]+): \S", line)
        if key and key[1] not in {"domain", "source", "subset", "split"} and key[1] not in seen:
            assert " # " in line or before.lstrip().startswith("#"), line
            seen.add(key[1])
    assert all(len(line) <= 120 for line in lines)


def test_shipped_recipes_quantize_what_their_cards_say() -> None:
    quantized = {n: {r for r, a in load_recipe(n).roles.items() if a == "quantize"} for n in recipe_names()}
    wafer = quantized.pop("kimi-k2.6-nvfp4-wafer")
    assert wafer == {"routed_experts", "shared_experts", "dense_mlp"}
    assert quantized.pop("kimi-k2.6-bf16") == quantized.pop("kimi-k2.6-nvfp4-reap192") == set()
    assert all(roles == {"routed_experts"} for roles in quantized.values())


def test_formats_and_scales_are_those_that_the_encoders_have() -> None:
    assert set(written_formats()) == {name for name, row in FORMATS.items() if row.encodes}
    for name in recipe_names():
        quantize = load_recipe(name).quantize
        assert quantize is None or quantize.scales in FORMATS[quantize.format].encodes


@pytest.mark.parametrize(
    ("name", "activations", "kv_cache", "versioned", "pattern"),
    [
        ("int4", [None], [None], False, "re:.*lm_head"),
        ("fp8_channel", ["none", "dynamic"], [None], False, "re:.*lm_head"),
        ("nvfp4", ["none", "calibrated"], ["none", "fp8", "fp8_cast"], True, "*lm_head*"),
        ("nvfp4_ct", ["none", "calibrated"], [None], False, "re:.*lm_head"),
        ("mxfp4", ["none", "dynamic"], [None], True, "re:.*lm_head"),
        ("mxfp4_ct", ["none", "dynamic"], [None], False, "re:.*lm_head"),
    ],
)
def test_a_format_takes_its_own_choices_and_no_others(
    name: str, activations: list[str | None], kv_cache: list[str | None], versioned: bool, pattern: str
) -> None:
    choices = itertools.product(
        [None, "none", "calibrated", "dynamic"],
        [None, "none", "fp8", "fp8_cast"],
        [None, "1"],
        ["re:.*lm_head", "*lm_head*"],
    )
    taken: set[tuple[Any, ...]] = set()
    for choice in choices:
        acts, kv, version, ignored = choice
        scale = {"per": "layer"} if acts == "calibrated" else None
        config = {"producer_version": version, "ignore_patterns": [ignored]}
        block = {"format": name, "scales": FORMATS[name].encodes[0], "activations": acts, "kv_cache": kv}
        with contextlib.suppress(ValidationError):
            recipe_schema.Quantize.model_validate({**block, "input_scale": scale, "config": config})
            taken.add(choice)
    assert taken == set(itertools.product(activations, kv_cache, ["1"] if versioned else [None], [pattern]))


def test_every_key_is_described_for_the_errors_that_name_it() -> None:
    for name in PARTS:
        assert all(field.description for field in getattr(recipe_schema, name).model_fields.values())


@pytest.mark.parametrize("name", PARTS)
def test_what_is_decided_has_the_keys_that_are_checked(name: str) -> None:
    checked, decided = getattr(recipe_schema, name).model_fields, dataclasses.fields(getattr(decisions, name))
    assert [field.name for field in decided] == list(checked)
    required = [field.name for field in decided if field.default is dataclasses.MISSING]
    assert required == [key for key, field in checked.items() if field.is_required()]
    defaults = {field.name: field.default for field in decided if field.name not in required}
    assert defaults == {key: field.default for key, field in checked.items() if not field.is_required()}
    careful = {"select": "mean", "protect": True, "min_tokens": 1} if name == "Prune" else {}
    assert {key: default for key, default in defaults.items() if default is not None} == careful


def test_published_lists_are_spelled_as_published() -> None:
    def patterns(name: str) -> tuple[str, ...] | None:
        quantize = load_recipe(name).quantize
        return quantize.config.ignore_patterns if quantize else None

    assert patterns("kimi-k2.6-nvfp4-wafer") == ("lm_head", "*self_attn*", "*vision_tower*", "*mm_projector*")
    assert patterns("kimi-k2.6-mxfp4-wafer") == (
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
        "re:mm_projector.*",
        "re:vision_tower.*",
    )


def test_recipes_import_neither_torch_nor_numpy() -> None:
    code = "import sys, halfbyte.recipe.load as r; r.load_recipe(r.recipe_names()[0]); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy"} & set(shown.stdout.split())
    assert "pydantic" in shown.stdout.split()


def test_missing_recipes_are_reported_with_a_suggestion(tmp_path: Path) -> None:
    known = ", ".join(recipe_names())
    listed = "pass the path of a YAML file, or a name from 'halfbyte recipes list'"
    assert refusal("kimi-k2.6-nvfp4-waver") == (
        "unknown recipe 'kimi-k2.6-nvfp4-waver'",
        "F",
        "did you mean 'kimi-k2.6-nvfp4-wafer'?",
    )
    assert refusal("zzz") == ("unknown recipe 'zzz'", "F", f"the recipes are {known}")
    assert refusal("mxfp4")[2].startswith("did you mean one of kimi-k2.6-mxfp4-wafer, ")
    assert refusal("kimi-k2.6-bf16.yaml") == (
        "cannot read recipe 'kimi-k2.6-bf16.yaml': No such file or directory",
        "F",
        "did you mean 'kimi-k2.6-bf16'?",
    )
    assert refusal(tmp_path) == (f"cannot read recipe '{tmp_path}': Is a directory", "F", listed)
    assert refusal("x" * 5000)[0] == f"unknown recipe '{'x' * 5000}'"
    assert refusal("./a\0b") == ("cannot read recipe './a\0b': embedded null byte", "F", listed)
    with pytest.raises(RecipeError, match=r"cannot read recipe '\.\./errors'"):
        recipe_text("../errors")


@pytest.mark.parametrize("name", ["nvfp4", "NVFP4", "kimi-nvfp4", "kimi-k2.6-nvfp4", "./nvfp4.yaml"])
def test_a_format_leads_to_its_recipes_with_the_pruned_ones_last(name: str) -> None:
    fix = refusal(name)[2]
    assert fix.startswith("did you mean one of ")
    named = fix.removeprefix("did you mean one of ").removesuffix("?").split(", ")
    assert "kimi-k2.6-nvfp4-nvidia" in named
    assert all("nvfp4" in one for one in named)
    assert named[-1] == "kimi-k2.6-nvfp4-reap192"


# --- loaded recipes ---


def test_the_whole_recipe_loads(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, WHOLE))
    assert recipe.quantize is not None
    assert recipe.calibrate is not None
    assert recipe.calibrate.datasets[1].share == 2
    assert recipe.shard_nbytes == 5_000_000_000
    assert load_recipe(write(tmp_path, WHOLE), ["shards=layers"]).shard_nbytes is None
    assert load_recipe(write(tmp_path, WHOLE), ["shards=500MB"]).shard_nbytes == 500_000_000


def test_a_recipe_is_frozen(tmp_path: Path) -> None:
    recipe = load_recipe(write(tmp_path, WHOLE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.shards = "layers"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.calibrate.samples = 1  # type: ignore[union-attr, misc]


CHANGES = {  # a valid change of every key that decides something
    "roles.attention": "quantize",
    "quantize.format": "nvfp4_ct quantize.kv_cache=null quantize.config={ignore_patterns:['re:a']}",
    "quantize.scales": "mse",
    "quantize.activations": "none quantize.input_scale=null",
    "quantize.input_scale.per": "layer quantize.input_scale.min_tokens=null quantize.input_scale.backstop=null",
    "quantize.input_scale.min_tokens": "2",
    "quantize.input_scale.backstop": "all_experts",
    "quantize.input_scale.fixed": (
        "1.0 quantize.input_scale.per=null quantize.input_scale.min_tokens=null quantize.input_scale.backstop=null"
        " quantize.activations=fixed"
    ),
    "quantize.kv_cache": "fp8_cast",
    "quantize.kv_scale_min": "1.0",
    "quantize.config.producer_version": "'0.47.0'",
    "quantize.config.ignore_patterns": "[lm_head]",
    "quantize.config.ignore_roles": "[attention] quantize.config.ignore_patterns=null",
    "calibrate.samples": "9 calibrate.datasets.0.share=7",
    "calibrate.sequence_length": "1024",
    "calibrate.rows": "padded",
    "calibrate.seed": "1",
    "calibrate.propagate": "quantized",
    "calibrate.public_reap": "true",
    "calibrate.datasets.0.domain": "prose",
    "calibrate.datasets.0.source": "a/b",
    "calibrate.datasets.0.subset": "2.0.0",
    "calibrate.datasets.0.split": "test",
    "calibrate.datasets.0.columns": "[highlights]",
    "calibrate.datasets.0.chat_template": "true",
    "calibrate.datasets.0.share": "5 calibrate.datasets.1.share=3",
    "prune.method": "msan",
    "prune.statistics": "file",
    "prune.keep": "256",
    "prune.drop": "0.5 prune.keep=null",
    "prune.select": "max_min",
    "prune.blend": "{news: 1, own: 2}",
    "prune.protect": "false",
    "prune.min_tokens": "2",
    "shards": "layers",
}


def test_the_fingerprint_follows_every_decision_and_no_word(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    leaves = {re.sub(r"^roles\..*", "roles.attention", leaf) for leaf in schema_leaves(recipe_schema.Recipe)}
    assert leaves == {*CHANGES, "name", "description"}
    prints = [load_recipe(path).fingerprint()]
    for key, value in CHANGES.items():
        overrides = re.split(r" (?=[a-z]+\.)", f"{key}={value}")
        prints.append(load_recipe(path, overrides).fingerprint())
    assert len(set(prints)) == len(CHANGES) + 1  # with the recipe itself
    together = hashlib.sha256(" ".join(prints).encode()).hexdigest()  # in the order of CHANGES
    assert together == "803d0ce0b232b1f78bdeb0da5a4de8b0787d629394f1398e3a9ba4750d498da8"
    assert load_recipe(path, ["name=other", "description=Other."]).fingerprint() == prints[0]


def test_the_fingerprint_is_stable(tmp_path: Path) -> None:
    reordered = "\n".join([LINES[-1], *LINES[2:-1], *LINES[:2]])
    fingerprints = {
        load_recipe(write(tmp_path, text)).fingerprint() for text in (WHOLE, reordered, f"# a word\n{WHOLE}")
    }
    assert fingerprints == {"bb8068156a221c605a521d124346be93e3f178ebf5b7db167d323c13c052162d"}


def schema_leaves(part: Any, prefix: str = "") -> Iterator[str]:
    keys = block_keys(part)
    if keys is None:
        item = list_item(part)
        if item is None or block_keys(item) is None:
            yield prefix.rstrip(".")
        else:
            yield from schema_leaves(item, f"{prefix}0.")
    else:
        for key, inner in keys.items():
            yield from schema_leaves(inner, f"{prefix}{key}.")


# --- rejected recipes ---


def read_cases(name: str) -> list[list[str]]:
    return [case.splitlines() for case in (DATA / name).read_text(encoding="utf-8").strip().split("\n\n")]


# Each case of refused.txt: a change of whole.yaml (with \n for line breaks), then what, where and fix.
@pytest.mark.parametrize("case", read_cases("refused.txt"), ids=lambda case: case[0])
def test_each_recipe_mistake_has_its_exact_error(case: list[str], tmp_path: Path) -> None:
    change, *said = case
    old, new = re.split(" => ?", change.replace(r"\n", "\n"))
    assert list(refusal(edited(tmp_path, old, new))) == said


# Each case of refused_overrides.txt: overrides of whole.yaml between semicolons, then what, where and fix.
@pytest.mark.parametrize("case", read_cases("refused_overrides.txt"), ids=lambda case: case[0])
def test_overrides_are_checked_like_the_file(case: list[str], tmp_path: Path) -> None:
    overrides, *said = case
    assert list(refusal(write(tmp_path, WHOLE), tuple(overrides.split(" ; ")))) == said


FIXED_AT = "quantize.activations=fixed ; quantize.input_scale={fixed: "
SMALL = "{domain: d, source: s, subset: u, split: t, columns: [c], chat_template: false, share: 1}"


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("calibrate.sequence_length=1", "calibrate.sequence_length=0"),
        ("calibrate.seed=4294967295", "calibrate.seed=4294967296"),
        ("calibrate.seed=0", "calibrate.seed=-1"),
        ("quantize.input_scale.min_tokens=1", "quantize.input_scale.min_tokens=0"),
        (f"{FIXED_AT}1.0e-30}}", f"{FIXED_AT}0.0}}"),
        (f"{FIXED_AT}{10**30}}}", f"{FIXED_AT}{10**31}}}"),
        ("prune.keep=1", "prune.keep=0"),
        ("prune.min_tokens=0", "prune.min_tokens=-1"),
        ("prune.keep=null ; prune.drop=0.999", "prune.keep=null ; prune.drop=1"),
        ("prune.keep=null ; prune.drop=0.001", "prune.keep=null ; prune.drop=0"),
        (f"calibrate.samples=1 ; calibrate.datasets=[{SMALL}]", "calibrate.samples=0 ; calibrate.datasets=[]"),
        ("calibrate.datasets.0.split=a", "calibrate.datasets.0.split=''"),
        ("calibrate.datasets.0.subset=a", "calibrate.datasets.0.subset=''"),
        ("quantize.config.producer_version=a", "quantize.config.producer_version=''"),
        ("description=a", "description=''"),
        ("shards=1MB", "shards=0MB"),
        ("name=a", "name=.."),
    ],
)
def test_bounds_match_their_descriptions(inside: str, outside: str, tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    load_recipe(path, inside.split(" ; "))
    assert re.match(r"(\S+|'.*') is not valid for '\w+'$", refusal(path, tuple(outside.split(" ; ")))[0])


def test_overrides_set_values_sections_and_items(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    recipe = load_recipe(
        path, ["quantize.scales=mse", "calibrate.datasets.0.share=7", "calibrate.samples=9", "prune=null"]
    )
    assert recipe.quantize is not None
    assert recipe.quantize.scales == "mse"
    assert recipe.calibrate is not None
    assert [dataset.share for dataset in recipe.calibrate.datasets] == [7, 2]
    assert recipe.prune is None
    made = load_recipe("kimi-k2.6-mxfp4-wafer", ["prune.method=reap", "prune.statistics=file", "prune.drop=0.25"])
    assert made.prune is not None
    assert made.prune.drop == 0.25
    assert load_recipe(path, ["prune.keep=1", "prune.keep=2"]).prune.keep == 2  # type: ignore[union-attr]


# --- an unknown key anywhere is refused, with something to type instead ---


def blocks(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    if isinstance(data, dict):
        yield path, data
    for key, inner in data.items() if isinstance(data, dict) else enumerate(data if isinstance(data, list) else []):
        yield from blocks(inner, (*path, key))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=12))
def test_an_unknown_key_at_any_depth_gets_a_suggestion(word: str, tmp_path: Path) -> None:
    paths = [path for path, _ in blocks(yaml.safe_load(WHOLE))]
    assert len(paths) == 9
    for path in paths:
        data = yaml.safe_load(WHOLE)
        block = next(block for at, block in blocks(data) if at == path)
        typo = f"{next(iter(block))}{word}"
        for key in (typo, f"{word}~"):
            block[key] = 1
            what, where, fix = refusal(write(tmp_path, yaml.safe_dump(data, allow_unicode=True)))
            del block[key]
            assert what == f"unknown key '{key}'"
            assert where.endswith(": " + ".".join(map(str, (*path, key))))
            assert re.match(r"did you mean '\w+'\?$|the keys here are \w+, \w+", fix), fix
