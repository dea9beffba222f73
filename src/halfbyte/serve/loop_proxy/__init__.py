"""Loop-stopping proxy for OpenAI-compatible servers.

events       split a byte stream into server-sent events
answers      pass the events of one response on, or end it with finish_reason "repetition"
proxy        the HTTP proxy: `halfbyte serve --guard URL`
process      the proxy in its own process: `halfbyte serve OUT --run --guard`
"""
