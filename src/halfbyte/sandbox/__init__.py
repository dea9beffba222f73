"""Run model-written Python programs in a sandbox and report how each ended.

limits           resource limits of a program
result           outcome of a run
bubblewrap       first tier: Linux namespaces around an unprivileged process;  interpreter: the Python inside it;
                 seccomp: denied system calls;  process_watch: wall clock, memory and output limits
wasm             second tier: Python compiled to WebAssembly, for machines without namespaces
unsandboxed      no isolation: the program runs as this user, only on request
self_test        attacks that a tier must withstand before it is used
tiers            best tier of this machine and why no better one works;  run: run_python
"""
