"""Independent checks of an output, with and without its source.

inputs                 what the checks read: checkpoint, recorded or derived plan, journal
checks, byte_checks    config, structure, ignore list; hashes and copied bytes
repeat, encoded, gptq  re-encoding with the reference arithmetic: a sample, or every linear
calibration            scales against statistics
pruned                 kept experts and router rows, recorded loop test
native, native_load    the installed vLLM loads the checkpoint
derived                the plan of a checkpoint that has none
run, findings          all checks, and their results
diff, explained        comparison of two checkpoints, and reasons for differences
"""
