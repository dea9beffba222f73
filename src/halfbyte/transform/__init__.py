"""Stage 4: what becomes of a job's tensors. The pipeline moves bytes; this is where they change."""
