"""Evaluate a server with lm-evaluation-harness, and compare it with a reference.

suites        tasks, prompts and seeds, from `evaluate/data/suites`
harness       run lm-eval as a library: check its requirements first, then run one task and pass at a time
recording     lm-eval's API models, with our sending and recording
store         a journal of finished requests, for resuming
preflight     checks of an endpoint before evaluation;  parity: checks that two endpoints are comparable
samples       one line per item;  anomalies: invalid scores;  results: eval.json;  report: printed tables
"""
