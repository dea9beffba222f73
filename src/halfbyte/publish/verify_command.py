"""The command `halfbyte verify`; what it needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.errors import CheckFailedError
from halfbyte.terminal.console import Output
from halfbyte.terminal.pasted import pasted
from halfbyte.terminal.units import size
from halfbyte.terminal.usage import Command


@click.command("verify", cls=Command)
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Compare sizes only; a changed byte is not seen.")
@click.option("--source", metavar="SRC", type=click.Path(path_type=Path), help="Also compare the source's shards.")
@click.pass_obj
def verify_command(out: Output, out_folder: Path, quick: bool, source: Path | None) -> None:
    """Hash the checkpoint OUT again and compare it with its halfbyte/provenance.json.

    OUT may be a download: nothing else is needed. Exit code 1 if a file changed, is missing or was added.
    """
    from halfbyte.publish.report.visible import visible  # noqa: PLC0415
    from halfbyte.publish.show_hashing import watched  # noqa: PLC0415 - `halfbyte --help` stays instant
    from halfbyte.publish.verify import verify  # noqa: PLC0415

    with out.progress() as bar:
        found = verify(out_folder, quick=quick, source=source, watch=watched(bar, "hashed"))
    if out.as_json:
        out.facts(found.as_dict(), [])
    out.verdicts(found.sentences())
    if not found.same:
        count = len(found.differences)
        what = f"{count} file{' differs' if count == 1 else 's differ'} from what was recorded"
        again = f"python -m halfbyte.release.write_provenance {pasted(out_folder)} SRC"
        fix = f"download or copy the files named above again; if the change is yours: {again}"
        raise CheckFailedError(what, where=str(out_folder), fix=fix)
    out.note(visible(f"{size(found.nbytes)}; plan {found.plan}; digest {found.digest}"))
    out.hint(f"halfbyte audit {pasted(out_folder)}")
