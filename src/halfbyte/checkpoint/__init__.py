"""Checkpoint folders: read headers and tensor data, write files atomically, hash and identify them.

untrusted_files  bounded reads and JSON parsing
contained_paths  files inside a folder, and the Hub's cache layout
headers, folder  safetensors headers; config, index and shards of a checkpoint
reader           tensor data, shared by threads
atomic_write     files, shards and journals that survive a crash
hashing          SHA-256 of files, cached by stamps
identity         expected hashes, revision and sampled identity of a source
output_folder    the files of an output folder, and its locks
remote           the Hub, object stores and the shard cache
"""
