"""How tests start `vllm serve` sooner: no worker process beside the engine's, little memory, nothing asked of the Hub.

On a CPU vLLM puts the model into a worker process, which imports everything a third time: a third of the time until a
server answers. With VLLM_ENABLE_V1_MULTIPROCESSING=0 it takes the one-process executor at its word. The tests of
`serve --run` start it as users do.
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
