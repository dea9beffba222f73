"""Stage 1: what a checkpoint holds, from headers alone, and its bytes when they are needed."""
