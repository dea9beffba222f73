docker run --rm --gpus all --ipc=host \
    -v /path/to/model:/model \
    -p 8001:8001 \
    --entrypoint="" \
    nvcr.io/nvidia/vllm:26.03.post1-py3 \
    python -m vllm.entrypoints.openai.api_server \
        --model /model \
        --tensor-parallel-size 4 \
        --max-model-len 8192 \
        --gpu-memory-utilization 0.85 \
        --trust-remote-code \
        --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 \
        --enforce-eager \
        --moe-backend cutlass \
        --port 8001
