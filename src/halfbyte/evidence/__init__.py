"""Evidence files under `halfbyte/` in an output folder, written by stages and read by the card and the report."""
