"""Triton kernels for GPUs: whole stacks of experts in one launch, bit-identical to `formats.reference`.

    scalars.py      bit-level functions that kernels inline
    blocks.py       shared by the encoders: checks, amax, tensor scales, quantization error
    encode_bf16.py  BF16 to NVFP4 and MXFP4
    encode_int4.py  INT4 to NVFP4 and MXFP4, by tables
    sweep.py        NVFP4 block scales with the smallest squared error
    nvfp4.py        entry points and codecs of NVFP4
    mxfp4.py        entry points and codecs of MXFP4
    decode.py       every stored format to BF16
    combine.py      sums and norms of expert outputs in the forward pass
    gptq.py         GPTQ of a stack: error compensation column by column

Import this package only if a GPU is used, because the CPU path does not depend on Triton.
"""
