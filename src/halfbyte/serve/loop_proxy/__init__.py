"""Loop-stopping proxy for OpenAI-compatible servers.

answers  pass the events of one response on, or stop it with finish_reason "repetition"
proxy    the HTTP proxy: `halfbyte serve --guard URL`
server   the proxy on a port, or in its own process: `halfbyte serve OUT --run --guard`
"""
