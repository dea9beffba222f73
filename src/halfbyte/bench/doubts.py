"""Find blocks whose speed is doubtful although all requests succeeded. They count, but support no claim.

The server's token counter shows whether other clients used it, or whether it generated fewer tokens than reported. A
response whose tokens all arrive at once was buffered, e.g. by a proxy, so its streaming speed is unknown.
"""

from __future__ import annotations

from halfbyte.bench.records import Block

MOST_APART = 0.02  # tolerated relative difference between the server's counter and its responses
_LATE = 2  # tokens per user that the counter may lag behind
_FEW = 8  # tokens of health checks
FASTEST_S = 50e-6  # per token: faster than any model decodes


def doubt_of(block: Block) -> str:
    """Return why a block supports no claim, or an empty string."""
    return block.doubt or _counted_otherwise(block) or _held_back(block)


def _counted_otherwise(block: Block) -> str:
    counter, reported = block.server.get("generated_tokens"), sum(request.output_tokens for request in block.good)
    if counter is None or block.problem:
        return ""
    if abs(counter - reported) <= max(MOST_APART * reported, _LATE * block.point.concurrency + _FEW):
        return ""
    if counter > reported:
        return f"other clients used the server: it generated {counter:,.0f} tokens during a block of {reported:,}"
    return f"the server's counter shows {counter:,.0f} tokens, but its responses report {reported:,}"


def _held_back(block: Block) -> str:
    paces = [request.tpot for request in block.good if request.tpot is not None]
    at_once = sum(pace < FASTEST_S for pace in paces)
    if at_once * 2 <= len(paces):
        return ""
    return f"{at_once} of {len(paces)} responses arrived all at once instead of streaming (is a proxy buffering them?)"
