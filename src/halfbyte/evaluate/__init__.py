"""Evaluate a server with lm-evaluation-harness, and compare it with a reference.

run           the evaluation from suite to eval.json
suites        tasks, prompts and seeds, from `evaluate/data/suites`
preflight     checks of an endpoint before evaluation;  parity: the two endpoints are comparable, and still the same
harness       run lm-eval as a library: check its requirements first, then run one task and pass at a time
recording     lm-eval's API models, with our sending and recording;  programs: coding tasks in the sandbox
samples       eval.jsonl, one line per item, and the journal of finished requests, for resuming
judging       accuracies, comparisons and verdicts;  anomalies: invalid scores
results       eval.json;  report: printed tables and progress
"""
