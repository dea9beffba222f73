"""Stage 6: is the output what was planned? Small independent checks, and a comparison of two checkpoints."""
