"""Small questions to a server that find what a benchmark misses."""
