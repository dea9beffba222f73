"""Independent checks of an output, with and without its source.

inputs                  input of the checks: checkpoint, recorded or derived plan, journal
derive_plan             the plan of a checkpoint that has none
checks, byte_checks     config, structure, ignore list; hashes and copied bytes
reencode_sample, gptq   re-encode a sample with the reference arithmetic, or bound its error
reencode_all            re-encode every linear of a checkpoint without a journal
calibration             scales against statistics
pruned                  kept experts and router rows, recorded loop test
vllm_check, vllm_load   the installed vLLM loads the checkpoint
run, findings           all checks, and their results
diff, explain_diff      comparison of two checkpoints, and reasons for differences
"""
