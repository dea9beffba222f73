"""Only files inside a folder are opened, even if a link is inserted after the check; nothing is written through one."""

import os

import pytest

from halfbyte.checkpoint import contained_paths as inside
from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.contained_paths import open_inside, read_inside
from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import File


@pytest.fixture
def root(tmp_path):
    (tmp_path / "secret").write_text("a private key")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "tokenizer.json").write_text("{}")
    return tmp_path / "root"


@pytest.fixture
def race(monkeypatch):
    """Run something between the check of a name and its use."""

    def between(action):
        check = inside.check_inside

        def checked(*given):
            check(*given)
            action()

        monkeypatch.setattr(inside, "check_inside", checked)

    return between


FILE = "tokenizer.json"


def test_a_file_of_the_folder_is_read(root):
    assert read_inside(root, root.relative_to(root) / FILE) == b"{}"
    (root / "link.json").symlink_to(FILE)
    assert read_inside(root, root.relative_to(root) / "link.json") == b"{}"


def test_a_file_replaced_by_a_link_after_the_check(root, race):
    def swap():
        (root / FILE).unlink()
        (root / FILE).symlink_to(root.parent / "secret")

    race(swap)
    with pytest.raises(CheckpointError, match="is a link to a path outside the folder"):
        read_inside(root, root.relative_to(root) / FILE)


def test_a_folder_replaced_by_a_link_after_the_check(root, race):
    (root / "sub").mkdir()
    (root / "sub" / "secret").write_text("harmless")

    def swap():
        (root / "sub" / "secret").unlink()
        (root / "sub").rmdir()
        (root / "sub").symlink_to(root.parent)

    race(swap)
    with pytest.raises(CheckpointError, match="is a link to a path outside the folder"):
        read_inside(root, root.relative_to(root) / "sub" / "secret")


def test_a_file_replaced_by_a_pipe_after_the_check(root, race):
    def swap():
        (root / FILE).unlink()
        os.mkfifo(root / FILE)

    race(swap)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_inside(root, root.relative_to(root) / FILE)


def test_no_descriptor_is_left_open(root, race):
    def swap():
        (root / FILE).unlink(missing_ok=True)
        (root / FILE).symlink_to(root.parent / "secret")

    race(swap)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        (root / FILE).unlink()
        (root / FILE).write_text("{}")
        with pytest.raises(CheckpointError):
            open_inside(root, root.relative_to(root) / FILE)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_symlink_loop_is_refused(root):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(CheckpointError):
        open_inside(root, root.relative_to(root) / "a")


def test_nothing_is_written_through_a_link(root):
    (root / "config.json.part").symlink_to(root.parent / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        write_whole(root / "config.json", b"mine")
    (root / "shard.part").symlink_to(root.parent / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        File(root / "shard.part", create=True)
    assert (root.parent / "secret").read_text() == "a private key"
