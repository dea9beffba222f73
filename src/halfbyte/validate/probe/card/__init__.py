"""The probes of the keep192 card: what its author asked before the weights were published."""
