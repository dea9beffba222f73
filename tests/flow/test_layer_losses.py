"""The journal's losses by layer and role: exact, independent of shards and of the run that wrote them."""

import json
import math

import pytest
from pico import write_pico

from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.losses import losses, losses_of_journal
from halfbyte.engine.pipeline import JOURNAL, quantize
from halfbyte.families.linears import read_linear
from halfbyte.families.model import describe
from halfbyte.families.registry import families
from halfbyte.formats.codec import amax, encode
from halfbyte.formats.encoded import Quality
from halfbyte.recipe.load import load_recipe

RECIPE = "kimi-k2.6-nvfp4a16"


@pytest.fixture
def source(tmp_path):
    return write_pico(tmp_path / "source", layers=5, experts=8, hidden=256, expert_width=256)


def recorded(out):
    shards = json.loads((out / "halfbyte/plan.json").read_text())["shards"]
    return losses_of_journal(Journal(out / "halfbyte" / JOURNAL).lines(), shards)


def by_hand(source, rules):
    """Encode every quantized linear and sum the losses."""
    model, reader = describe(open_checkpoint(source)), Reader(open_checkpoint(source))
    quantized = [linear for linear in model.linears.values() if rules.roles[linear.role] == "quantize"]
    groups = {}
    for linear in quantized:
        groups.setdefault(model.family.fused_group(linear.module), []).append(linear)
    found = {}
    for group in groups.values():
        weights = [read_linear(linear, reader) for linear in group]
        shared = max(map(amax, weights)) if len(group) > 1 else None
        for linear, weight in zip(group, weights, strict=True):
            quality = encode(weight, rules.quantize.format, method=rules.quantize.scales, amax=shared).quality
            found.setdefault((linear.layer, linear.role), []).append((linear.module, quality))
    return found


def parted(out):
    """Return the linears with tensors in more than one shard."""
    linears = describe(open_checkpoint(out)).linears.values()
    return [linear.module for linear in linears if len({tensor.shard for tensor in linear.parts.values()}) > 1]


@pytest.mark.parametrize("shards", ["5GB", "layers", "1MB"])
def test_every_layer_is_recorded_whole_whatever_the_shards(source, tmp_path, shards):
    rules = load_recipe(RECIPE, [f"shards={shards}"])
    quantize(source, tmp_path / "out", rules)
    if shards == "1MB":  # some layers and linears span several shards
        assert parted(tmp_path / "out")
    wanted, found = by_hand(source, rules), recorded(tmp_path / "out")
    assert [(loss.layer, loss.role) for loss in found] == sorted(wanted)
    for loss in found:
        linears = wanted[loss.layer, loss.role]
        assert loss.linears == len(linears)
        assert loss.weights == sum(quality.weights for _, quality in linears)
        assert loss.signal == pytest.approx(math.fsum(q.signal for _, q in linears), rel=1e-12)
        assert loss.error == pytest.approx(math.fsum(q.error for _, q in linears), rel=1e-12)
        assert loss.worst[1] == pytest.approx(min(quality.sqnr_db for _, quality in linears), rel=1e-12)
        assert loss.worst[0] in {module for module, _ in linears}


def test_the_worst_line_of_a_shard_names_a_weight(source, tmp_path):
    rules, steps = load_recipe(RECIPE, ["shards=5GB"]), []
    quantize(source, tmp_path / "out", rules, progress=steps.append)
    (worst,) = [step.worst for step in steps if step.worst is not None]
    rated = {module: quality.sqnr_db for rows in by_hand(source, rules).values() for module, quality in rows}
    assert worst[0].removesuffix(".weight") in rated
    assert worst[0].endswith(".weight")
    assert worst[1] == pytest.approx(min(rated.values()), rel=1e-12)


def test_a_shard_that_was_made_again_counts_once(source, tmp_path):
    out, rules = tmp_path / "out", load_recipe(RECIPE, ["shards=1MB"])
    quantize(source, out, rules)
    before, shards = recorded(out), sorted(out.glob("*.safetensors"))
    for shard in shards[1 : len(shards) // 2]:
        shard.write_bytes(b"damaged")
    quantize(source, out, rules)
    assert len(Journal(out / "halfbyte" / JOURNAL).lines()) > len(shards)
    assert recorded(out) == before


def test_a_journal_of_an_earlier_version_says_nothing_by_layer_and_still_resumes(source, tmp_path):
    out, rules = tmp_path / "out", load_recipe(RECIPE, ["shards=1MB"])
    quantize(source, out, rules)
    journal, path = Journal(out / "halfbyte" / JOURNAL), out / "halfbyte" / JOURNAL
    older = [{key: value for key, value in line.items() if key != "layers"} for line in journal.lines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in older))
    assert recorded(out) is None
    quantize(source, out, rules)
    assert len(journal.lines()) == len(older)


def test_what_is_kept_lost_nothing(source, tmp_path):
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-bf16"))
    assert recorded(tmp_path / "out") == []


def test_values_that_are_not_finite_are_no_numbers():
    module = "language_model.model.layers.3.mlp.experts.7.up_proj"
    family = next(one for one in families() if one.linear(module))
    entry = losses([(module, Quality(4, 1.0, math.inf, math.inf, 0))], family)
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
    assert losses_of_journal([{"shard": "a", "layers": entry}], ["a"]) is None
