"""Stage 7: the finished checkpoint behind an engine."""
