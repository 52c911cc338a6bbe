"""The live page in a browser: it grows with the run, keeps what its reader has chosen, and outlives its server."""

import re

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from chromium import look
from live_page import Growing, served


def until(page, condition):
    return WebDriverWait(page, 10, poll_frequency=0.1).until(condition)


def text(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector).text


def test_it_grows_and_keeps_what_was_chosen(browser, tmp_path):
    growing = Growing(tmp_path / "run")
    with served(growing.folder) as url:
        browser.get(url)
        assert text(browser, "#subtitle") == "No round has been scored yet."
        growing.round(1)
        until(browser, lambda page: page.find_elements(By.ID, "curves"))
        assert text(browser, "output[for=curves-round]") == "round 1"
        Select(browser.find_element(By.ID, "which")).select_by_visible_text("personal")
        Select(browser.find_element(By.ID, "weights-site")).select_by_visible_text("client 2")
        growing.round(2)
        until(browser, lambda page: text(page, "output[for=curves-round]") == "round 2")  # the end is followed
        assert text(browser, "output[for=weights-round]") == "round 2"
        assert "client 2's classifier" in text(browser, "#weights .readout")
        assert "(personal)" in browser.find_element(By.CSS_SELECTOR, "#curves svg").get_attribute("aria-label")
        until(browser, lambda page: "Round 2 of 6 is done" in text(page, ".status"))
        assert re.search(r"About \d", text(browser, ".status"))
        growing.answers(3, late=3, failed=1)
        until(browser, lambda page: "1 late, 1 failed" in text(page, ".status"))
        assert "client 3: late" in text(browser, ".sites")
        for width, dark in ((1280, False), (360, True)):
            look(browser, width, 800, dark)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        growing.finish()
        until(browser, lambda page: text(page, "#state").startswith("The run is finished"))
        assert browser.find_elements(By.CSS_SELECTOR, ".status b") == []


@pytest.mark.parametrize("token", [None, "secret"])
def test_it_outlives_its_server(chromium, tmp_path, token):
    growing = Growing(tmp_path / "run")
    growing.round(1)
    with served(growing.folder, token) as url:
        chromium.get(url + (f"?token={token}" if token else ""))
        until(chromium, lambda page: "Round 1 of 6" in text(page, ".status"))
    until(chromium, lambda page: text(page, "#state").startswith("No word from fedpac"))
    assert chromium.find_elements(By.ID, "curves")
    chromium.get("about:blank")
    chromium.get_log("browser")  # of a connection that was lost, as it should be
