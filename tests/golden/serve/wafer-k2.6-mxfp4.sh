python -m atom.entrypoints.openai_server \
    --model wafer-ai/Kimi-K2.6-MXFP4 \
    --trust-remote-code -tp 8 \
    --kv_cache_dtype fp8 \
    --gpu-memory-utilization 0.90 \
    --max-model-len 16384
