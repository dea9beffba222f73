"""Model families, one folder each, and checkpoints described in their terms: roles, linears, formats, completeness.

A family's folder is the only place that spells its tensor names. All other code asks for roles ("attention",
"routed_experts") and projections ("gate", "up", "down"). `registry.py` lists the families.
"""
