"""Options that start `vllm serve` faster in tests: no extra worker process, little memory, no Hub access.

On a CPU vLLM runs the model in a worker process, which imports everything a third time: a third of the startup time.
VLLM_ENABLE_V1_MULTIPROCESSING=0 selects the one-process executor. The tests of `serve --run` use the default.
"""

OPTIONS = ["--distributed-executor-backend", "uni"]
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",  # threads that wait for each other on a busy machine make it many times slower
    "VLLM_CPU_KVCACHE_SPACE": "1",  # the models are tiny
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
