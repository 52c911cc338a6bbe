"""A real browser: Debian's Chromium, driven by chromedriver, with no way out to the network."""

import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from chromium import look

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--force-prefers-reduced-motion",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        missing = "no Chromium and chromedriver here: apt-get install chromium chromium-driver"
        pytest.fail(missing) if os.environ.get("FEDPAC_BROWSER") else pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium):
    """A page of the size of a desk's screen, light; at the end, nothing may have been complained about."""
    look(chromium, 1280, 900)
    chromium.get_log("browser"), chromium.get_log("performance")
    yield chromium
    assert chromium.get_log("browser") == []
