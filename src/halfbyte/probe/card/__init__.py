"""Probes of the keep192 card: the checks that its author made before publishing the weights."""
