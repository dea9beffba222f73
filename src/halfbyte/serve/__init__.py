"""Serve a checkpoint: launch scripts, GPU memory fit, engine supervision and the loop-stopping proxy.

checkpoint_facts     facts of a checkpoint; refusal of invalid ones
needs, gpus          memory requirements of a model and its draft; known GPUs
memory_per_gpu, fit  what one GPU holds, and whether a launch fits
launch_data          engines and rules in data/*.yaml
launch_facts         facts that rules see
settings             settings that rules and --set choose
launch, render       the chosen launch, as scripts and text
installed, ports     the engine on this machine, and its port
run                  start, health check, follow-up, stop
engine_process       processes under the supervisor
engine_log           logs and known errors
boot_time            startup time, cold or warm
published            differences from published launch commands
loop_proxy           stops looping responses
vllm_plugin          emulation of 4-bit formats in vLLM
"""
