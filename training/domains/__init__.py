"""One file per domain: what kimi-mini is taught, and held-out items that show whether it learned."""
