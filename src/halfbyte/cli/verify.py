"""The `halfbyte verify` command, with deferred imports."""

from __future__ import annotations

from pathlib import Path

import click

from halfbyte.cli.usage import Command
from halfbyte.errors import CheckFailedError
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted
from halfbyte.ui.units import size


@click.command("verify", cls=Command, example="halfbyte verify OUT")
@click.argument("out_folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Compare only file sizes, not hashes.")
@click.option("--source", metavar="SRC", type=click.Path(path_type=Path), help="Also compare the source's shards.")
@click.pass_obj
def verify_command(out: Output, out_folder: Path, quick: bool, source: Path | None) -> None:
    """Compare the files of OUT with halfbyte/provenance.json.

    Hashes every file. OUT may be a download. Exit code 1 if a file was changed, removed or added.
    """
    from halfbyte.cli.hash_progress import watched
    from halfbyte.publish.verify import verify
    from halfbyte.publish.visible_text import visible

    with out.progress("hashing the checkpoint") as bar:
        result = verify(out_folder, quick=quick, source=source, watch=watched(bar, "hashed"))
    if out.as_json:
        out.facts(result.as_dict(), [])
    out.verdicts(result.sentences())
    if not result.same:
        count = len(result.differences)
        what = f"{count} file{' differs' if count == 1 else 's differ'} from the record"
        again = f"python -m halfbyte.release.write_provenance {pasted(out_folder)} SRC"
        fix = f"download or copy the files named above again; if the change is yours: {again}"
        raise CheckFailedError(what, where=str(out_folder), fix=fix)
    out.note(visible(f"{size(result.nbytes)}; plan {result.plan}; digest {result.digest}"))
    out.hint(f"halfbyte audit {pasted(out_folder)}")
