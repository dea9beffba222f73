"""Audit: independent checks of an output checkpoint against its plan and source, and a diff of two checkpoints."""
