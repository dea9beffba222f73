"""The cost of a plan, in numbers and messages."""

import pytest
from expert_stats import random_stats, router, rule, stats

from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.prune.build_plan import choose
from halfbyte.prune.report import domain_rows, layer_rows, sentences
from halfbyte.prune.selection import restore

DOMAINS = ("code", "prose", "verse")
# Four experts; by their sums 0 and 1 stay. Code: 8 and 4 of 8 + 4. Prose: 1 + 1 of 5 + 4. No tokens of verse.
LAYER = stats([[1, 1, 0]] * 4, gn=[[8, 1, 0], [4, 1, 0], [0, 4, 0], [0, 5, 0]])
EVEN = stats([[1, 1, 0]] * 4, gn=[[2, 2, 0], [2, 2, 0], [1, 1, 0], [1, 1, 0]])


def plan(**said):
    return choose({1: LAYER, 2: EVEN}, DOMAINS, rule(2, **said), router(4), layers_expected=[1, 2])


def test_coverage_matches_a_computation_by_hand():
    found = plan().coverage
    assert found["layers"]["1"]["covered"] == {"code": 1.0, "prose": pytest.approx(2 / 9, abs=1e-15), "verse": None}
    assert found["layers"]["1"]["mass"] == {"code": 1.0, "prose": 2 / 11, "verse": None}
    assert found["layers"]["1"]["worst_domain"] == "prose"
    assert found["layers"]["1"]["dropped"] == pytest.approx(9 / 23, abs=1e-15)
    assert found["layers"]["2"]["covered"] == {"code": 1.0, "prose": 1.0, "verse": None}
    assert found["layers"]["2"]["dropped"] == pytest.approx(1 / 3, abs=1e-15)
    assert found["domains"] == {
        "code": {"mean": 1.0, "worst": 1.0, "worst_layer": 1, "mass": pytest.approx((1 + 2 / 3) / 2)},
        "prose": {
            "mean": pytest.approx((2 / 9 + 1) / 2),
            "worst": pytest.approx(2 / 9),
            "worst_layer": 1,
            "mass": pytest.approx((2 / 11 + 2 / 3) / 2),
        },
        "verse": None,
    }


def test_domain_and_layer_rows():
    rows = domain_rows(plan())
    assert [row["domain"] for row in rows] == ["prose", "code", "verse"]
    assert rows[2] == {"domain": "verse", "mean": None, "worst": None, "worst_layer": None, "mass": None}
    first, second = layer_rows(plan())
    assert first == {
        "layer": 1,
        "kept": 2,
        "dropped": pytest.approx(9 / 23),
        "worst_domain": "prose",
        "worst": pytest.approx(2 / 9),
        "bound": None,
        "super": 0,
        "unobserved": 0,
        "restored": 0,
    }
    assert second["worst"] == 1.0
    assert layer_rows(plan(select="max_min"))[0]["bound"] >= layer_rows(plan(select="max_min"))[0]["worst"]


def test_sentences():
    said = [(advice.level, advice.text) for advice in sentences(plan())]
    assert said == [
        ("note", "prose keeps 61% of the scores that experts chosen for it alone would keep (22% in layer 1), "
         "and 42% of its expert output"),
        ("good", "code keeps 100% of the scores that experts chosen for it alone would keep (100% in layer 1), "
         "and 83% of its expert output"),
        ("note", "verse had no tokens: its coverage is unknown"),
        ("note", "36.2% of the scores are dropped (39.1% in layer 1)"),
        ("note", "FlashInfer's FP8 MoE kernels need a multiple of 4 up to 512, not 2"),
    ]  # fmt: skip


def test_a_domain_with_low_mass_gets_a_note():
    prose, code = sentences(plan())[:2]
    assert (prose.level, prose.fix) == ("note", "keep more")
    assert (code.level, code.fix) == ("good", "")


def test_a_domain_with_low_coverage_comes_first_with_a_fix():
    alone = choose({1: LAYER}, DOMAINS, rule(2), router(4), layers_expected=[1])
    first = sentences(alone)[0]
    assert first.level == "bad"
    assert first.text.startswith("prose keeps 22% of the scores that experts chosen for it alone would keep")
    assert "max_min" in first.fix


def test_advice_about_protected_restored_and_edited_experts():
    layers = {1: random_stats(1), 2: random_stats(2)}
    layers[2].experts.count[5] = 0
    layers[1].experts.out_amax[3] = 5000
    found = choose(layers, "abc", rule(8, protect=True), router(16), layers_expected=layers)
    texts = [advice.text for advice in sentences(found)]
    assert "1 super expert in 1 layer: kept regardless of score" in texts
    assert "1 expert in 1 layer: kept, with too few tokens to be scored" in texts
    grown = restore(found, 1)
    texts = [advice.text for advice in sentences(grown)]
    assert "2 experts in 2 layers: restored" in texts
    assert not any("keeps" in text and "chosen for it" in text for text in texts)  # not known without statistics
    edited = PrunePlan(router=router(4), layers={1: LayerChoice((0, 1))}, rule=None, edited=True)
    assert sentences(edited)[-1].text.startswith("the kept experts were edited by hand: their coverage is unknown")


def test_an_edit_removes_invalid_information():
    layers = {1: random_stats(1), 2: random_stats(2)}
    layers[1].experts.out_amax[3] = 5000
    layers[1].experts.count[5] = 0
    made = choose(layers, "abc", rule(8, protect=True), router(16), layers_expected=layers)
    assert made.layers[1].reasons == {3: "super expert", 5: "unobserved"}
    found = made.as_dict()
    gone = [expert for expert in range(16) if expert not in made.kept()[1]]
    found["layers"]["1"]["kept"] = sorted({*made.kept()[1], *gone[:2]} - {3, 5})
    edited = PrunePlan.of(found)
    assert edited.edited and edited.coverage == {}
    assert edited.layers[1].reasons == {3: "super expert, dropped by hand"}
    said = [(advice.level, advice.text) for advice in sentences(edited)]
    assert said[0][0] == "bad" and said[0][1].startswith("super expert 3 of layer 1 dropped by hand: models")
    assert not any("kept regardless of score" in text or "chosen for it" in text for _, text in said)
    again = PrunePlan.of(edited.as_dict())  # as it is in OUT
    assert again == edited and sentences(again) == sentences(edited)
    found = again.as_dict()
    found["layers"]["1"]["kept"] = list(made.kept()[1])
    assert PrunePlan.of(found).layers[1].reasons == {3: "super expert"}


def test_non_uniform_layers_are_the_first_warning():
    bare = PrunePlan(
        router=router(4), layers={1: LayerChoice((0, 1)), 2: LayerChoice((0,))}, rule=None, non_uniform=True
    )
    first = sentences(bare)[0]
    assert first.level == "bad"
    assert "stock vLLM and SGLang read one number for all layers" in first.text
