"""The first thing that a new user runs, and the line that shows how far a run is."""

import re
import sys

import pytest

from fedpac.report.plot import plot_text
from terminal_screen import COLUMNS, ROWS, Screen, typed

FEDPAC = [sys.executable, "-m", "fedpac"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, typed([*FEDPAC, "demo", "--rounds", 2, "--seeds", 2], cwd=folder)


def test_the_demo_fits_one_screen(demo):
    """Nothing scrolls: the line of each run has gone when the next begins."""
    _, (code, screen) = demo
    assert code == 0
    assert len(screen.lines) <= ROWS, screen.text
    assert max(map(len, screen.text.splitlines())) <= COLUMNS
    assert "run 6 of 6" not in screen.text


def test_the_demo_ends_with_a_table_a_curve_and_a_sentence(demo):
    folder, (_, screen) = demo
    for name in ("P FedPAC", "T FedAvg-FT", "L Local-only", "A FedAvg"):
        assert re.search(rf"^ ?{name} .* \d+\.\d ± \d+\.\d", screen.text, re.MULTILINE), screen.text
    assert re.search(r"^ *\d+ \|[PTLA ]+$", screen.text, re.MULTILINE)
    assert "One model for all gets" in screen.text
    assert screen.text.endswith("open demo-runs/report.html")
    assert (folder / "demo-runs" / "report.html").read_text().startswith("<!doctype")
    assert {p.name for p in (folder / "demo-runs").iterdir()} == {
        *(f"{m}-seed{s}" for m in ("fedpac", "fedavg", "local") for s in (0, 1)), "report.html",
    }  # fmt: skip


def test_a_run_has_one_live_line_in_a_terminal(tmp_path):
    code, screen = typed(
        [*FEDPAC, "run", "--dataset", "digits", "--clients", 4, "--rounds", 5, "--out", "run",
         "--no-figures", "--set", "model=logistic", "--set", "data.samples=10", "--set", "data.test_samples=10",
         "--set", "run.evaluate_every=1"],
        cwd=tmp_path,
    )  # fmt: skip
    assert code == 0
    assert (
        len(re.findall(r"^round 5/5 .*received \d+\.\d  personal \d+\.\d % 0:00 left", screen.text, re.MULTILINE)) == 1
    )
    assert "round 4/5" not in screen.text


def test_the_last_failure_is_on_the_line(monkeypatch, capsys):
    from rich.console import Console

    from fedpac.cli import common
    from fedpac.engines.site import Failure
    from fedpac.rounds import RoundReport

    with open("/dev/null", "w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=120, record=True)
        monkeypatch.setattr(common, "out", console)
        with common.ProgressBar(3, "run 1 of 2") as bar:
            failed = Failure(1, "lost", "site 'north' is [bold]gone[/], round 1")
            bar.see(RoundReport(1, [0], [], 0, 0, 1.0, 1.0, failed=[failed]))
            console.print(bar.bar.get_renderable())
    shown = console.export_text()
    assert "round 1: site 'north' is [bold]gone[/], round 1" in shown
    assert "run 1 of 2 round 1/3" in shown


def test_curves_in_a_terminal_by_hand():
    lines = plot_text({"P": ([1, 3], [0, 10]), "L": ([1, 3], [10, 10])}, width=5, height=3, unit="round")
    assert lines == [
        "  10 |LLLPP",
        "   5 |  P",
        "   0 |PP",
        "     +-----",
        "      1round3",
    ]
    assert plot_text({"A": ([5], [3.0])}, width=3, height=2)[0].startswith("   3 |A")


def test_the_screen_of_the_tests_is_a_screen():
    assert Screen("a\r\n\x1b[1mbc\x1b[0m\x1b[2K\r\x1b[1A\x1b[2Kx\r\n").text == "x"
