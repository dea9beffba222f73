"""The `halfbyte verify` command."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.errors import CheckFailedError
from halfbyte.options.check import VerifyOptions
from halfbyte.ui.console import Output
from halfbyte.ui.escape import pasted
from halfbyte.ui.units import size


@command("verify", VerifyOptions, example="halfbyte verify OUT")
def verify_command(out: Output, options: VerifyOptions) -> None:
    """Compare the files of OUT with halfbyte/provenance.json.

    Hashes every file. OUT may be a download. Exit code 1 if a file was changed, removed or added.
    """
    from halfbyte.cli.hash_progress import watched
    from halfbyte.publish.verify import verify
    from halfbyte.publish.visible_text import visible

    with out.progress("hashing the checkpoint") as bar:
        result = verify(options.out_folder, quick=options.quick, source=options.source, watch=watched(bar, "hashed"))
    if out.as_json:
        out.facts(result.as_dict(), [])
    out.verdicts(result.sentences())
    if not result.same:
        count = len(result.differences)
        what = f"{count} file{' differs' if count == 1 else 's differ'} from the record"
        again = f"python -m halfbyte.release.write_provenance {pasted(options.out_folder)} SRC"
        fix = f"download or copy the files named above again; if the change is yours: {again}"
        raise CheckFailedError(what, where=str(options.out_folder), fix=fix)
    out.note(visible(f"{size(result.nbytes)}; plan {result.plan}; digest {result.digest}"))
    out.hint(f"halfbyte audit {pasted(options.out_folder)}")
