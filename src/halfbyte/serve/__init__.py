"""Launch scripts, GPU memory fit, engine supervision and the loop-stopping proxy."""
