"""`halfbyte probe URL`: test a served model for faults that benchmarks miss.

run          all probes in order; identify the server, run them, write the report;  budget: schedule within --budget
probe        probes, their settings and findings
profiles     questions as data;  context: prompts of given lengths
client       requests, plain or streamed, all recorded in the trace;  answers: their parsed form
checks       faults of one answer;  judging: findings over many answers, rates as gates, marked texts
report       probe.json;  output: table, progress and known causes

The probes: card_probes, vision and long_context (those of the keep192 card), prose and thinking (faults that the card's
probes missed), tool_cases and tool_calls, server and streams (behavior of the server), drift and drift_measures
(log-probabilities against a reference, token by token).
"""
