"""Texts of kimi-mini without an engine: loop counts and messages."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from halfbyte.cli.main import run
from halfbyte.degeneracy import generate, loop_test
from halfbyte.degeneracy.generate import Written, open_writer
from halfbyte.degeneracy.loop_test import LoopRate, judge, open_prompts, rate_of
from halfbyte.doctor import facts as doctor
from halfbyte.errors import MachineError, UsageError
from halfbyte.families.deepseek_v3.forward import DeepseekV3

MINI = Path(__file__).parents[3] / "models" / "kimi-mini"
FINE = " ".join(f"word{at}" for at in range(30))
PROMPTS = ["Write a short story about a fox and a lamp.", "Explain bees to a child."]


@pytest.fixture(scope="module")
def writer():
    with open_writer(MINI) as result:
        yield result


def asked(writer):
    return [writer.prompt_tokens(prompt) for prompt in PROMPTS]


def test_greedy_texts_are_those_of_transformers_own_generate(writer):
    prompt = torch.tensor([writer.prompt_tokens(PROMPTS[0])])
    whole = writer.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, use_cache=False
    )
    expected = writer.vocabulary.decode(whole[0, prompt.shape[1] :].tolist())
    assert writer.write([prompt[0].tolist()], tokens=12, temperatures=[0.0])[0] == Written(expected, 12, False)


def test_a_batch_is_what_each_prompt_gives_alone(writer):
    long = writer.prompt_tokens("The fox found a lamp beside the old bridge. " * 25 + PROMPTS[0])
    prompts = [*asked(writer), long]  # the first two see hundreds of tokens less
    together = writer.write(prompts, tokens=16, temperatures=[0.0] * 3)
    assert together == [writer.write([ids], tokens=16, temperatures=[0.0])[0] for ids in prompts]


def test_the_seed_decides_what_is_sampled(writer):
    def texts(seed):
        return [
            one.text
            for one in writer.write(asked(writer) * 2, tokens=10, temperatures=[0.0] * 2 + [1.5] * 2, seed=seed)
        ]

    first, again, other = texts(1), texts(1), texts(2)
    assert first == again
    assert first[:2] == other[:2]  # greedy ones do not care
    assert first[2:] != other[2:]
    assert first[:2] != first[2:]


def test_finished_texts_do_not_change_the_noise_of_others(writer):
    first = [
        writer.write([who, *asked(writer)], tokens=24, temperatures=[0.0, 1.0, 1.0]) for who in leaving_and_not(writer)
    ]
    assert first[0][0].tokens < 12 < first[1][0].tokens
    assert first[0][1:] == first[1][1:]


def leaving_and_not(writer):
    return [writer.prompt_tokens("What is 2 + 3?"), asked(writer)[0]]


def test_noise_draws_from_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    noise = generate._Noise(3, 20_000, 4).next()
    drawn = torch.bincount((logits + 0.7 * noise).argmax(-1), minlength=4) / 20_000
    assert torch.allclose(drawn, (logits / 0.7).softmax(-1), atol=0.01)


def test_a_text_ends_at_its_stop_and_leaves_the_others_alone(writer):
    ids = [*asked(writer), writer.prompt_tokens("What is 2 + 3?")]
    short = writer.write(ids, tokens=40, temperatures=[0.0] * 3)
    assert short[2].ended
    assert short[2].tokens < 40
    assert "<|im_end|>" not in short[2].text
    assert [one.tokens for one in short[:2]] == [40, 40]
    assert short[:2] == writer.write(ids[:2], tokens=40, temperatures=[0.0] * 2)


def pruned_by_hand(folder, kept):
    """kimi-mini with only the first experts of every layer."""
    shutil.copytree(MINI, folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for path in folder.glob("model-*.safetensors"):
        tensors = {}
        for name, tensor in load_file(path).items():
            parts = name.split(".experts.")
            if len(parts) > 1 and parts[1].split(".")[0].isdigit() and int(parts[1].split(".")[0]) >= kept:
                del index["weight_map"][name]
                continue
            tensors[name] = tensor[:kept].clone() if ".mlp.gate." in name else tensor
        save_file(tensors, path, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["n_routed_experts"] = kept
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_pruned_checkpoint_loads_as_it_is_and_a_ruin_is_flagged(tmp_path):
    folder = pruned_by_hand(tmp_path / "pruned", 8)
    prompts = open_prompts(6)
    ruin = loop_test.loop_rate(folder, prompts=prompts, tokens=60)
    whole = loop_test.loop_rate(MINI, prompts=prompts, tokens=60)
    assert (whole.texts, whole.loops, whole.short, whole.unfinished) == (12, 0, 0, 12)
    verdict = judge(ruin, whole)
    assert verdict.flagged
    assert verdict.sentence.startswith("loops in ")
    assert verdict.sentence.endswith(f", the source in 0; {ruin.short} end after a few words, the source's 0")
    assert loop_test.loop_rate(folder, prompts=prompts, tokens=60) == ruin


def texts_with(loops, count=64):
    return [Written("saliva " * 60 if at in loops else FINE, 9, True) for at in range(count)]


def test_counting():
    texts = [*texts_with({1, 2}, 4), *texts_with({2}, 4)]
    texts[0], texts[7] = Written("cut", 9, False), Written("Short.", 9, True)
    result = rate_of(texts, 4)
    assert (result.texts, result.loops, result.short, result.unfinished) == (8, 3, 1, 1)
    assert result.by_temperature == ((0.0, 2), (0.7, 1))
    assert result.by_prompt == (0, 1, 2, 1)
    assert result.counts().share == 3 / 8


def test_a_text_that_the_limit_cut_inside_a_loop_is_one():
    copied = "The fox put the lamp on the old bridge and waited there until the rain was over. "
    texts = [Written(copied * 3 + copied[:30], 60, ended) for ended in (False, True)]
    result = rate_of(texts, 1)
    assert (result.loops, result.unfinished, result.by_temperature) == (1, 0, ((0.0, 1), (0.7, 0)))


def test_examples_are_short_and_safe_for_a_terminal():
    result = rate_of([Written("\x1b[31mred\n" * 100, 9, False)] * 8, 4)
    assert len(result.examples) == 3
    assert "\x1b" not in result.examples[0]
    assert "\n" not in result.examples[0]


@pytest.mark.parametrize(("worse", "flagged"), [(0, False), (4, False), (5, True), (12, True)])
def test_the_verdict_is_a_sign_test_over_prompts(worse, flagged):
    whole = rate_of([*texts_with(set(), 32)] * 2, 32)
    bad = rate_of([*texts_with(set(range(worse)), 32), *texts_with(set(), 32)], 32)
    verdict = judge(bad, whole)
    assert verdict.flagged == flagged
    assert verdict.p == 0.5**worse
    assert verdict.level == ("bad" if flagged else "note" if worse else "good")
    assert ("more than the source, but not significant" in verdict.sentence) == (verdict.level == "note")


def test_both_texts_of_a_prompt_are_one_piece_of_evidence():
    whole = rate_of([*texts_with(set(), 32)] * 2, 32)
    assert not judge(rate_of([*texts_with({1, 2, 3}, 32)] * 2, 32), whole).flagged  # 6 texts, 3 prompts


def test_without_a_source_only_a_high_share_is_flagged():
    assert not judge(rate_of(texts_with({1}, 64), 32)).flagged
    verdict = judge(rate_of(texts_with(set(range(12)), 64), 32))
    assert verdict.flagged
    assert verdict.sentence == "loops in 12 of 64 texts (11-30 %)"


def test_rates_of_different_prompts_are_not_compared():
    with pytest.raises(UsageError, match="come from different prompts"):
        judge(rate_of(texts_with(set(), 8), 4), rate_of(texts_with(set(), 4), 2))


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(generate, "memory_facts", lambda: doctor.Memory(10**9, 10**7, None))
    monkeypatch.setattr(DeepseekV3, "fill", None)
    with (
        pytest.raises(MachineError, match=r"decoded model needs .* MB of memory, but only 10.0 MB are free") as refused,
        open_writer(MINI),
    ):
        pass
    assert "endpoint" in refused.value.fix


def test_prompts():
    assert len(open_prompts()) == len(set(open_prompts())) == 64
    assert len(set(open_prompts(7))) == 7
    with pytest.raises(UsageError, match="65 prompts requested, but there are 64"):
        open_prompts(65)


def test_the_command_flags_what_is_worse_than_the_source(monkeypatch, capsys):
    rates: dict[str, LoopRate] = {
        "OUT": rate_of([*texts_with(set(range(9)), 32)] * 2, 32),
        "SRC": rate_of([*texts_with(set(), 32)] * 2, 32),
    }
    monkeypatch.setattr(loop_test, "loop_rate", lambda folder, **_: rates[str(folder)])
    assert run(["loops", "OUT", "--against", "SRC"]) == 1
    said = capsys.readouterr()
    assert "✗ loops in 18 of 64 texts (19-40 %), the source in 0" in said.out
    assert run(["loops", "SRC", "--against", "SRC", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["flagged"] is False
