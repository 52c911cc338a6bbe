"""The report as people use it: every control, keyboard, narrow and wide, light and dark, on paper, off line."""

import base64
import json
import re
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from chromium import look
from fedpac.report.web.page import write_report
from fedpac.runs.read import read_runs
from forged_runs import forge
from hostile_text import HOSTILE


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    names = ["Universitätsklinikum Nord-West, Abteilung Radiologie", *(f"site {i}" for i in range(1, 20))]
    forge(root / "a" / "local", "local", level=0.84, names=names, reliability=True)
    for seed in (0, 1):
        forge(
            root / "a" / f"fedpac{seed}",
            "fedpac",
            level=0.9,
            seed=seed,
            names=names,
            weights=True,
            scores=["ece", "auroc", "brier"],
            reliability=True,
        )
    forge(root / "a" / "fedavg", "fedavg", level=0.8, names=names, failures=[(2, 3, "deadline", "site 3 was late")])
    absent = forge(root / "a" / "fedrep", "fedrep", names=names, failures=[(10, 4, "lost", "site 4 is gone")])
    rows = (absent / "metrics.csv").read_text().splitlines(keepends=True)
    (absent / "metrics.csv").write_text("".join(row for row in rows if ",personal," not in row and "10,4," not in row))
    forge(root / "many" / "fedpac", "fedpac", clients=300, rounds=3, test=40, weights=True)
    forge(root / "many" / "local", "local", clients=300, rounds=3, test=40, level=0.8)
    write_report(read_runs([root / "a", root / "many"]), root / "report.html")
    return (root / "report.html").as_uri()


@pytest.fixture
def page(browser, report):
    browser.get(report)
    return browser


def one(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector)


def text(page, selector):
    return one(page, selector).text


def slide(page, selector, key, times=1):
    for _ in range(times):
        one(page, selector).send_keys(key)


def choose(page, selector, label):
    Select(one(page, selector)).select_by_visible_text(label)


def press(page, element):
    """As one does who sees it: in the middle of the window, not under the bar at its top."""
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def opened(page, section):
    """The rows of a section's table, once it is opened."""
    press(page, one(page, f"{section} details summary"))
    return WebDriverWait(page, 5).until(lambda page: page.find_elements(By.CSS_SELECTOR, f"{section} details tbody tr"))


def drawn(page, selector):
    return page.execute_script("return document.querySelector(arguments[0]).outerHTML", selector)


def test_nothing_is_fetched(page):
    sent = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in urls if not url.startswith(("file:", "data:"))} == set()
    assert any(url.endswith("report.html") for url in urls)


def test_every_section_is_there_and_can_be_reached(page):
    titles = [each.text for each in page.find_elements(By.CSS_SELECTOR, "main h2")]
    links = page.find_elements(By.CSS_SELECTOR, "nav a")
    assert [link.text for link in links] == titles
    assert len(titles) == 12
    for link in links:
        target = link.get_attribute("href").partition("#")[2]
        assert page.find_elements(By.ID, target)
    assert "sites took part" in text(page, "#words")
    assert len(page.find_elements(By.CSS_SELECTOR, ".tiles div")) == 5


def test_gains_by_method_and_order(page):
    said = text(page, "#gains .readout")
    assert re.match(r"\d+ gain, \d+ lose, \d+ are too close", said)
    before = drawn(page, "#gains .picture svg")
    choose(page, "#gains-method", "FedAvg")
    assert text(page, "#gains .readout") != said
    assert drawn(page, "#gains .picture svg") != before
    choose(page, "#gains-method", "FedRep")
    assert text(page, "#gains .readout").endswith("1 has no result.")
    choose(page, "#gains-method", "FedAvg")
    for order in ("by site", "by group"):
        choose(page, "#gains-order", order)
    assert len(opened(page, "#gains")) == 20
    press(page, one(page, "#gains th:nth-child(4) button"))
    shown = [
        float(cell.text.replace("−", "-")) for cell in page.find_elements(By.CSS_SELECTOR, "#gains td:nth-child(4)")
    ]
    assert shown == sorted(shown, reverse=True)
    assert one(page, "#gains th:nth-child(4)").get_attribute("aria-sort") == "descending"
    one(page, "#gains th:nth-child(4) button").send_keys(Keys.ENTER)
    assert one(page, "#gains th:nth-child(4)").get_attribute("aria-sort") == "ascending"


def test_the_accuracy_that_is_chosen_is_shown_everywhere(page):
    label = one(page, "#curves svg").get_attribute("aria-label")
    assert "FedPAC (received)" in label
    choose(page, "#which", "personal")
    assert "FedPAC (personal)" in one(page, "#curves svg").get_attribute("aria-label")
    assert "not measured" in text(page, "#methods")
    choose(page, "#which", "received")
    dashed = page.find_elements(By.CSS_SELECTOR, "#curves .picture .line.personal")
    assert dashed == []


def test_curves_read_off_toggle_zoom_and_single_sites(page):
    lines = "#curves .picture g .line"
    assert len(page.find_elements(By.CSS_SELECTOR, lines)) == 4
    choose(page, "#curves-lines", "received and personal")
    assert len(page.find_elements(By.CSS_SELECTOR, lines)) == 7  # FedRep's personal one was not measured
    end = text(page, "#curves .legend output")
    slide(page, "#curves-round", Keys.HOME)
    assert text(page, "output[for=curves-round]") == "round 1"
    assert text(page, "#curves .legend output") != end
    one(page, "#curves .legend li:last-child input").send_keys(Keys.SPACE)
    assert len(page.find_elements(By.CSS_SELECTOR, lines)) == 5
    none, every = (b for b in reversed(page.find_elements(By.CSS_SELECTOR, "#curves .split button")))
    press(page, none)
    assert one(page, "#curves svg").get_attribute("aria-label") == "No line is chosen."
    press(page, every)
    before = drawn(page, "#curves .picture svg")
    press(page, one(page, "#curves-zoom"))
    assert drawn(page, "#curves .picture svg") != before
    choose(page, "#curves-site", "site 7")
    assert "Highest at the end" in one(page, "#curves svg").get_attribute("aria-label")
    assert len(opened(page, "#curves")) == 10
    page.execute_script(
        "const svg = document.querySelector('#curves .picture svg'), box = svg.getBoundingClientRect();"
        "const middle = {clientX: box.left + box.width / 2, clientY: box.top + 50};"
        "svg.dispatchEvent(new PointerEvent('pointermove', middle));"
    )
    assert text(page, "output[for=curves-round]") in ("round 5", "round 6")


def test_weights_by_round_site_and_cell(page):
    assert "keeps" in text(page, "#weights .readout")
    last = drawn(page, "#weights-matrix")
    slide(page, "#weights-round", Keys.ARROW_LEFT, 3)
    assert text(page, "output[for=weights-round]") == "round 7"
    assert drawn(page, "#weights-matrix") != last
    edges = "#weights-graph .edge"
    many = len(page.find_elements(By.CSS_SELECTOR, edges))
    slide(page, "#weights-least", Keys.END)
    assert len(page.find_elements(By.CSS_SELECTOR, edges)) < many
    slide(page, "#weights-least", Keys.HOME)
    choose(page, "#weights-site", "site 6")
    assert re.search(r"site 6's classifier is .*% its own", text(page, "#weights .readout"))
    assert len(page.find_elements(By.CSS_SELECTOR, edges)) == 3
    matrix = one(page, "#weights-matrix")
    matrix.send_keys(Keys.ARROW_DOWN)
    matrix.send_keys(Keys.ARROW_RIGHT)
    assert re.search(r"Round 7: .* takes [\d.]+ % from site 5", text(page, "#weights .readout"))
    matrix.send_keys(Keys.ESCAPE)
    choose(page, "#weights-run", "FedPAC, seed 1")
    assert len(opened(page, "#weights")) == 80
    play = one(page, "#weights-play")
    press(page, play)
    assert play.text == "Stop"
    press(page, play)
    assert play.text == "Play"


def test_what_sites_hold_cost_failures_and_origin(page):
    assert len(page.find_elements(By.CSS_SELECTOR, "#held circle")) == 200
    assert len(opened(page, "#held")) == 20
    press(page, one(page, "#cost th:nth-child(2) button"))
    assert "9 MB" in text(page, "#cost tbody")
    assert text(page, "#failures tbody tr").startswith("site 3 2 deadline site 3 was late FedAvg")
    for each in page.find_elements(By.CSS_SELECTOR, "#origin summary"):
        press(page, each)
    assert text(page, "#origin").count("fedpac run config.toml --out again") == 5
    copy = one(page, "#origin details button")
    copy.send_keys(Keys.ENTER)
    assert copy.text != ""
    assert len(opened(page, "#spread")) == 20


def test_calibration_and_other_scores(page):
    assert "expected calibration error" in text(page, "#spread")
    before = drawn(page, "#spread .picture svg")
    choose(page, "#spread-measure", "ece")
    assert drawn(page, "#spread .picture svg") != before
    assert one(page, "#spread svg").get_attribute("aria-label").startswith("ece of every site, one row for each of 1")


def test_reliability_by_method_and_site(page):
    said = text(page, "#calibration .readout")
    assert re.match(r"FedPAC \(received\), all sites together: 77.1 % sure, 60.4 % right of 2480 predictions", said)
    assert said.count("points too much") == 2  # Local-only is shown, too
    assert len(page.find_elements(By.CSS_SELECTOR, "#calibration-diagram rect.dot")) == 6
    choose(page, "#calibration-other", "nothing")
    assert len(page.find_elements(By.CSS_SELECTOR, "#calibration-diagram rect.dot")) == 3
    choose(page, "#calibration-site", "site 3")
    assert "site 3: " in text(page, "#calibration .readout")
    assert one(page, "#calibration-diagram").get_attribute("aria-label").startswith("Reliability diagram, site 3")
    assert len(page.find_elements(By.CSS_SELECTOR, "#calibration-sites .frame")) == 20
    choose(page, "#calibration-method", "Local-only")
    assert "Local-only (personal), site 3" in text(page, "#calibration .readout")
    assert len(opened(page, "#calibration")) == 3 * 21
    heads = [
        each.text
        for each in page.find_elements(
            By.CSS_SELECTOR, "#calibration > .scroll th button, #calibration > div th button"
        )
    ]
    assert {"calibration error, mean over sites", "Brier score, mean over sites"} <= set(heads)


def test_hundreds_of_sites(page):
    choose(page, "#setting", "digits groups, 300 clients")
    assert text(page, "#subtitle") == "digits groups, 300 clients"
    assert len(page.find_elements(By.CSS_SELECTOR, "#gains .picture circle")) == 300
    assert "60 of 300 sites" in text(page, "#held .lead")
    assert "60 of 300 sites" in text(page, "#weights .lead")
    choose(page, "#setting", "digits groups, 20 clients")


def test_theme(page):
    def paper():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    light = paper()
    press(page, one(page, "#theme"))
    assert paper() != light
    press(page, one(page, "#theme"))
    assert paper() == light
    look(page, 1280, 900, dark=True)
    page.refresh()
    assert paper() != light


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(page, width, dark):
    """No sideways scrolling; text against its background has a contrast of 4.5 at least, lines of 3."""
    look(page, width, 800, dark)
    page.refresh()
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    outside = page.execute_script(
        "return [...document.querySelectorAll('main svg text')].filter(e => !e.closest('.scroll') && "
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.textContent)"
    )
    assert outside == []
    contrasts = page.execute_script((Path(__file__).parent / "contrast.js").read_text())
    assert contrasts
    assert {text: round(c, 1) for text, c in contrasts["texts"] if c < 4.5} == {}
    assert {name: round(c, 1) for name, c in contrasts["lines"] if c < 3} == {}


def test_keyboard_reaches_every_control_and_pictures_have_words(page):
    """Tab goes through the page from top to bottom, and each stop has a name that can be read out."""
    seen, places = [], []
    body = one(page, "body")
    for _ in range(120):
        page.switch_to.active_element.send_keys(Keys.TAB)
        found = page.execute_script(
            "const e = document.activeElement, box = e.getBoundingClientRect();"
            "const said = e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent;"
            "return [e.id || e.textContent.slice(0, 20), said, box.top + scrollY, getComputedStyle(e).outlineStyle]"
        )
        if page.switch_to.active_element == body:
            break
        seen.append(found)
        places.append(found[2])
    names = [name for name, *_ in seen]
    wanted = [
        "which", "theme", "print", "gains-method", "gains-order", "curves-site", "curves-lines", "curves-zoom",
        "curves-round", "calibration-method", "calibration-other", "calibration-site", "weights-run",
        "weights-site", "weights-round", "weights-play", "weights-least",
        "weights-matrix",
    ]  # fmt: skip
    assert [name for name in wanted if name not in names] == []
    assert [name for name, said, *_ in seen if not said.strip()] == []
    assert {style for *_, style in seen} <= {"solid", "auto"}, "a stop without a ring around it"
    assert [name for name in names if name in wanted] == wanted, "not in the order of the page"
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('svg')]"
        ".filter(e => !e.getAttribute('aria-label') && e.ariaHidden !== 'true').length"
    )
    assert unnamed == 0


def test_it_prints(page):
    printed = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3
    wide = page.execute_script("return document.querySelector('#curves svg').clientWidth")
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    drawn_widths = "return [...document.querySelectorAll('.picture svg')].map(e => e.clientWidth)"
    assert max(page.execute_script(drawn_widths)) <= 700  # paper, not the screen
    assert len(page.find_elements(By.CSS_SELECTOR, "#gains details tbody tr")) == 20  # on paper nobody opens it
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.execute_script("return document.querySelector('#curves svg').clientWidth") == wide


def test_text_of_strangers_stays_text(browser, tmp_path):
    environment = {
        "note": HOSTILE[0],
        "sessions": [{"command": HOSTILE[1], "commit": HOSTILE[2], "versions": {HOSTILE[0]: HOSTILE[1]}}],
    }
    for method in ("fedpac", "local", HOSTILE[0].replace('"', "")):
        forge(
            tmp_path / "runs" / f"{len(method)}", method, clients=6, names=HOSTILE, environment=environment,
            failures=[(1, 2, HOSTILE[0], HOSTILE[1])], more=f"# {HOSTILE[0]}\n", weights=True,
        )  # fmt: skip
    write_report(read_runs([tmp_path / "runs"]), tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    for each in browser.find_elements(By.CSS_SELECTOR, "summary"):
        press(browser, each)
    assert browser.execute_script("return window.hacked === undefined && document.scripts.length === 2")
    assert (
        browser.execute_script("return document.querySelectorAll('main img, main script, main [onload]').length") == 0
    )
    body = browser.execute_script("return document.querySelector('main').textContent")
    assert all(name in body for name in HOSTILE)
