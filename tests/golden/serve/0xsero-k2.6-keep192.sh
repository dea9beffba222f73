# scripts/serve-vllm.sh
docker run --rm --gpus all --ipc=host \
  -v /path/to/model:/model \
  -v kimi-jit-cache:/root/.cache \
  -p 8000:8000 \
  --entrypoint="" \
  voipmonitor/vllm:cu130-mtp-tuned-v3-20260423 \
  vllm serve /model \
    --tensor-parallel-size 4 \
    --decode-context-parallel-size 4 \
    --max-model-len 262144 \
    --max-num-batched-tokens 8192 \
    --max-num-seqs 1 \
    --attention-backend TRITON_MLA \
    --kv-cache-dtype fp8_e4m3 \
    --moe-backend flashinfer_cutlass \
    --enable-prefix-caching \
    --disable-custom-all-reduce \
    --speculative-config '{"model":"lightseekorg/kimi-k2.6-eagle3-mla","method":"eagle3","num_speculative_tokens":3,"draft_sample_method":"probabilistic","draft_kv_cache_dtype":"fp8"}' \
    --override-generation-config '{"repetition_penalty":1.12,"temperature":0}' \
    --port 8000
