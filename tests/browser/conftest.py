"""A real browser: Debian's Chromium, driven by chromedriver, with no way out to the network."""

import os

import pytest

from chromium import look, start


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    browser = start(tmp_path_factory.mktemp("profile"))
    if browser is None:
        missing = "no Chromium and chromedriver here: apt-get install chromium chromium-driver"
        pytest.fail(missing) if os.environ.get("FEDPAC_BROWSER") else pytest.skip(missing)
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium):
    """A page of the size of a desk's screen, light; at the end, nothing may have been complained about."""
    look(chromium, 1280, 900)
    chromium.get_log("browser"), chromium.get_log("performance")
    yield chromium
    assert chromium.get_log("browser") == []
