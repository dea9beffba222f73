"""This machine: its limits, disks, devices and signals.

doctor, advice, cgroup    what it has, and what that means for somebody
direct_io, network        bytes past the page cache, and answers that do not come
named_errors, lack_of_memory    which file an error is about, and which are about memory
address_space             a limit under which a run would not come to its end
devices, collector, interrupts    where a run takes place, and what must not disturb it
"""
