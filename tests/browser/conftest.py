"""The browser fixture; tests are skipped with an installation hint if no browser is found."""

import pytest

from browser.chromium import INSTALL, Chromium, find_chromium


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip(INSTALL)
    with Chromium(program, tmp_path_factory.mktemp("browser") / "profile") as browser:
        yield browser
