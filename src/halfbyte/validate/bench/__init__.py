"""How fast is a server, and is it faster than another? Real load, honest intervals, and what the GPUs could do at most.

shapes            8k:1k, 1,8,64, ttft=1s: what is measured
vllm_generator    `vllm bench serve` in a process of its own (generator_process), block by block, with limits
blocks            warm-up, then turns A B B A ...; every block is written down at once (records)
machine           what answers behind a URL, and whether its speed may support a claim; metrics_page, gpu_power
summary           blocks of one server at one point -> rates, latencies, errors, goodput
compare           A against B -> ratios with intervals, and headlines where they hold
importers         files of vLLM's benchmark, guidellm and aiperf -> blocks
roofline          geometry, format and data sheets -> limits of prefill and decode
report, plot      all of it as JSON, as a table with sentences, and as a picture
command           `halfbyte bench`
"""
