"""The local machine: limits, disks, devices and signals.

cgroup, cores, memory            container limits, usable cores, host memory
direct_io, network               O_DIRECT file access, HTTP error classification
named_errors, out_of_memory      file names in OS errors, detection of memory errors
address_space, library_settings  preflight check of RLIMIT_AS, environment variables of libraries
devices                          parsing of --device
extras, python_path              install commands for optional packages, safe Python subprocesses
garbage_collector, interrupts    pausing the garbage collector, deferring Ctrl-C
"""
