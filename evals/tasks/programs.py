"""Programs and their tests, judged as in lm-eval's own coding tasks: by "code_eval" of `evaluate`."""

import re

import evaluate

code_eval = evaluate.load("code_eval")
FENCED = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def take_code(resps, docs):
    """Take the first fenced block of each answer, or all of it."""
    return [[_code(text) for text in texts] for texts in resps]


def _code(text):
    found = FENCED.search(text)
    return found.group(1) if found else text


def pass_at_1(references, predictions):
    """Return the share of programs that pass."""
    return code_eval.compute(references=references, predictions=predictions, k=[1])[0]["pass@1"]
