"""Measure the speed of a server and compare two servers, with confidence intervals and a roofline.

records           load points (shapes, concurrencies, latency targets), blocks of requests, and bench.jsonl
vllm_generator    run `vllm bench serve` in a separate process (generator_process), block by block, with timeouts
blocks            warm up, then alternate A B B A ..., and record every block at once
server            identify a server and whether its speed may support a claim; GPU power and peak KV cache of a block
summary           blocks of one server at one point -> rates, latencies, errors, goodput, doubtful blocks
compare           A against B -> ratios with intervals, also at equal TPOT, and the claims that hold
importers         results of vLLM, guidellm and aiperf -> validated blocks
roofline          geometry, format and data sheets -> limits of prefill and decode
report            the results as JSON, as a table with notes, and as a plot
"""
