"""Read a checkpoint's headers and, on demand, its tensor data."""
