"""Probes of tool calls: made when expected, valid against their schemas, with the right ids, not leaked into the text.

They share answers: the first one sends the requests, the others read the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.probe.answers import Answer
from halfbyte.probe.judging import each, judged, no_answers, share_of, whole
from halfbyte.probe.probe import (
    Cost,
    Excerpt,
    Finding,
    Probe,
    Setting,
    Verdict,
    skipped,
)
from halfbyte.probe.profiles import lacks_section
from halfbyte.probe.tool_cases import (
    SECTION,
    Case,
    ask_plain,
    ask_streamed,
    chosen,
    cost,
    invalid,
    leaks,
    section,
    streamed,
    values_of,
    write_results,
    wrong_ids,
)


def called(answer: Answer) -> bool:
    """Whether an answer is a tool call, as the K2 vendor verifier decides it."""
    return answer.finish_reason == "tool_calls"


def _both(setting: Setting) -> tuple[list[Case], list[Answer]]:
    """Return the cases and their answers, plain ones first, then streams."""
    cases, streams = chosen(setting), streamed(setting)
    return [*cases, *streams], [*ask_plain(setting, setting.client, cases), *ask_streamed(setting, streams)]


def _schema(setting: Setting) -> Finding:
    cases, answers = _both(setting)
    unusable = no_answers(answers)
    if unusable:
        return unusable
    if setting.tool_cases is not None:
        plain = chosen(setting)
        write_results(setting.client.trace.path.parent, plain, answers[: len(plain)])
    wrongs = [
        invalid(call, case, answer)
        for case, answer in zip(cases, answers, strict=True)
        for call in answer.tool_calls
    ]  # fmt: skip
    least, valid = section(setting).least_valid, sum(not wrong for wrong in wrongs)
    if not wrongs:
        expected = any(case.should_call for case in cases)
        shown = tuple(whole(answer, "no tool was called") for answer in answers if not answer.error)
        verdict = Verdict.FAILED if expected else Verdict.SKIPPED
        return Finding(verdict, "no tool was called", f"{least:.1%}", {}, shown, "tool-parser" if expected else None)
    passed = valid >= least * len(wrongs)
    return Finding(
        Verdict.PASSED if passed else Verdict.FAILED,
        f"{valid:,} / {len(wrongs):,} valid",
        f"{least:.1%}",
        {"valid": share_of(valid, len(wrongs)), "errors": sum(answer.error is not None for answer in answers)},
        tuple(fault for wrong in wrongs for fault in wrong),
        None if passed else "tool-parser",
    )


def _trigger(setting: Setting) -> Finding:
    limits, cases = section(setting), chosen(setting)
    answers = ask_plain(setting, setting.client, cases)
    if setting.reference is not None:
        first, second = (ask_plain(setting, setting.reference, cases, repetition) for repetition in (0, 1))
        truth = [None if answer.error else called(answer) for answer in first]
        itself = _agreement([None if answer.error else called(answer) for answer in second], truth)
        least = max(0.0, itself.f1 - limits.f1_margin)
        against = f"the reference (self-agreement {itself.f1:.1%})"
    else:
        truth, itself = [case.should_call for case in cases], None
        least, against = limits.least_f1, "the expected calls"
    unusable = no_answers(answers)
    if unusable:
        return unusable
    if all(decision is None for decision in truth):
        return skipped("the expected decisions are unknown: pass --against URL2, or a file of results")
    result = _agreement([None if answer.error else called(answer) for answer in answers], truth)
    shown = [
        whole(answer, "a tool was called, but none is expected" if called(answer) else "no tool was called")
        for answer, expected in zip(answers, truth, strict=True)
        if not answer.error and expected is not None and called(answer) != expected
    ]
    passed = result.f1 >= least
    return Finding(
        Verdict.PASSED if passed else Verdict.FAILED,
        f"F1 {result.f1:.1%} (precision {result.precision:.1%}, recall {result.recall:.1%}) against {against}",
        f"F1 {least:.1%}",
        {**result.as_dict(), "reference_with_itself": itself and itself.as_dict(), "least_f1": least},
        tuple(shown),
        None if passed else "tool-trigger",
    )


def _agreement(ours: Sequence[bool | None], theirs: Sequence[bool | None]) -> Agreement:
    """Count the requests that both sides have decided."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return agreement([a for a, _ in pairs], [b for _, b in pairs])


def _ids(setting: Setting) -> Finding:
    _, answers = _both(setting)
    calling = [answer for answer in answers if answer.tool_calls or answer.error]
    if not [answer for answer in calling if not answer.error]:
        return no_answers(answers) or skipped("no tool was called")
    form = section(setting).id_form
    wrongs = each(calling, lambda _, answer: wrong_ids(answer.tool_calls, form, answer))
    return judged(calling, wrongs, what="have valid ids", cause="tool-ids")


def _of_several_calls(setting: Setting) -> list[Case]:
    return [case for case in chosen(setting) if case.calls is not None and len(case.calls) > 1]


def _parallel(setting: Setting) -> Finding:
    cases = _of_several_calls(setting)
    if not cases:
        return skipped("no request expects parallel calls")
    answers = ask_plain(setting, setting.client, cases)

    def wrong(number: int, answer: Answer) -> list[Excerpt]:
        expected = [(call["name"], call["arguments"]) for call in cases[number].calls or ()]
        calls = [values_of(call) for call in answer.tool_calls]
        return [] if calls == expected else [Excerpt(str(calls), f"expected {expected}", 0, len(str(calls)), answer.id)]

    needed = _least(section(setting).least_parallel, len(cases))
    return judged(answers, each(answers, wrong), what="made all calls", needed=needed, cause="tool-parser")


def _streaming(setting: Setting) -> Finding:
    cases = streamed(setting)
    plain, answers = ask_plain(setting, setting.client, cases), ask_streamed(setting, cases)
    if not any(answer.tool_calls or answer.error for answer in (*plain, *answers)):
        return skipped("no tool was called")

    def wrong(number: int, answer: Answer) -> list[Excerpt]:
        other = plain[number]
        if other.error:
            return []
        calls, expected = [[values_of(call) for call in side.tool_calls] for side in (answer, other)]
        if calls != expected:
            return [Excerpt(str(calls), f"{expected} when not streamed", 0, len(str(calls)), answer.id)]
        if answer.finish_reason != other.finish_reason:
            return [whole(answer, f"finish_reason {answer.finish_reason}, {other.finish_reason} when not streamed")]
        if not calls and answer.text.strip() != other.text.strip():
            return [whole(answer, "the text differs from the plain answer")]
        return []

    needed = _least(section(setting).least_equal, len(cases))
    return judged(answers, each(answers, wrong), what="equal streamed and plain", needed=needed, cause="streaming")


def _markup(setting: Setting) -> Finding:
    _, answers = _both(setting)
    return judged(answers, each(answers, lambda _, answer: leaks(answer)), what="without markup", cause="tool-parser")


def _least(share: float, count: int) -> int:
    return max(1, int(share * count))


def _probe(
    name: str, title: str, reason: str, run: Callable[[Setting], Finding], costs: Callable[[Setting], Cost]
) -> Probe:
    return Probe(name, "tools", title, reason, True, run, costs, lacks_section(SECTION))


def _cost_of_both(setting: Setting) -> Cost:
    return cost(setting, chosen(setting), streams=streamed(setting))


def _cost_of_trigger(setting: Setting) -> Cost:
    return cost(setting, chosen(setting), reference_repetitions=2)


def _cost_of_parallel(setting: Setting) -> Cost:
    return cost(setting, _of_several_calls(setting))


def _cost_of_streaming(setting: Setting) -> Cost:
    return cost(setting, streamed(setting), streams=streamed(setting))


TOOLS = (
    _probe(
        "tool-schema", "tool calls match their schemas",
        "the same weights give 73 % to 100 % valid calls, depending on the server", _schema, _cost_of_both,
    ),
    _probe(
        "tool-trigger", "tools are called when expected",
        "a server can drop calls or make unexpected ones although every call is valid",
        _trigger, _cost_of_trigger,
    ),
    _probe(
        "tool-ids", "tool-call ids",
        "Kimi reads functions.name:0 in the next turn; with random ids it starts to write calls as text", _ids,
        _cost_of_both,
    ),
    _probe(
        "tool-parallel", "parallel tool calls", "a parser can lose the second call or merge both", _parallel,
        _cost_of_parallel,
    ),
    _probe(
        "tool-streaming", "tool calls streamed and plain",
        "agents stream, tests do not, and stream parsers are separate code", _streaming, _cost_of_streaming,
    ),
    _probe(
        "tool-markup", "no tool-call markup in texts",
        "a call that leaks into content or reasoning is lost, and the model imitates it later", _markup,
        _cost_of_both,
    ),
)  # fmt: skip


# Tool-call decisions: agreement of two servers on the same requests.
#
# The metric is that of the K2 vendor verifier: F1 of "this request ends in tool calls" against the decisions of the
# official server. Even that does not agree with itself at temperature 1 (0.76 for K2-Thinking, 0.84 for K2-0905). So
# the threshold is the self-agreement of the reference minus a margin, or a fixed number without a live reference.


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of true and false positives and negatives, with the reference as ground truth."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int

    @property
    def precision(self) -> float:
        """Return the share of our calls that the reference also makes."""
        return _share(self.both, self.both + self.only_ours)

    @property
    def recall(self) -> float:
        """Return the share of the reference's calls that we also make."""
        return _share(self.both, self.both + self.only_theirs)

    @property
    def f1(self) -> float:
        """Return the harmonic mean of both; 1 if neither side ever calls."""
        return _share(2 * self.both, 2 * self.both + self.only_ours + self.only_theirs)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        count = self.both + self.only_ours + self.only_theirs + self.neither
        return {
            "true_positives": self.both, "false_positives": self.only_ours, "false_negatives": self.only_theirs,
            "true_negatives": self.neither, "precision": self.precision, "recall": self.recall, "f1": self.f1,
            "agree": share_of(self.both + self.neither, count),
        }  # fmt: skip


def agreement(ours: Sequence[bool], theirs: Sequence[bool]) -> Agreement:
    """Count the decisions."""
    pairs = list(zip(ours, theirs, strict=True))
    return Agreement(
        pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True)), pairs.count((False, False))
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
