"""Helpers for tests of bad input: error messages, and a source that must stay unchanged."""

import hashlib

from halfbyte.errors import EXIT_USAGE

RECIPE = "kimi-k2.6-mxfp4-wafer"
INDEX = "model.safetensors.index.json"


def everything(folder):
    """Return the contents of a folder: files with hashes, links with targets."""
    paths = sorted(folder.rglob("*"))
    links = {str(path): str(path.readlink()) for path in paths if path.is_symlink()}
    files = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
    return {**files, **links}


def refused(halfbyte, source, out, *options, recipe=RECIPE, code=EXIT_USAGE):
    """Run the command and return what, where and fix of its error."""
    before = everything(source)
    left, printed, words = halfbyte("-q", "quantize", source, out, "-r", recipe, *options)
    assert (left, printed) == (code, ""), words
    what, where, fix = words.splitlines()
    assert what.startswith("✗ ")
    assert where.startswith("  where ")
    assert fix.startswith("  fix   ")
    assert everything(source) == before
    return what[2:], where[8:], fix[8:]
