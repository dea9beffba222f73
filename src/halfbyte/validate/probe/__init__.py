"""`halfbyte probe URL`: can agents live on this endpoint? Small questions that find what a benchmark misses.

kinds       what a probe is, and what it finds
catalogue   all probes in their order
client      one request, plain or streamed; trace: every request and answer on the disk
context     lengths that fit the server; budget: what fits the time; profiles: the questions, as data
run         one after the other; table and report: what is shown and written; causes: what is known to break it
degeneracy/ loops and broken characters: pure functions
watching    streams that end when they loop; rates: shares of bad answers as gates
card/       the probes of the keep192 card; server/: how the server behaves; tools/: tool calls
prose, thinking, copying, garbage    what the card's probes missed; drift: against a reference, token by token
"""
