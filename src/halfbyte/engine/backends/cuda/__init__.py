"""The GPU backend: reading, copying, forward pass, statistics, encoding and writing of layers overlap.

    backend.py     entry points: preflight checks, runs, calibration without writing a checkpoint
    layer_loop.py  the loop: load the next layer, run the current one, write the previous one; on several devices
    placement.py   stacks of a plan's routed experts, rows and experts of each device, memory needs and modes
    streams.py     CUDA streams (lanes), events (marks), page-locked buffers (slots), timing
    experts.py     routed experts on the device: loading, stacks, decoding; also for `compare`
    forward.py     hidden states of all tokens, on the device or on the host, and the forward pass of a layer
    observe.py     statistics of the forward pass, collected without synchronizing
    encode.py      stacks in the output format, and their way back to the host and to the writer threads

`placement.py` does not import PyTorch, because `halfbyte plan` uses it. Everything also runs on a CPU with Triton's
interpreter, on a single lane, for tests without a GPU. The memory needs of `compare` are in `compare/stream.py`.
"""
