"""What makes the speed of a block doubtful although every request was answered: it counts, and supports no claim.

The server's own counter of tokens tells whether somebody else asked it meanwhile, or whether it made fewer tokens than
its answers say. And an answer whose tokens all come at once was held back on its way, by a proxy for one: how fast
text streams is then not measured at all.
"""

from __future__ import annotations

from halfbyte.validate.bench.records import Block

MOST_APART = 0.02  # of the tokens, between the server's counter and its answers
_LATE = 2  # tokens for each user that the counter may lag behind, and some for a look at the server's health
_FEW = 8
FASTEST_S = 50e-6  # for a token: no model is decoded that fast, and no stream read


def doubt_of(block: Block) -> str:
    """Return why a block supports no claim; nothing where it may."""
    return block.doubt or _counted_otherwise(block) or _held_back(block)


def _counted_otherwise(block: Block) -> str:
    made, said = block.server.get("generated_tokens"), sum(request.output_tokens for request in block.good)
    if made is None or block.problem:
        return ""
    if abs(made - said) <= max(MOST_APART * said, _LATE * block.point.concurrency + _FEW):
        return ""
    if made > said:
        return f"the server made {made:,.0f} tokens during a block that asked for {said:,}: others used it as well"
    return f"the server's own counter has {made:,.0f} tokens for a block whose answers say {said:,}"


def _held_back(block: Block) -> str:
    paces = [request.tpot for request in block.good if request.tpot is not None]
    at_once = sum(pace < FASTEST_S for pace in paces)
    if at_once * 2 <= len(paces):
        return ""
    return f"{at_once} of {len(paces)} answers came all at once and not as a stream (does a proxy hold them back?)"
