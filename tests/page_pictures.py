"""Takes the pictures of the pages in docs/img/pages, from the committed results: python tests/page_pictures.py

That of calibration is of two short runs on digits, which are made for it.
"""

import base64
import io
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.by import By

from chromium import look, start
from fedpac.config import make_config
from fedpac.report.web.page import write_report
from fedpac.runs.execute import run
from fedpac.runs.read import read_runs
from fedpac.runs.run_data import RunData
from live_page import Growing, served

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "img" / "pages"
PARTS = {  # file -> section, width, height, dark
    "report.png": ("words", 1180, 880, False),
    "report-weights.png": ("weights", 1180, 800, False),
    "report-held.png": ("held", 1180, 640, False),
    "report-curves-dark.png": ("curves", 1180, 720, True),
    "report-phone.png": ("gains", 390, 800, False),
    "report-phone-dark.png": ("weights", 390, 800, True),
}
CALIBRATION = {"report-calibration.png": ("calibration", 1180, 900, False)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        browser = start(Path(folder) / "profile")
        assert browser is not None, "this needs chromium and chromedriver"
        page = Path(folder) / "report.html"
        write_report(read_runs([ROOT / "results" / "fashion-mnist-20"]), page)
        photograph(browser, page, PARTS)
        write_report(measured_runs(Path(folder) / "runs"), page)
        photograph(browser, page, CALIBRATION)
        growing = Growing(Path(folder) / "clinics", rounds=30, clients=12)
        for t in range(1, 20):
            growing.round(t)
        growing.answers(20, late=3, failed=7)
        look(browser, 1180, 760)
        with served(growing.folder) as url:
            browser.get(url)
            time.sleep(2)
            keep(browser, "live.png")
        browser.quit()


def measured_runs(folder: Path) -> list[RunData]:
    """FedPAC and Local-only as in the demo, with all that the section on calibration shows."""
    for method in ("fedpac", "local"):
        data = {"dataset": "digits", "scenario": "concept-shift"}
        how = {"rounds": 20, "metrics": ["brier", "ece", "reliability"]}
        run(make_config({"method": method, "data": data, "run": how}), folder / method)
    return read_runs([folder])


def photograph(browser, page: Path, parts: Mapping[str, tuple[str, int, int, bool]]) -> None:
    for name, (section, width, height, dark) in parts.items():
        look(browser, width, height, dark)
        browser.get(page.as_uri())
        if section != "words":
            target = browser.find_element(By.ID, section)
            browser.execute_script("scrollTo(0, arguments[0].offsetTop - (innerWidth > 760 ? 60 : 0))", target)
        keep(browser, name)


def keep(browser, name: str) -> None:
    """A picture of the window in few colours: a third of the bytes."""
    time.sleep(0.5)
    FOLDER.mkdir(parents=True, exist_ok=True)
    shown = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    with Image.open(io.BytesIO(base64.b64decode(shown))) as image:
        image.convert("RGB").quantize(256).save(FOLDER / name, optimize=True)


if __name__ == "__main__":
    main()
