"""Anomalous scores and verdicts, on hand-made items."""

from dataclasses import replace

import pytest

from halfbyte.errors import CheckFailedError
from halfbyte.evaluate.anomalies import anomalies, between
from halfbyte.evaluate.judging import judge
from halfbyte.evaluate.results import worst_label
from halfbyte.evaluate.samples import Sample, check_pairs
from halfbyte.evaluate.suites import load_suite

SUITE = load_suite("mini")
WORDS, WORLD, COPYING = SUITE.tasks
COUNT = 100


def pair(result):
    """Return the comparison that decides a task."""
    return result.deciding(result.primary)


def sample(doc, right=True, *, task=WORDS, **more):
    strict, flexible = "exact_match,strict-match", "exact_match,flexible-extract"
    scores = {strict: float(right), flexible: float(right)} if task is WORDS else {task.primary: float(right)}
    one = Sample(
        side="candidate", task=task.task, subtask=task.task, doc=doc, seed=1234, cluster=None, doc_hash=f"d{doc}",
        prompt_hash=f"p{doc}", target_hash=f"t{doc}", target="1", output=f"text {doc}", taken={"flexible-extract": "1"},
        scores=scores, finish_reason="stop", null=False, prompt_tokens=9, completion_tokens=9, latency_s=0.1,
        attempts=1, error=None,
    )  # fmt: skip
    return replace(one, **more)


def items(right=90, **more):
    return [sample(doc, doc < right, **more) for doc in range(COUNT)]


def changed(count, **more):
    return [replace(one, **more) if one.doc < count else one for one in items()]


def test_good_items_have_no_anomaly():
    assert anomalies(items(), WORDS) == []


@pytest.mark.parametrize(
    "few, many, more, said",
    [
        (0, 1, {"error": "HTTP 500", "scores": None}, "are missing (HTTP 500)"),
        (5, 6, {"output": " ", "null": True}, "6 of 100 answers are empty, 6 of them without content"),
        (5, 6, {"finish_reason": "length"}, "were truncated"),
        (5, 6, {"finish_reason": "abort"}, "6 of 100 answers ended with finish_reason abort"),
        (5, 6, {"finish_reason": None}, "6 of 100 answers have no finish_reason"),
        (100, 0, {"finish_reason": "tool_calls"}, None),
        (5, 6, {"output": "I'm sorry, but I can't help"}, "are refusals"),
        (5, 6, {"output": "saliva " * 80}, "6 of 100 answers loop"),
        (20, 21, {"taken": {"flexible-extract": "[invalid]"}}, "do not match the filter flexible-extract"),
        (50, 51, {"output": "the same"}, "are the same text: 'the same'"),
    ],
)
def test_each_limit(few, many, more, said):
    assert anomalies(changed(few, **more), WORDS) == []
    if said:
        (result,) = anomalies(changed(many, **more), WORDS)
        assert said in result


def test_answers_that_the_limit_cut_inside_a_loop_are_named_as_loops():
    copied = "So 12 apples and 30 pears are 42 fruits, and each of the six children gets seven. "
    said = anomalies(changed(6, output=copied * 4 + copied[:40], finish_reason="length"), WORDS)
    assert any("6 of 100 answers loop" in one for one in said)
    assert anomalies(changed(6, output=copied * 4), WORDS) == []


def test_strict_far_below_flexible_is_a_broken_form():
    broken = {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    assert anomalies(changed(20, scores=broken), WORDS) == []
    (result,) = anomalies(changed(21, scores=broken), WORDS)
    assert "strict-match has 69.0%, flexible-extract 90.0%" in result


def test_a_form_that_only_the_candidate_breaks_is_not_compared():
    """The deciding score is the same, but the strict one differs."""
    broken = {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    reference = [replace(one, side="reference") for one in items(100)]
    for count, result in ((5, []), (6, ["6.0% of the candidate's and 0.0% of the reference's"])):
        ours = [replace(one, scores=broken) if one.doc < count else one for one in items(100)]
        assert [what.partition(" answers")[0] for what in between(ours, reference, WORDS)] == result
        theirs = [replace(one, side="reference") for one in ours]
        assert between(items(100), theirs, WORDS) == [], "the candidate's form is the better one"


def test_a_loss_in_a_secondary_metric_is_reported():
    """Below the limit of a broken format, but still significant."""
    many = [replace(one, doc=doc) for doc in range(3000) for one in (sample(0),)]
    broken = {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    ours = [replace(one, scores=broken) if one.doc < 90 else one for one in many]
    result = judge(only(WORDS), [replace(one, output=f"{one.doc}") for one in ours],
                  [replace(one, side="reference", output=f"{one.doc}") for one in many], 0.01)[0]  # fmt: skip
    assert result.label == "ACCEPT"
    assert any("exact_match strict-match is worse (-3.00 pp" in n for n in result.notes)


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.task)
def test_prompts_of_other_lengths_are_not_the_same_question(task):
    """A server that truncates long prompts: the sent texts are equal, the model's input is not."""
    ours = [sample(doc, task=task, prompt_tokens=9 if doc else 4) for doc in range(COUNT)]
    theirs = [sample(doc, task=task, side="reference") for doc in range(COUNT)]
    (result,) = between(ours, theirs, task)
    assert "1 of 100 prompts have different token counts" in result and "(4 and 9 for the first)" in result
    assert between([replace(one, prompt_tokens=None) for one in ours], theirs, task) == []
    assert between(theirs, theirs, task) == []


def test_missing_answers_cannot_lead_to_accept():
    """4 of 1000 missing, none worse: with a margin of 1 pp that holds in the worst case, with 0.5 pp it does not."""
    theirs = [sample(doc, side="reference", output=f"{doc}") for doc in range(1000)]
    ours = [replace(one, side="candidate") for one in theirs]
    ours[:4] = [replace(one, error="HTTP 500", scores=None) for one in ours[:4]]
    wide, narrow = (judge(only(WORDS), ours, theirs, margin)[0] for margin in (0.01, 0.005))
    assert (wide.label, narrow.label) == ("ACCEPT", "INCONCLUSIVE")
    assert pair(narrow) is not None and pair(narrow).verdict.label == "ACCEPT"
    assert any("run the same command to retry them" in note for note in narrow.notes)


def only(task):
    return SUITE.model_copy(update={"tasks": [task]})


def choices(right, pick=lambda doc: doc % 4):
    def output(doc):
        return [[-0.1 if place == pick(doc) else -3.0, False] for place in range(4)]

    return [
        sample(doc, doc < right, task=WORLD, output=output(doc), cluster=f"s{doc % 7}", target=str(doc % 4))
        for doc in range(COUNT)
    ]


def test_at_chance_and_always_the_same_letter():
    assert anomalies(choices(60), WORLD) == []
    assert "not above chance" in anomalies(choices(30), WORLD)[0]
    assert "chose the same option, number 2" in anomalies(choices(60, pick=lambda doc: 1), WORLD)[0]
    alike = [replace(one, target="1") for one in choices(95, pick=lambda doc: 1)]  # where that is right, it is none
    assert anomalies(alike, WORLD) == []


def test_equal_likelihoods_are_those_of_a_server_without_echo():
    equal = [replace(one, output=[[0.0, True]] * 4) for one in choices(60)]
    assert any("equal likelihoods" in one or "chose the same option" in one for one in anomalies(equal, WORLD))


def test_nothing_right_and_nothing_answered():
    assert anomalies(items(right=0), WORDS) == ["no answer is correct"]
    assert len(anomalies(changed(COUNT, error="gone", scores=None), WORDS)) == 1


def test_a_side_that_is_cut_more_often_is_not_compared():
    assert between(changed(4, finish_reason="length"), items(), WORDS) == []  # four can be chance
    for reason in ("length", "abort", None):
        (said,) = between(changed(5, finish_reason=reason), items(), WORDS)
        assert "5.0% of the candidate's answers and 0.0% of the reference's were truncated" in said


LETTERS = load_suite("chat").tasks[1]


def letters(count=0, **more):
    """Single-letter answers with room for thinking, some of them changed."""
    good = [
        sample(doc, doc < 80, task=LETTERS, output="ABCD"[doc % 4], taken={"get_response": "ABCD"[doc % 4]})
        for doc in range(COUNT)
    ]
    return [replace(one, **more) if one.doc < count else one for one in good]


def test_a_letter_after_much_thinking_can_be_cut_and_a_text_is_no_letter():
    assert LETTERS.short_answer and anomalies(letters(), LETTERS) == []
    assert "6 of 100 answers were truncated" in anomalies(letters(6, finish_reason="length"), LETTERS)[0]
    assert "were truncated" in between(letters(5, finish_reason="length"), letters(), LETTERS)[0]
    thought = {"taken": {"get_response": "Let me think about this"}}
    assert anomalies(letters(20, **thought), LETTERS) == []
    assert "21 of 100 answers do not match the filter get_response" in anomalies(letters(21, **thought), LETTERS)[0]
    assert anomalies(letters(100, taken={"get_response": "(b)."}), LETTERS) == []


def test_a_limit_of_a_few_tokens_cuts_every_letter():
    short = load_suite("mini-generative").tasks[1]
    cut = [
        replace(one, finish_reason="length", taken={"first-letter": "A"}, scores={short.primary: 1.0})
        for one in letters()
    ]
    assert anomalies(cut, short) == [] and between(cut, letters(), short) == []


def test_few_items_are_too_few_and_not_at_chance():
    assert anomalies(letters()[78:81], LETTERS) == ["3 items are too few to be above chance, 25%"]


def whole(words):
    return [*words, *choices(80), *(sample(doc, task=COPYING, taken={"stripped": "x"}) for doc in range(COUNT))]


def test_without_a_reference_there_is_a_score_and_no_verdict():
    judged = judge(SUITE, whole(items()), None, 0.01)
    assert [one.label for one in judged] == ["SCORED"] * 3
    assert judged[0].candidate.by_metric[WORDS.primary].value == 0.9
    assert judged[1].candidate.by_metric[WORLD.primary].clusters == 7


def test_constant_targets_are_reported():
    alike = [replace(one, target="0") for one in choices(80, pick=lambda doc: doc % 2)]
    assert "the same correct answer" in judge(SUITE, [*items(), *alike, *whole([])[COUNT:]], None, 0.01)[1].notes[0]
    assert judge(SUITE, whole(items()), None, 0.01)[1].notes == ()


def test_verdicts_and_the_correction_for_their_number():
    """Six worse and none better is p = 1/64 one-sided: sure by itself, and after Holm for three tasks (3/64)."""
    judged = judge(SUITE, whole(items(84)), whole(items(90)), 0.01)
    assert [one.label for one in judged] == ["REGRESSION", "INCONCLUSIVE", "INCONCLUSIVE"]
    assert (pair(judged[0]).worse, pair(judged[0]).better) == (6, 0)
    judged = judge(SUITE, whole(items(85)), whole(items(90)), 0.01)  # p = 1/32: not after Holm
    assert pair(judged[0]).verdict.label == "REGRESSION" and judged[0].label == "INCONCLUSIVE"
    assert "Holm" in judged[0].notes[0]


def test_an_anomalous_task_has_no_verdict_and_makes_the_suite_anomalous():
    judged = judge(SUITE, whole(changed(30, finish_reason="length")), whole(items()), 0.01)
    assert judged[0].label == "ANOMALOUS" == worst_label(judged)


def test_missing_answers_are_left_out_with_the_worst_case_reported():
    gone = [replace(one, error="gone", scores=None) if one.doc == 99 else one for one in items(100)]
    judged = judge(SUITE, whole(gone), whole(items(100)), 0.01)
    assert pair(judged[0]).items == 99 and pair(judged[0]).difference == 0
    assert judged[0].worst_case_difference == pytest.approx(-0.01)


def test_several_seeds_are_averaged_by_item():
    more = [replace(one, seed=42, prompt_hash=f"q{one.doc}") for one in items(80)]
    both = [*items(90), *more]
    judged = judge(SUITE, whole(both), whole(both), 0.01)
    assert judged[0].candidate.by_metric[WORDS.primary].value == pytest.approx(0.85)
    assert judged[0].candidate.by_seed == {"1234": 0.9, "42": 0.8}
    assert judged[0].comparisons[WORDS.primary].candidate.stdev == pytest.approx(0.1 / 2**0.5)


@pytest.mark.parametrize("name", ["doc_hash", "prompt_hash", "target_hash"])
def test_other_questions_are_not_compared(name):
    other = [replace(one, **{name: "x"}) if one.doc == 7 else one for one in items()]
    with pytest.raises(CheckFailedError, match=f"item 7 of kimi_mini_gsm8k .* {name}|item 7.*{name}"):
        check_pairs(items(), other)
    check_pairs(items(), items())
    with pytest.raises(CheckFailedError, match="1 items are in only one of the runs"):
        check_pairs(items(), items()[:-1])


def test_programs_that_reached_a_limit_are_reported():
    ended = [{"passed": False, "ended": how} for how in ("output", "time", "time", "exit")]
    stopped = [replace(one, programs=[ended[one.doc]]) if one.doc < 4 else one for one in items()]
    notes = judge(SUITE, whole(stopped), whole(items()), 0.01)[0].notes
    assert notes == ("candidate: 3 programs reached a limit and count as wrong (output 1, time 2)",)
    notes = judge(SUITE, whole(items()), whole(stopped), 0.01)[0].notes
    assert notes == ("reference: 3 programs reached a limit and count as wrong (output 1, time 2)",)
