"""`halfbyte release` with the commands of fake_stage.py: `release_runner.py SRC OUT BLOCK OPTIONS`, both JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from halfbyte.errors import HalfbyteError
from halfbyte.release.run import Folders, Release
from halfbyte.release.stages import ReleaseRequest, make_stages
from halfbyte.ui.console import Output

FAKE = (sys.executable, str(Path(__file__).parent / "fake_stage.py"))


def made(
    source: Path,
    out: Path,
    block,
    *,
    url=None,
    reference_url=None,
    force=False,
    recipe="r",
    fingerprint="f1",
    **options,
) -> Release:
    asked = ReleaseRequest(recipe=recipe, block=block, url=url, reference_url=reference_url, force=force)
    stages = [stage if stage.words == () else replace(stage, program=FAKE) for stage in make_stages(asked)]
    return Release(Folders(source, out), stages, block["gates"], "r", fingerprint, force=force, **options)


def run(source: str, out: str, block: str, options: str) -> int:
    """Run it like the command line; return the exit code."""
    try:
        ended = made(Path(source), Path(out), json.loads(block), **json.loads(options)).run(Output())
    except HalfbyteError as error:
        Output().error(error)
        return error.exit_code
    print(ended.judged.verdict)
    return int(ended.judged.verdict != "ACCEPT")


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
