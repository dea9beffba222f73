"""From evidence to readers: the card, the report, provenance, and the upload.

evidence   every file of an output folder that a number may come from
card       README.md for the Hub
"""
