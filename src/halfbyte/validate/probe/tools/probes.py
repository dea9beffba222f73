"""What is asked of a server about tool calls. All probes read the same answers: the first asks, the trace remembers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.card.items import lacks_section
from halfbyte.validate.probe.judging import each, judged, no_answers, share_of
from halfbyte.validate.probe.kinds import Cost, Finding, Probe, Setting, Shown, Verdict, skipped
from halfbyte.validate.probe.marks import whole
from halfbyte.validate.probe.tools.calls import invalid, leaks, values_of, wrong_ids
from halfbyte.validate.probe.tools.cases import (
    SECTION,
    Case,
    ask_plain,
    ask_streamed,
    chosen,
    cost,
    section,
    streamed,
)
from halfbyte.validate.probe.tools.trigger import Agreement, agreement
from halfbyte.validate.probe.tools.vendor import write_results


def called(answer: Answer) -> bool:
    """Whether an answer is a tool call, as the K2 vendor verifier decides it."""
    return answer.finish_reason == "tool_calls"


def _both(setting: Setting) -> tuple[list[Case], list[Answer]]:
    """Return the cases and their answers, whole ones first, then streams."""
    cases, again = chosen(setting), streamed(setting)
    return [*cases, *again], [*ask_plain(setting, setting.client, cases), *ask_streamed(setting, again)]


def _schema(setting: Setting) -> Finding:
    cases, answers = _both(setting)
    nothing = no_answers(answers)
    if nothing:
        return nothing
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
        wanted = any(case.should_call for case in cases)
        shown = tuple(whole(answer, "no tool was called") for answer in answers if not answer.error)
        verdict = Verdict.FAILED if wanted else Verdict.SKIPPED
        return Finding(verdict, "no tool was called", f"{least:.1%}", {}, shown, "tool-parser" if wanted else None)
    sound = valid >= least * len(wrongs)
    return Finding(
        Verdict.PASSED if sound else Verdict.FAILED,
        f"{valid:,} / {len(wrongs):,} valid",
        f"{least:.1%}",
        {"valid": share_of(valid, len(wrongs)), "errors": sum(answer.error is not None for answer in answers)},
        tuple(one for wrong in wrongs for one in wrong),
        None if sound else "tool-parser",
    )


def _trigger(setting: Setting) -> Finding:
    limits, cases = section(setting), chosen(setting)
    answers = ask_plain(setting, setting.client, cases)
    if setting.reference is not None:
        first, second = (ask_plain(setting, setting.reference, cases, repetition) for repetition in (0, 1))
        truth = [None if answer.error else called(answer) for answer in first]
        itself = _agreement([None if answer.error else called(answer) for answer in second], truth)
        least = max(0.0, itself.f1 - limits.f1_margin)
        who = f"the reference, which agrees with itself in {itself.f1:.1%}"
    else:
        truth, itself, least, who = [case.should_call for case in cases], None, limits.least_f1, "what is right"
    nothing = no_answers(answers)
    if nothing:
        return nothing
    if all(one is None for one in truth):
        return skipped("nobody says when a tool is to be called: --against URL2, or a file of results")
    found = _agreement([None if answer.error else called(answer) for answer in answers], truth)
    shown = [
        whole(answer, "a tool was called, and none is wanted" if called(answer) else "no tool was called")
        for answer, right in zip(answers, truth, strict=True)
        if not answer.error and right is not None and called(answer) != right
    ]
    sound = found.f1 >= least
    return Finding(
        Verdict.PASSED if sound else Verdict.FAILED,
        f"F1 {found.f1:.1%} (precision {found.precision:.1%}, recall {found.recall:.1%}) against {who}",
        f"F1 {least:.1%}",
        {**found.as_dict(), "reference_with_itself": itself.as_dict() if itself else None, "least_f1": least},
        tuple(shown),
        None if sound else "tool-trigger",
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
    return judged(calling, wrongs, what="have right ids", cause="tool-ids")


def _parallel(setting: Setting) -> Finding:
    cases = [case for case in chosen(setting) if case.calls is not None and len(case.calls) > 1]
    if not cases:
        return skipped("no request wants several calls at once")
    answers = ask_plain(setting, setting.client, cases)

    def wrong(number: int, answer: Answer) -> list[Shown]:
        wanted = [(call["name"], call["arguments"]) for call in cases[number].calls or ()]
        made = [values_of(call) for call in answer.tool_calls]
        return [] if made == wanted else [Shown(str(made), f"{wanted} is right", 0, len(str(made)), answer.id)]

    needed = _least(section(setting).least_parallel, len(cases))
    return judged(answers, each(answers, wrong), what="called all at once", needed=needed, cause="tool-parser")


def _streaming(setting: Setting) -> Finding:
    cases = streamed(setting)
    plain, answers = ask_plain(setting, setting.client, cases), ask_streamed(setting, cases)
    if not any(one.tool_calls or one.error for one in (*plain, *answers)):
        return skipped("no tool was called")

    def wrong(number: int, answer: Answer) -> list[Shown]:
        other = plain[number]
        if other.error:
            return []
        made, wanted = [[values_of(call) for call in one.tool_calls] for one in (answer, other)]
        if made != wanted:
            return [Shown(str(made), f"{wanted} when not streamed", 0, len(str(made)), answer.id)]
        if answer.finish_reason != other.finish_reason:
            return [whole(answer, f"finish_reason {answer.finish_reason}, {other.finish_reason} when not streamed")]
        if not made and answer.text.strip() != other.text.strip():
            return [whole(answer, "another text than when not streamed")]
        return []

    needed = _least(section(setting).least_equal, len(cases))
    return judged(answers, each(answers, wrong), what="equal streamed and not", needed=needed, cause="streaming")


def _markup(setting: Setting) -> Finding:
    _, answers = _both(setting)
    return judged(answers, each(answers, lambda _, answer: leaks(answer)), what="without markup", cause="tool-parser")


def _least(share: float, count: int) -> int:
    return max(1, int(share * count))


def _probe(name: str, title: str, reason: str, run: Callable[[Setting], Finding], *, streams: bool = True) -> Probe:
    def costs(setting: Setting) -> Cost:
        return cost(setting, streams=streams)

    return Probe(name, "tools", title, reason, True, run, costs, lacks_section(SECTION))


def _trigger_cost(setting: Setting) -> Cost:
    return cost(setting, sides=1 if setting.reference is None else 3)


TOOLS = (
    _probe(
        "tool-schema", "tool calls fit their schemas",
        "the same weights give 73 % to 100 % valid calls, depending on the server", _schema,
    ),
    Probe(
        "tool-trigger", "tools", "tools are called when they should be",
        "a server can drop calls, or make them where the model would answer, and every call that comes is valid", True,
        _trigger, _trigger_cost, lacks_section(SECTION),
    ),
    _probe(
        "tool-ids", "ids of tool calls",
        "Kimi reads functions.name:0 in the next turn; with random ids it begins to write calls as text", _ids,
    ),
    _probe(
        "tool-parallel", "several calls at once", "a parser can lose the second call, or join both", _parallel,
        streams=False,
    ),
    _probe(
        "tool-streaming", "calls streamed and not",
        "agents stream, tests do not: parsers of streams are other code", _streaming,
    ),
    _probe(
        "tool-markup", "markup stays out of texts",
        "a call that leaks into content or reasoning is lost, and teaches the model to do it again", _markup,
    ),
)  # fmt: skip
