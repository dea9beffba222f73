VLLM_USE_FLASHINFER_MOE_FP4=1 python3 -m vllm.entrypoints.openai.api_server \
  --model decart-ai/Kimi-K2.7-Code-NVFP4 \
  --tensor-parallel-size 8 \
  --kv-cache-dtype fp8 \
  --tool-call-parser kimi_k2 --enable-auto-tool-choice \
  --trust-remote-code
