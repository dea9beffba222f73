"""`halfbyte probe URL`: test a served model for faults that benchmarks miss.

kinds       probes, their settings and findings
catalogue   all probes in order
client      requests, plain or streamed;  trace: every request and answer on disk
context     prompts of given lengths;  budget: schedule within --budget;  profiles: questions as data
run         run the probes;  table and report: output;  causes: known causes of failures
watching    streams that are canceled when they loop;  rates: shares of bad answers as gates
card/       probes of the keep192 card;  server/: server behavior;  tools/: tool calls
prose, thinking, copying, garbage    faults that the card's probes missed
drift, decode_drift                  log-probabilities against a reference, token by token
"""
