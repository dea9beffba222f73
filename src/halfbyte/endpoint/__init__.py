"""HTTP clients for OpenAI-compatible servers, with bounded time and retries."""
