"""Measure the speed of a server and compare two servers, with confidence intervals and a roofline.

shapes            parse load points: shapes, concurrencies, latency targets
vllm_generator    run `vllm bench serve` in a separate process (generator_process), block by block, with timeouts
blocks            warm up, then alternate A B B A ..., and record every block at once (records)
machine           identify a server, and whether its speed may support a claim; metrics_page, gpu_power, kv_peak
summary           blocks of one server at one point -> rates, latencies, errors, goodput
compare           A against B -> ratios with intervals, and the claims that hold; equal_pace
importers         results of vLLM, guidellm and aiperf -> blocks; import_checks
roofline          geometry, format and data sheets -> limits of prefill and decode
report, plot      the results as JSON, as a table with notes, and as a plot
"""
