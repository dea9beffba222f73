"""prune end to end on every stored format: byte for byte, in one pass with quantization, killed and resumed."""

import hashlib
import json
import random
import shutil
import time
from dataclasses import replace

import pytest
import torch
from calibratable import (
    SHORT,
    Launcher,
    arguments,
    digests,
    is_running,
    kill,
    small,
    texts,
    wait_until,
)
from pico import KINDS, write_pico, write_shards
from pruning import config, obviously_pruned, plan_of, prune, some, tensors
from safetensors.torch import load_file

from halfbyte.audit.run import audit
from halfbyte.cli import main as cli
from halfbyte.engine.pipeline import quantize
from halfbyte.engine.runner import Runner
from halfbyte.errors import InterruptedRunError
from halfbyte.plan.prune_plan import read_prune_plan, write_prune_plan
from halfbyte.recipe.decisions import Prune
from halfbyte.recipe.load import load_recipe

KEEP = 4
REAP = "kimi-k2.6-nvfp4-reap192"
WAFER = "kimi-k2.6-nvfp4-wafer"
GIVEN = Prune(method="reap", statistics="file", keep=KEEP)
DTYPES = {"F32": torch.float32, "F16": torch.float16}
COUNTS = {"qwen3_moe": "num_experts"}
DECODED = {f"roles.{role}=bf16" for role in ("dense_mlp", "shared_experts", "attention")}


def weights(folder):
    """Return the hash of every shard; configs are compared separately."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_stays_byte_for_byte(tmp_path, kind):
    source, out = write_pico(tmp_path / "source", kind, experts=8), tmp_path / "out"
    kept = some(source, KEEP)
    result = prune(source, out, kept)
    assert tensors(out) == obviously_pruned(tensors(source), kept)
    before, after = config(source), config(out)
    key = COUNTS.get(KINDS[kind].model_type, "n_routed_experts")
    holder = before.get("text_config", before)
    assert holder[key] == 8
    holder[key] = KEEP
    assert after == before
    assert result.write_nbytes == sum(path.stat().st_size for path in out.glob("*.safetensors"))
    if (out / "model.safetensors.index.json").exists():
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors(out).values())
        assert index["weight_map"].keys() == tensors(out).keys()
    assert read_prune_plan(out / "halfbyte/prune-plan.json").kept() == kept
    hf = source / "hf_quant_config.json"
    assert not hf.exists() or json.loads((out / hf.name).read_text()) == json.loads(hf.read_text())
    found = {finding.check: finding for finding in audit(out, against=source).findings}
    assert [found[check].level for check in ("structure", "coverage", "config", "bytes", "prune", "kept")] == [
        "good"
    ] * 6
    assert "max difference 0.0" in found["prune"].text


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_routers_of_another_dtype(tmp_path, dtype):
    source = write_pico(tmp_path / "source", experts=8)
    shards = {path.name: load_file(path) for path in sorted(source.glob("*.safetensors"))}
    for found in shards.values():
        gates = {name: tensor for name, tensor in found.items() if name.endswith("gate.weight")}
        found.update({name: tensor.to(DTYPES[dtype]) for name, tensor in gates.items()})
    write_shards(source, shards)
    kept = some(source, KEEP)
    prune(source, tmp_path / "out", kept)
    assert tensors(tmp_path / "out") == obviously_pruned(tensors(source), kept)
    assert {dtype for name, (dtype, _, _) in tensors(tmp_path / "out").items() if "gate.weight" in name} == {dtype}
    assert "prune" not in audit(tmp_path / "out", against=source).failed


def test_experts_that_are_not_stored_alike_need_a_choice_before_the_run(tmp_path, capsys):
    source = write_pico(tmp_path / "source", "bf16", experts=8)
    shards = {path.name: load_file(path) for path in sorted(source.glob("*.safetensors"))}
    for found in shards.values():
        wide = {name: tensor for name, tensor in found.items() if ".layers.1.mlp.experts.5." in name}
        found.update({name: tensor.to(torch.float32) for name, tensor in wide.items()})
    write_shards(source, shards)
    kept = {1: (1, 2, 5, 6), 2: (0, 3, 4, 7)}
    result = prune(source, tmp_path / "out", kept)
    assert tensors(tmp_path / "out") == obviously_pruned(tensors(source), kept)
    assert result.write_nbytes == sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert "prune" not in audit(tmp_path / "out", against=source).failed
    options = ["--keep", 4, "--data", f"news={texts(tmp_path / 'texts.jsonl')}"]
    assert run("prune", source, tmp_path / "late", *options) == 2
    assert "the experts of layer 1 are stored in different formats or shapes" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["int4-k2.6", "fp8-block-k2", "fp8-channel", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct"])
def test_pruned_and_decoded_is_decoded_and_pruned(tmp_path, kind):
    source = write_pico(tmp_path / "source", kind, experts=8)
    kept, recipe = some(source, KEEP), load_recipe("kimi-k2.6-bf16", sorted(DECODED))
    prune(source, tmp_path / "pruned", kept)
    quantize(tmp_path / "pruned", tmp_path / "one", recipe)
    quantize(source, tmp_path / "decoded", recipe)
    prune(tmp_path / "decoded", tmp_path / "other", kept)
    assert weights(tmp_path / "one") == weights(tmp_path / "other")
    assert config(tmp_path / "one") == config(tmp_path / "other")
    both = replace(recipe, prune=GIVEN)
    quantize(source, tmp_path / "once", both, prune_plan=plan_of(source, kept))
    assert digests(tmp_path / "once") == digests(tmp_path / "one")


@pytest.mark.parametrize("kind", ["int4-k2.6", "bf16", "nvfp4"])
@pytest.mark.parametrize("recipe", ["kimi-k2.6-nvfp4a16", "kimi-k2.6-mxfp4-wafer"])
def test_one_pass_is_two(tmp_path, kind, recipe):
    """Prune and quantize at once, in this order, or in the other."""
    source = write_pico(tmp_path / "source", kind, experts=8)
    kept, rules = some(source, KEEP), load_recipe(recipe, sorted(DECODED) if kind == "nvfp4" else ())
    plan = plan_of(source, kept)
    quantize(source, tmp_path / "once", replace(rules, prune=GIVEN), prune_plan=plan)
    prune(source, tmp_path / "pruned", kept)
    quantize(tmp_path / "pruned", tmp_path / "one", rules)
    quantize(source, tmp_path / "quantized", rules)
    prune(tmp_path / "quantized", tmp_path / "other", kept)
    assert digests(tmp_path / "once") == digests(tmp_path / "one") == digests(tmp_path / "other")
    assert audit(tmp_path / "once", against=source, sample=2).failed == []


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source that can be calibrated, and texts."""
    root = tmp_path_factory.mktemp("prune")
    small(root / "source", "int4-k2.6", experts=8, layers=4)
    texts(root / "texts.jsonl")
    return root


def command(place, out, recipe=REAP, sets=()):
    prunes = (
        (f"prune.keep={KEEP}",)
        if recipe == REAP
        else ("prune.method=reap", "prune.statistics=calibrate", f"prune.keep={KEEP}")
    )
    return ["quantize", place / "source", out, *arguments(place / "texts.jsonl", recipe=recipe, sets=(*prunes, *sets))]


def run(*argv):
    quiet = ["--no-loops"] if argv[0] == "prune" else []  # see test_prune_loops.py
    return cli.run([str(argument) for argument in argv] + quiet)


def test_chosen_while_it_is_measured(place, tmp_path):
    """One pass gives the result of its own plan; with its statistics the same experts are chosen again."""
    assert run(*command(place, tmp_path / "out")) == 0
    plan = read_prune_plan(tmp_path / "out/halfbyte/prune-plan.json")
    assert plan.counts() == {1: KEEP, 2: KEEP, 3: KEEP}
    assert len(set(plan.kept().values())) > 1, "the layers chose alike: nothing shows that they were told apart"
    assert tensors(tmp_path / "out") == obviously_pruned(tensors(place / "source"), plan.kept())
    found = audit(tmp_path / "out", against=place / "source")
    assert found.failed == []
    assert audit(tmp_path / "out").failed == []
    stats = tmp_path / "out/halfbyte/stats"
    options = ["--keep", KEEP, "--stats", stats, "--no-protect"]
    assert run("prune", place / "source", tmp_path / "stats", *options) == 0
    assert (tmp_path / "stats/halfbyte/stats/stats.safetensors").exists()


def test_what_was_chosen_on_the_way_is_sealed(place, tmp_path):
    """Another selection of the same size, or one without a seal: the audit detects it without the source."""
    out = tmp_path / "out"
    assert run(*command(place, out)) == 0
    path, plan = out / "halfbyte/prune-plan.json", out / "halfbyte/plan.json"
    whole, sealed = path.read_text(), plan.read_text()
    found = json.loads(whole)
    kept = found["layers"]["2"]["kept"]
    other = next(expert for expert in range(8) if expert not in kept)
    found["layers"]["2"]["kept"] = sorted([*kept[1:], other])
    path.write_text(json.dumps(found))
    for report in (audit(out), audit(out, against=place / "source")):
        assert "prune" in report.failed
        (finding,) = [finding for finding in report.findings if finding.check == "prune"]
        assert finding.text == "halfbyte/prune-plan.json was changed after the run"
    path.write_text(whole)
    assert audit(out).failed == []
    unsealed = json.loads(sealed)
    assert unsealed["parts"]["kept"] == f"{KEEP} each"
    del unsealed["chosen"]
    plan.write_text(json.dumps(unsealed))
    assert "prune" in audit(out).failed
    assert run(*command(place, out)) == 0  # again: the same is chosen, and sealed
    assert plan.read_text() == sealed
    assert audit(out).failed == []


def test_lists_that_name_experts_follow_a_choice_that_comes_late(place, tmp_path):
    assert run(*command(place, tmp_path / "first")) == 0
    kept = read_prune_plan(tmp_path / "first/halfbyte/prune-plan.json").kept()[1]
    gone = next(expert for expert in range(8) if expert not in kept)
    shutil.copytree(place / "source", tmp_path / "source")
    shutil.copy(place / "texts.jsonl", tmp_path)
    found = config(tmp_path / "source")
    ignore = found["text_config"]["quantization_config"]["ignore"]
    name = "language_model.model.layers.1.mlp.experts.{}.up_proj".format
    before = list(ignore)
    ignore += [name(kept[2]), name(gone)]
    (tmp_path / "source/config.json").write_text(json.dumps(found))
    assert run(*command(tmp_path, tmp_path / "out")) == 0
    assert config(tmp_path / "out")["text_config"]["quantization_config"]["ignore"] == [*before, name(2)]


def test_calibrated_scales_follow_their_experts(place, tmp_path):
    """Input scales are those of the kept experts: the same as when all are encoded and some are dropped later."""
    argv = arguments(place / "texts.jsonl", recipe=WAFER)
    assert run("quantize", place / "source", tmp_path / "all", *argv) == 0
    assert run(*command(place, tmp_path / "once", WAFER)) == 0
    kept = read_prune_plan(tmp_path / "once/halfbyte/prune-plan.json").kept()
    assert tensors(tmp_path / "once") == obviously_pruned(tensors(tmp_path / "all"), kept)
    found = audit(tmp_path / "once", against=place / "source")
    assert found.failed == []
    assert "experts re-encoded" in next(f.text for f in found.findings if f.check == "prune")
    assert audit(tmp_path / "once").failed == []  # scales follow from the statistics without the source too


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    launched = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launched
    launched.close()


def test_sigkill_and_resume_choose_the_same(place, launcher, tmp_path):
    whole, out, dice = tmp_path / "whole", tmp_path / "out", random.Random(3)
    argv = command(place, out, WAFER, ("shards=1MB",))
    assert run(*command(place, whole, WAFER, ("shards=1MB",))) == 0
    struck = 0
    for _ in range(4):
        process = launcher.start(*argv, slow=0.004)
        wait_until(lambda process=process: "tokens in" in launcher.words() or not is_running(process))
        time.sleep(dice.uniform(0, 0.3))
        struck += is_running(process)
        kill(process)
        if (out / "config.json").exists():
            shutil.rmtree(out)
    assert struck >= 3, "too many runs came through: adapt the waiting times"
    code, words = launcher.run(*argv)
    assert code == 0, words
    assert digests(out) == digests(whole)
    assert (out / "halfbyte/prune-plan.json").read_bytes() == (whole / "halfbyte/prune-plan.json").read_bytes()
    assert not list(out.rglob("*.part"))


def test_a_copy_that_was_stopped_goes_on(tmp_path, monkeypatch):
    source = write_pico(tmp_path / "source", "nvfp4", experts=8)
    kept = some(source, KEEP)
    prune(source, tmp_path / "whole", kept)
    finish, finished = Runner._finish, []

    def stops(self, shards):
        finish(self, shards)
        finished.extend(shards)
        if len(finished) >= 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "_finish", stops)
        with pytest.raises(InterruptedRunError):
            prune(source, tmp_path / "out", kept, threads=1)
    assert not (tmp_path / "out/config.json").exists()
    assert prune(source, tmp_path / "out", kept).resumed >= 2
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_two_choices_never_share_a_folder(tmp_path, capsys):
    source = write_pico(tmp_path / "source", experts=8)
    for name, seed in (("a", 1), ("b", 2)):
        write_prune_plan(tmp_path / name, plan_of(source, some(source, KEEP, seed)))
    assert run("prune", source, tmp_path / "out", "--plan", tmp_path / "a") == 0
    assert run("prune", source, tmp_path / "out", "--plan", tmp_path / "b") == 2
    assert "another plan: kept differs" in capsys.readouterr().err
    assert run("prune", source, tmp_path / "out", "--plan", tmp_path / "a") == 0


def test_restored_experts_come_from_the_whole_checkpoint(place, tmp_path):
    stats = tmp_path / "stats"
    argv = ["-r", REAP, "--data", f"news={place / 'texts.jsonl'}", "--samples", 6, "--set", SHORT, "-o", stats]
    assert run("calibrate", place / "source", *argv) == 0
    assert run("prune", place / "source", "--drop", "50%", "--stats", stats, "-o", tmp_path / "plan") == 0
    assert run("prune", place / "source", tmp_path / "out", "--plan", tmp_path / "plan", "--restore", 2) == 0
    plan, more = read_prune_plan(tmp_path / "plan"), read_prune_plan(tmp_path / "out/halfbyte/prune-plan.json")
    assert all(len(set(more.kept()[layer]) - set(kept)) == 2 for layer, kept in plan.kept().items())
    assert tensors(tmp_path / "out") == obviously_pruned(tensors(place / "source"), more.kept())
    assert run("prune", place / "source", tmp_path / "same", "--keep", 6, "--stats", stats) == 0
    assert weights(tmp_path / "same") == weights(tmp_path / "out")  # rankings are nested
