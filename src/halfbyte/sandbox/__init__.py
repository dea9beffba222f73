"""Programs that a model wrote, run where they can do no harm; the result says how each of them ended.

limits        how much of everything a program may have
ran           what came of a program
bubblewrap    the first tier: Linux namespaces around an unprivileged process;  interpreter: the Python inside it;
              seccomp: the system calls it does not have;  watching: wall clock, memory and output, from outside
wasm          the second tier: a Python compiled to WebAssembly, where there are no namespaces
bare          no tier: the program as this user, only where someone asked for exactly that
self_test     the attacks that a tier must withstand before it is believed
tiers         the best tier of this machine, and why it is not a better one;  run: run_python
"""
