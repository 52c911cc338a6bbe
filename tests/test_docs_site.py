"""The documentation site: built as `make docs` builds it, and a tutorial whose commands and programs work."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "examples", "results"):  # the reference pages are written beside the sources
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("_build"))
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command = [*build, str(folder / "docs"), str(folder / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


class Links(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.found += [value for key in ("href", "src") if (value := values.get(key))]
        if values.get("id"):
            self.names.add(values["id"] or "")


def test_no_link_is_dead(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 25
    dead = []
    for page, links in pages.items():
        for link in links.found:
            if re.match(r"[a-z]+:", link) or link == "#":
                continue
            target, _, anchor = link.partition("#")
            there = (page.parent / target.partition("?")[0]).resolve() if target else page
            if not there.exists() or (anchor and there in pages and anchor not in pages[there].names):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


def test_the_references_are_those_of_the_code(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text()
    config = (site / "reference" / "config.html").read_text()
    methods = (site / "reference" / "methods.html").read_text()
    assert all(word in commands for word in ("fedpac run", "fedpac reproduce", "--participation", "fedpac serve"))
    assert all(word in config for word in ("evaluate_every", "weight_decay", "compression", "communication rounds"))
    assert all(word in methods for word in ("FedPAC", "SCAFFOLD", "strength of the feature alignment"))
    assert "fedpac.fit" in (site / "reference" / "python.html").read_text()
