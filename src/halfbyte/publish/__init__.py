"""From evidence to readers: the card, the report, provenance, and the upload.

evidence     every file of an output folder that a number may come from
card         README.md for the Hub
contents     what each file of a folder is to those who publish or verify it
hashing      SHA-256 of many files, each read once
provenance   what a checkpoint was made from, by what, and the hash of every file
verify       whether a folder is still what was recorded
upload       from a folder to a repository on the Hub
"""
