"""HTTP client for OpenAI-compatible servers.

client         requests with a deadline, API keys, single prompts
sending        many requests at once, with retries
identity       the models of a server, the facts it reports, and its fingerprint
metrics_page   vLLM's /metrics
"""
