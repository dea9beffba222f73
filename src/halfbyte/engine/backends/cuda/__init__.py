"""The GPU backend: reading, copying, forward pass, statistics, encoding and writing of layers overlap.

    streams.py         CUDA streams (lanes) and events (marks)
    pinned_buffers.py  page-locked host memory for copies
    projections.py     the stacks of a plan's routed experts, and which of them the GPU encodes
    stacks.py          a layer's routed experts on the device, stacked into one tensor per projection
    decode.py          BF16 weights of the experts for the forward pass
    observe.py         statistics collected without synchronizing
    forward.py         hidden states of all tokens, on the device or on the host, and the forward pass of a layer
    encode.py          stacks in the output format
    partition.py       the rows and experts of each device
    devices.py         the devices of a run, in parallel
    copy_back.py       encoded experts to the host and to the writer threads
    layer_loop.py      the loop: load the next layer, run the current one, write the previous one
    memory.py          memory needs, computed before the run, and the modes that reduce them
    setup.py           preflight checks and start of a run
    measure.py         calibration without writing a checkpoint
    timing.py          time and bytes by kind of work

For `compare`, which runs layers of several checkpoints and writes none (its memory needs: `compare/stream.py`):

    stored_experts.py  a checkpoint's experts, loaded layer by layer and decoded on the device

`projections.py`, `partition.py` and `memory.py` do not import PyTorch, because `halfbyte plan` uses them. Everything
also runs on a CPU with Triton's interpreter, on a single lane, for tests without a GPU.
"""
