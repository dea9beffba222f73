"""How well does a server answer, and is it as good as another one? lm-evaluation-harness asks; this keeps the answers.

suites        which tasks, how asked, with which seeds: files in `validate/data/suites`
harness       lm-eval as a library: what is needed is there before anything is asked; one task, one pass -> samples
endpoint      one HTTP request with a bounded time;  sending: many of them, with retries, counted errors, Ctrl-C
recording     lm-eval's own API models, whose requests are sent and recorded here
store         every finished request in a file that a killed run reads again
identity      which engine, version, options and checkpoint an address has, and whether it still is the same
preflight     what an endpoint must do before its scores mean anything;  parity: what two must have in common
samples       one line an item;  anomalies: scores that are none;  results: eval.json;  report: what is shown
"""
