"""The local machine.

resources         usable cores, memory and address space, and their limits
device_option     parsing of --device
direct_io         O_DIRECT file access
os_errors         file names in OS errors, detection of memory errors
interrupts        deferring Ctrl-C, pausing the garbage collector
retry             backoff between the attempts of a retry loop
library_settings  environment variables and threads of libraries
extras            install commands for optional packages
python_path       safe Python subprocesses
"""
