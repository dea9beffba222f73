"""A browser for the tests of this folder; where there is none, they are skipped and say what to install."""

import pytest

from browser.chromium import INSTALL, Chromium, find_chromium


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip(INSTALL)
    with Chromium(program, tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser
