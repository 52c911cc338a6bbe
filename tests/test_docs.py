"""Numbers in the documents are those of the committed result files."""

import csv
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "fashion-mnist"


def percent(run: str, which: str, when: str) -> str:
    summary = json.loads((RUNS / run / "summary.json").read_text())
    return f"{100 * summary[which][when]['mean']:.2f}"


@pytest.mark.parametrize(
    ("run", "which", "label"),
    [("fedpac", "received", "FedPAC"), ("fedpac", "personal", "FedPAC"), ("fedavg", "received", "FedAvg")],
)
def test_the_table_of_results_is_that_of_the_files(run: str, which: str, label: str) -> None:
    best = json.loads((RUNS / run / "summary.json").read_text())[which]["best"]["round"]
    row = f"| {label} | {which} | {percent(run, which, 'final')} | {percent(run, which, 'best')} ({best}) |"
    assert row in (ROOT / "results" / "README.md").read_text()


def test_the_readme_quotes_the_files() -> None:
    text = (ROOT / "README.md").read_text()
    caption = text[text.index("*Fashion-MNIST, 20 clients") : text.index("[Files and commands]")]
    papers = {"91.83", "85.28", "90.47"}
    ours = {percent("fedpac", "received", when) for when in ("final", "best")}
    ours |= {percent("fedavg", which, "final") for which in ("received", "personal")}
    assert set(re.findall(r"\d\d\.\d\d", caption)) == papers | ours


def test_the_spread_of_weights_is_that_of_the_file() -> None:
    lines = (ROOT / "results" / "weight-spread.csv").read_text().splitlines()
    cells: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        cell = f"{row['outside_group_percent']} ({row['partners']})"
        cells.setdefault((row["dataset"], row["solver"]), []).append(cell)
    text = (ROOT / "results" / "README.md").read_text()
    for label, key in {
        "Fashion-MNIST, exact": ("fashion-mnist", "exact"),
        "CIFAR-10, exact": ("cifar10", "exact"),
        "CIFAR-10, eigenvalues lifted to 0.01": ("cifar10", "eigenvalue floor"),
    }.items():
        assert f"| {label} | {' | '.join(cells[key])} |" in text


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "results/README.md", "docs/methods/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", file.read_text()) if "://" not in t]
    assert targets or page == "CONTRIBUTING.md"
    assert [t for t in targets if not (file.parent / t).exists()] == []
