"""The corpus of attack files: each is made by a function of a few lines, so that none of them lies in git.

files.py     what may stand in place of any file: pipes, folders, devices, bytes that are no JSON or too much of it
headers.py   safetensors headers
indices.py   indexes, names of shards, links
bounds.py    runs a command, and measures what it took
"""
