"""The local machine.

resources         usable cores, memory and address space, and their limits
devices           parsing of --device
direct_io         O_DIRECT file access
os_errors         file names in OS errors, detection of memory errors
process           deferring Ctrl-C, pausing the garbage collector
library_settings  environment variables of libraries
extras            install commands for optional packages
python_path       safe Python subprocesses
"""
