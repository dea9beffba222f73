"""A proxy before any OpenAI-compatible server that ends an answer which has fallen into a loop.

events       a stream of bytes -> its server-sent events, each with the bytes it came as
answers      the events of one answer -> what the client gets: all of them, or an end with finish_reason "repetition"
proxy        requests in, requests out, and the loop test between
command      `halfbyte serve --guard URL`
beside       `halfbyte serve OUT --run --guard`: the proxy in a process of its own, before the engine
"""
