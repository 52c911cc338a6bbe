"""Numbers in the documents are those of the committed result files."""

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from benchmarks.pages import filled

from fedpac.methods import PAPER, find_method
from fedpac.report.drawing import draw
from fedpac.report.page import exact_text, figure_settings, page_text
from fedpac.runs.read import read_run
from fedpac.tables.cells import cells
from fedpac.tables.results import ResultsFolder
from fedpac.tables.rows import FilledTable
from fedpac.tables.spec import shipped
from fedpac.version import __version__

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "results" / "fashion-mnist-20"
PAGE = ROOT / "docs" / "results.md"
TITLES = {"fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


RESULTS = ResultsFolder(ROOT / "results")


def table(name: str) -> FilledTable:
    return FilledTable.of(shipped()[name], RESULTS)


def percent(run: str, which: str, when: str) -> str:
    summary = json.loads((RUNS / f"{run}-seed0" / "summary.json").read_text())
    return f"{100 * summary[which][when]['mean']:.2f}"


def test_the_page_of_results_is_what_the_runs_give() -> None:
    """`fedpac reproduce all --minutes 0` writes it again."""
    assert PAGE.read_text() == page_text([table(name) for name in shipped()], PAGE)


@pytest.mark.parametrize("name", shipped())
def test_the_table_of_an_experiment_is_what_the_runs_give(name: str) -> None:
    file = ROOT / "results" / f"{name}.csv"
    assert (file.read_text() if file.exists() else "") == exact_text(table(name))


PINNED = re.search(r"^matplotlib==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
drawn_alike = pytest.mark.skipif(
    PINNED is None or PINNED[1] != matplotlib.__version__, reason="another Matplotlib draws other bytes"
)


@drawn_alike
@pytest.mark.parametrize("name", shipped())
def test_the_figures_of_an_experiment_are_what_the_runs_give(name: str, tmp_path: Path) -> None:
    """`fedpac reproduce all --minutes 0` draws them again."""
    drawn = draw(table(name), tmp_path / "results.md")
    mine = [path for path in figure_settings(shipped()[name], PAGE) if path.exists()]
    assert sorted(p.name for p in drawn) == sorted(p.name for p in mine)
    for path in mine:
        if path.suffix == ".svg":  # the bytes of a PNG are also those of the libraries that compress it
            assert path.read_bytes() == (tmp_path / "img" / "results" / path.name).read_bytes()


@pytest.mark.parametrize("name", shipped())
def test_no_figure_waits_to_be_drawn(name: str, tmp_path: Path) -> None:
    """Each committed one has the mark of what it shows. `fedpac reproduce all --minutes 0` draws those that lack it."""
    shutil.copytree(PAGE.parent / "img" / "results", tmp_path / "img" / "results")
    assert draw(table(name), tmp_path / "results.md") == []


def test_every_committed_figure_belongs_to_an_experiment() -> None:
    known = {path for experiment in shipped().values() for path in figure_settings(experiment, PAGE)}
    assert set((PAGE.parent / "img" / "results").iterdir()) <= known


@drawn_alike
def test_the_pictures_of_readme_are_what_the_runs_give(tmp_path: Path) -> None:
    """`python studies/readme_pictures.py` draws them again."""
    subprocess.run([sys.executable, ROOT / "studies" / "readme_pictures.py", tmp_path], check=True, capture_output=True)
    assert len(list(tmp_path.iterdir())) == 3
    pages = "".join((ROOT / page).read_text() for page in ("README.md", "docs/verdict.md"))
    for path in tmp_path.iterdir():
        assert f"img/{path.name}" in pages
        assert path.stat().st_size < 1_000_000
        if path.suffix == ".svg":
            assert path.read_bytes() == (ROOT / "docs" / "img" / path.name).read_bytes()


def test_the_table_of_alternatives_counts_what_its_page_lists() -> None:
    """A method counts where the page has a plain tick; the first column is this project's."""
    page = (ROOT / "docs" / "alternatives.md").read_text()
    rows = re.findall(r"^\| ([\w -]+) ((?:\| [✓(~–][^|]* ){7})\|$", page, re.MULTILINE)
    assert {name for name, _ in rows} == {find_method(name).title for name in PAPER}
    ticks = [[cell.strip().startswith("✓") for cell in cells.strip("| ").split("|")] for _, cells in rows]
    counted = [sum(column) for column in zip(*ticks, strict=True)]
    (told,) = re.findall(r"^\| of the 22 methods, correct \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [int(cell.removeprefix("about ")) for cell in told.split(" | ")] == counted
    assert len(set(re.findall(r"\| ([0-9a-f]{7}) \|", page))) == len(counted) - 1


def test_the_changelog_has_a_section_for_every_version() -> None:
    """The newest first, each with its date; the code is at the newest of them."""
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    found = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) - (2\d{3}-\d\d-\d\d)", head) for head in heads[1:]]
    assert all(found)
    order = [(*map(int, one.groups()[:3]), one[4]) for one in found if one]
    assert order == sorted(order, reverse=True)
    assert heads[1].split()[0] == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_run_says_where_it_comes_from() -> None:
    runs = list((ROOT / "results").glob("*/*/config.toml"))
    assert runs
    for config in runs:
        for session in json.loads((config.parent / "environment.json").read_text())["sessions"]:
            assert session["command"].startswith(("fedpac ", "python -m fedpac "))
            assert re.fullmatch(r"[0-9a-f]{12}", session["commit"]), f"{config.parent}: {session['commit']}"
            assert session["versions"]["torch"]


def test_weights_of_finished_runs_are_kept_only_where_a_figure_shows_them() -> None:
    shown = {cell.folder for cell in cells(shipped()["weights"], RESULTS)}
    kept = {path.parent for path in RESULTS.path.glob("*/*/weights.csv") if path.read_text().count("\n") > 1}
    assert {folder for folder in kept if (folder / "summary.json").exists()} <= shown
    assert {folder for folder in shown if folder.exists()} <= kept


def test_the_readme_quotes_the_files() -> None:
    text = (ROOT / "README.md").read_text()
    caption = text[text.index("*Fashion-MNIST, 20 clients") : text.index("[All results beside")]
    papers = {"91.83", "85.28", "90.47"}
    ours = {percent("fedpac", "received", when) for when in ("final", "best")}
    ours |= {percent("fedavg", which, "final") for which in ("received", "personal")}
    table = csv.DictReader((ROOT / "results" / "table1.csv").read_text().splitlines())
    seeds = [r["received_final"] for r in table if (r["setting"], r["row"]) == ("fashion-mnist,20", "fedpac")]
    assert len(seeds) == 3
    ours.add(f"{statistics.mean(map(float, seeds)):.2f}")
    assert set(re.findall(r"\d\d\.\d\d", caption)) == papers | ours


def test_the_readme_quotes_the_speed() -> None:
    """How many times faster than the plain program: from the slowest to the fastest of the processors measured."""
    text = (ROOT / "README.md").read_text()
    times: dict[str, list[float]] = {}
    for file in (ROOT / "benchmarks" / "results").glob("*/rounds.md"):
        for dataset, found in re.findall(r"\| (\S+) \| native \| [^|]* \| [^|]* \| (\S+) ", file.read_text()):
            times.setdefault(dataset, []).append(float(found))
    assert set(times) == set(TITLES)
    for dataset, found in times.items():
        assert re.search(rf"{min(found):.2f} to {max(found):.2f} times faster on\s+{TITLES[dataset]}", text)


def test_the_page_of_speed_is_what_was_measured() -> None:
    """`python -m benchmarks.pages` writes it again."""
    page = (ROOT / "docs" / "speed.md").read_text()
    assert filled(page) == page


def test_the_verdict_quotes_the_files() -> None:
    """Every number with two decimals is in a result file, or follows from one: over seeds, or against the paper."""
    known = {"81.10"}  # in a log of the public code
    tables = ["all-methods", "table1", "ablation", "choices", "imbalanced", "scarce", "feature-skew", "concept-shift"]
    for name in tables:
        seeds: dict[tuple[str, str], list[list[float]]] = {}
        for row in csv.DictReader((ROOT / "results" / f"{name}.csv").read_text().splitlines()):
            ours = [float(row[f"{which}_{when}"]) for which in ("received", "personal") for when in ("final", "best")]
            of_row = seeds.setdefault((row["setting"], row["row"]), [])
            of_row.append(ours)
            means = [statistics.mean(values) for values in zip(*of_row, strict=True)]
            exact = [value + last_bit for value in ours + means for last_bit in (-1e-9, 1e-9)]  # 91.675 is either way
            known |= {f"{value:.2f}" for value in exact}
            if row["paper"]:
                known |= {f"{value - float(row['paper']):+.2f}" for value in exact}
                known.add(f"{float(row['paper']):.2f}")
            if len(of_row) > 1:
                known |= {f"{statistics.stdev(values):.2f}" for values in zip(*of_row, strict=True)}
    draws = [line.split(",") for line in (ROOT / "results" / "test-draws.csv").read_text().splitlines()]
    draws = [line for line in draws if line[0].startswith("results/")]
    known |= {number for line in draws for number in line[1:]}
    plain = {run[-1]: numbers for run, *numbers in draws if "cifar10-20/fedpac-seed" in run}
    for chosen in ("fedpac", "fedpac-augmented"):
        everywhere = [float(numbers[1]) for run, *numbers in draws if f"cifar10-20/{chosen}-seed" in run]
        known.add(f"{statistics.mean(everywhere):.2f}")
    for run, *numbers in draws:  # what a choice changes: on the drawn test images and on all
        if "augmented" in run:
            known |= {f"{float(mine) - float(other):+.2f}" for mine, other in zip(numbers, plain[run[-1]], strict=True)}
    tuned = csv.DictReader((ROOT / "results" / "fine-tuning.csv").read_text().splitlines()[1:])
    known |= {value for row in tuned for value in (row["rate"], row["personal"])}
    for study in ("paired", "clusters", "knn-share", "random-turns"):
        known |= set(re.findall(r"[+-]?\d+\.\d\d", (ROOT / "results" / f"{study}.csv").read_text()))
    for setting, early in (("cifar10-1000-scarce", 150), ("cifar10-1000-scarce-long", 250)):
        known.add(
            f"{100 * read_run(ROOT / 'results' / setting / 'fedpac-seed0').accuracy['received'][early].mean():.2f}"
        )
    for file in (ROOT / "results").glob("authors-split-*.csv"):
        rows = list(csv.DictReader(line for line in file.read_text().splitlines() if not line.startswith("#")))
        known |= {f"{float(row[which]):.2f}" for row in rows for which in ("received", "personal")}
    text = (ROOT / "docs" / "verdict.md").read_text().partition("## How the combination weights")[0]
    assert set(re.findall(r"(?<![\d.])[+-]?\d+\.\d\d(?!\d)", text)) <= known


def test_fedpac_is_first_from_round_10_on() -> None:
    rows = [row for row in table("all-methods").rows["fashion-mnist,20"] if row.runs]
    rows = [row.on({0}) for row in rows]
    shared = sorted(set.intersection(*(set(row.runs[0].accuracy[row.which]) for row in rows)))
    first = [max(rows, key=lambda row: row.at(t)[0]).row for t in shared]
    assert {t for t, row in zip(shared, first, strict=True) if row != "fedpac"} == {5}
    assert "first in every round from the tenth on" in (ROOT / "docs" / "verdict.md").read_text()


def test_the_spread_of_weights_is_that_of_the_file() -> None:
    lines = (ROOT / "results" / "weight-spread.csv").read_text().splitlines()
    cells: dict[tuple[str, str], list[str]] = {}
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        cell = f"{row['outside_group_percent']} ({row['partners']})"
        cells.setdefault((row["dataset"], row["solver"]), []).append(cell)
    text = (ROOT / "docs" / "verdict.md").read_text()
    for dataset, title in TITLES.items():
        assert f"| {title} | {' | '.join(cells[dataset, 'ours'])} |" in text
        assert cells[dataset, "public code"] == cells[dataset, "ours"]


def test_the_table_of_compression_is_that_of_the_file() -> None:
    lines = (ROOT / "results" / "compression.csv").read_text().splitlines()
    text = (ROOT / "docs" / "running.md").read_text()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) == 8
    for row in rows:
        numbers = (row[key] for key in ("wire", "received_percent", "megabytes_up", "megabytes_down"))
        assert f"| {find_method(row['method']).title} | {' | '.join(numbers)} |" in text


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "results/README.md",
        "docs/methods/README.md",
        "docs/results.md",
        "docs/verdict.md",
        "docs/own-method.md",
        "docs/own-data.md",
        "docs/python-api.md",
        "docs/models.md",
        "docs/alternatives.md",
        "docs/releases.md",
        "CHANGELOG.md",
        "examples/hospitals/README.md",
        "examples/notebooks/README.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", file.read_text()) if "://" not in t]
    assert targets or page in ("CONTRIBUTING.md", "examples/hospitals/README.md")
    assert [t for t in targets if not (file.parent / t).exists()] == []
