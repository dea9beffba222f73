"""The `halfbyte doctor` command."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.errors import MachineError
from halfbyte.options.inspect import DoctorOptions
from halfbyte.ui.console import Output


@command("doctor", DoctorOptions, example="halfbyte doctor --dir .")
def doctor_command(out: Output, options: DoctorOptions) -> None:
    """Check this machine: CPU, memory, disk, GPUs, libraries."""
    from halfbyte.doctor.advice import advise
    from halfbyte.doctor.facts import examine

    if not options.no_disk:
        out.note(f"measuring the disk of {options.folder} with a temporary file of 256 MiB ...")
    machine = examine(None if options.no_disk else options.folder)
    advice = advise(machine)
    out.facts({**machine.as_dict(), "advice": [item.as_dict() for item in advice]}, machine.lines())
    out.verdicts([(item.level, item.text) for item in advice])
    blocking = [item for item in advice if item.level == "bad"]
    if blocking:
        raise MachineError(blocking[0].text, where="halfbyte doctor", fix=blocking[0].fix)
    out.hint("halfbyte recipes list")
