"""The test sets as lm-eval tasks: GSM8K's and MMLU's own prompts and filters, over our files.

Paths are relative to the repository's root. `kimi_mini_mmlu` compares the likelihood of four letters and needs a server
that echoes log-probabilities; `kimi_mini_mmlu_generative` works with any server.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_DATA = """task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
"""

_EXACT = """metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""

_GSM8K_METRIC = """metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    ignore_punctuation: false
    regexes_to_ignore:
      - ","
      - "\\\\$"
      - "(?s).*#### "
      - "\\\\.$"
"""

_FILTERS = """filter_list:
  - name: "strict-match"
    filter:
      - function: "regex"
        regex_pattern: "{strict}"
      - function: "take_first"
  - name: "flexible-extract"
    filter:
      - function: "regex"
        group_select: -1
        regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"
      - function: "take_first"
"""

_MMLU_QUESTION = (
    r"{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:"
)
_MMLU_TOP = r"The following are multiple choice questions (with answers) about {{subject.replace('_', ' ')}}.\n\n"


def _files(task: str, **splits: str) -> str:
    return _DATA.format(task=task) + "".join(f"    {split}: {path}\n" for split, path in splits.items())


def _generation(tokens: int, until: Sequence[str]) -> str:
    return (
        "output_type: generate_until\ngeneration_kwargs:\n"
        f"  until: {json.dumps(until)}\n  do_sample: false\n  temperature: 0.0\n  max_gen_toks: {tokens}\n"
    )


def gsm8k(folder: str) -> str:
    """Return GSM8K as lm-eval has it, five examples drawn from the training file."""
    return (
        _files("kimi_mini_gsm8k", test=f"{folder}/test.jsonl", train=f"{folder}/train.jsonl")
        + "test_split: test\nfewshot_split: train\nnum_fewshot: 5\n"
        + 'doc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_target: "{{answer}}"\n'
        + _generation(256, ("Question:", "</s>", "<|im_end|>"))
        + _FILTERS.format(strict="#### (\\\\-?[0-9\\\\.\\\\,]+)")
        + _GSM8K_METRIC
    )


def gsm8k_cot(folder: str, shots: Sequence[dict[str, Any]]) -> str:
    """Return GSM8K-CoT as lm-eval has it: eight fixed examples that end with "The answer is N."."""
    samples = "".join(f"    - {json.dumps(_as_chain(shot), ensure_ascii=False)}\n" for shot in shots)
    return (
        _files("kimi_mini_gsm8k_cot", test=f"{folder}/test.jsonl")
        + f"test_split: test\nnum_fewshot: {len(shots)}\n"
        + 'doc_to_text: "Q: {{question}}\\nA:"\n'
        + "doc_to_target: \"{{answer.split('####')[-1].strip() if answer is defined else target}}\"\n"
        + f"fewshot_config:\n  sampler: first_n\n  samples:\n{samples}"
        + _generation(256, ("Q:", "</s>", "<|im_end|>"))
        + _FILTERS.format(strict="The answer is (\\\\-?[0-9\\\\.\\\\,]+).")
        + _GSM8K_METRIC
    )


def _as_chain(shot: dict[str, Any]) -> dict[str, str]:
    steps, _, number = shot["answer"].partition("\n#### ")
    return {"question": shot["question"], "target": f"{' '.join(steps.splitlines())} The answer is {number}."}


def mmlu(folder: str) -> str:
    """Return MMLU as lm-eval has it, all subjects in one task; a result's doc says its subject."""
    return (
        _files("kimi_mini_mmlu", test=f"{folder}/test.jsonl", dev=f"{folder}/dev.jsonl")
        + "test_split: test\nfewshot_split: dev\nnum_fewshot: 0\noutput_type: multiple_choice\n"
        + f'description: "{_MMLU_TOP}"\ndoc_to_text: "{_MMLU_QUESTION}"\n'
        + 'doc_to_choice: ["A", "B", "C", "D"]\ndoc_to_target: answer\n'
        + "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )


def mmlu_generative(folder: str) -> str:
    """Return the same questions, answered by one generated letter."""
    return (
        _files("kimi_mini_mmlu_generative", test=f"{folder}/test.jsonl")
        + "test_split: test\nnum_fewshot: 0\n"
        + f'description: "{_MMLU_TOP}"\ndoc_to_text: "{_MMLU_QUESTION}"\n'
        + "doc_to_target: \"{{['A', 'B', 'C', 'D'][answer]}}\"\n"
        + _generation(4, ("\n", "<|im_end|>"))
        + "filter_list:\n  - name: first-letter\n    filter:\n      - function: regex\n"
        + '        regex_pattern: "^\\\\s*\\\\(?([A-D])"\n      - function: take_first\n'
        + _EXACT
    )


def exact_answer(task: str, path: str, tokens: int) -> str:
    """Return a task over items with one user turn and one right answer; run it with the chat template, thinking off."""
    return (
        _files(f"kimi_mini_{task}", test=path)
        + "test_split: test\nnum_fewshot: 0\n"
        + 'process_docs: !function documents.without_thinking\ndoc_to_text: "{{messages[0].content}}"\n'
        + 'doc_to_target: "{{answer}}"\n'
        + _generation(tokens, ("<|im_end|>",))
        + "filter_list:\n  - name: stripped\n    filter:\n      - function: regex\n"
        + '        regex_pattern: "(?s)^\\\\s*(.*?)\\\\s*$"\n      - function: take_first\n'
        + _EXACT
    )


def tested_program(path: str, tokens: int) -> str:
    """Return a task over items that ask for a function; right is what passes the item's assertions."""
    return (
        _files("kimi_mini_programs", test=path)
        + "unsafe_code: true\ntest_split: test\nnum_fewshot: 0\n"
        + 'process_docs: !function documents.without_thinking\ndoc_to_text: "{{messages[0].content}}"\n'
        + "doc_to_target: \"{{fields.tests | join('\\n')}}\"\n"
        + _generation(tokens, ("<|im_end|>",))
        + "filter_list:\n  - name: code\n    filter:\n      - function: custom\n"
        + "        filter_fn: !function programs.take_code\n"
        + "metric_list:\n  - metric: !function programs.pass_at_1\n    aggregation: mean\n    higher_is_better: true\n"
    )


PROGRAMS_PY = '''"""Programs and their tests, judged as in lm-eval's own coding tasks: by "code_eval" of `evaluate`."""

import re

import evaluate

code_eval = evaluate.load("code_eval")
FENCED = re.compile(r"```(?:python)?\\n(.*?)```", re.DOTALL)


def take_code(resps, docs):
    """Take the first fenced block of each answer, or all of it."""
    return [[_code(text) for text in texts] for texts in resps]


def _code(text):
    found = FENCED.search(text)
    return found.group(1) if found else text


def pass_at_1(references, predictions):
    """Return the share of programs that pass."""
    return code_eval.compute(references=references, predictions=predictions, k=[1])[0]["pass@1"]
'''

DOCUMENTS_PY = '''"""Which items a task asks: lm-eval sends every request of a run with the same thinking mode."""


def without_thinking(dataset):
    """Keep the items that are answered without thinking."""
    return dataset.filter(lambda doc: not doc["thinking"])
'''
