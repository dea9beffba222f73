"""Run model-written Python programs in a sandbox and report how each ended.

tiers        best tier of this machine and why no better one works; run_python
bubblewrap   first tier: Linux namespaces around an unprivileged process, with a seccomp filter
wasm         second tier: Python compiled to WebAssembly, for machines without namespaces
self_test    attacks that a tier must withstand before it is used
process      limits of a program, its outcome, and the watch over its wall clock, memory and output
"""
