"""The installation hint for a missing library works although halfbyte is not on a package index."""

from importlib.metadata import PackageNotFoundError

import pytest

from halfbyte.machine import extras
from halfbyte.machine.extras import install_extra


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("eval", "pip install 'lm-eval[api]>=0.4.13'"),
        ("ray", "pip install 'ray>=2.50'"),
        ("guard", "pip install 'aiohttp>=3.10'"),
        ("s3", "pip install 's3fs>=2024.6'"),
    ],
)
def test_the_install_command_lists_the_packages(extra, command):
    assert install_extra(extra) == command


def test_a_source_tree_that_is_not_installed(monkeypatch):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr(extras, "requires", missing)
    assert install_extra("eval") == "pip install -e '.[eval]' in a checkout of halfbyte"


def test_required_dependencies_are_not_part_of_an_extra(monkeypatch):
    told = ["a>=1; python_version >= '3'", "b>=2", "c>=3; extra == 'eval'", "d>=4; extra == 'ray'"]
    monkeypatch.setattr(extras, "requires", lambda _: told)
    assert install_extra("eval") == "pip install 'c>=3'"
