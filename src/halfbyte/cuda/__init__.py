"""The pass on GPUs: a layer is read and copied over, run, measured, encoded, copied back and written, all at once.

    lanes.py        streams, and marks that one lane leaves for another
    slots.py        page-locked memory that bytes travel through
    projections.py  which stacks a plan's routed experts make, and which are encoded there
    stacks.py       a layer's routed experts on the device, one tensor for all experts
    decode.py       the experts' BF16 weights for the forward
    observe.py      statistics that never wait for the device
    forward.py      hidden states of all tokens, on the device or on the host, and a layer over them
    encode.py       stacks in the output's format
    shares.py       what each of several devices does: some rows, some experts
    places.py       the devices of a pass, side by side
    back.py         what was encoded, to the host and to the threads that write
    passing.py      the loop: the next layer comes while this one runs and the last one is written
    memory.py       what all that takes, before it begins, and how it runs where that is not there
    start.py        from a plan to a pass, and what is refused before it
    measure.py      the pass without a checkpoint to write: statistics alone
    clock.py        where the time goes

For `compare`, which runs layers of several checkpoints and writes none:

    stored_experts.py   a checkpoint's experts, a layer at a time, decoded where they run
    compare_memory.py   what a comparison takes, before it begins

`projections.py` and `memory.py` need no PyTorch: `halfbyte plan` asks them. Everything also runs on a CPU with Triton's
interpreter, in which the lanes are one: that is how it is tested without a GPU.
"""
