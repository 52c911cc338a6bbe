"""The page of results and its figures, from a table of our own."""

import json
import re
import shutil

import pytest
from PIL import Image
from small_table import TABLE, experiment

from fedpac.runs.drawing import draw
from fedpac.runs.reading import read_run
from fedpac.runs.reproduce import cells, fill
from fedpac.runs.results import outcomes, write_page


def test_the_page_sets_ours_beside_the_papers(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "digits-6-s80" / "fedavg-seed0")
    page = tmp_path / "docs" / "results.md"
    write_page([small], tmp_path / "results", page)
    text = page.read_text()
    fedpac = read_run(root / "digits-6" / "fedpac-seed0")
    final = 100 * fedpac.accuracy["received"][6].mean()
    assert f"| FedPAC | 12.34 | {final:.2f} received | {final - 12.34:+.2f} |" in text
    assert "| FedAvg |  | " in text
    assert re.search(r"FedPAC is number \d of 4 in round 6, seed 0, .* In the paper it is number 2 of 2\.", text)
    second = text[text.index("### Digits, 6 clients, s = 80 %") :]
    assert "| FedAvg | not run yet |" in second  # the paper has nothing here: no column for it
    assert "5 of 6 runs" in text
    exact = (tmp_path / "results" / "small.csv").read_text().splitlines()
    assert exact[0].startswith("setting,row,title,seed,shows,paper,stand_in,rounds,of,received_final,")
    assert {"commands", "commits", "versions", "folder"} <= set(exact[0].split(","))
    assert len(exact) == 1 + 4 + 2


def test_unfinished_runs_are_shown_as_such(tmp_path):
    small = experiment(tmp_path)
    wanted = cells(small, tmp_path, only="digits,6")
    list(fill(wanted[:1]))
    list(fill(wanted[1:2], rounds=3))
    write_page([small], tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "round 2, seed 0 %" in text  # the last evaluated round that both have
    row = next(line for line in text.splitlines() if line.startswith("| FedAvg-FT |"))
    assert "2 of 6" in row
    assert re.search(r"\([+-]\d+\.\d\d\)", row)
    assert "1 of 6 runs, 1 more begun" in text


def test_several_seeds_are_a_mean_and_a_spread(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    list(fill(cells(small, tmp_path / "results", seeds=2, only="digits,6,fedpac")))
    write_page([small], tmp_path / "results", tmp_path / "page.md")
    finals = [
        100 * read_run(tmp_path / "results" / "digits-6" / f"fedpac-seed{s}").accuracy["received"][6].mean()
        for s in (0, 1)
    ]
    spread = abs(finals[0] - finals[1]) / 2**0.5
    text = (tmp_path / "page.md").read_text()
    assert f"{sum(finals) / 2:.2f} ± {spread:.2f} received" in text
    # who is compared with others that have one seed is compared on that seed
    assert re.search(rf"\| round 6, seed 0 % \|.*\| FedPAC \| 12\.34 \| {finals[0]:.2f} \|", text, re.DOTALL)


def test_a_stand_in_is_never_set_beside_the_paper(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    for path in (tmp_path / "results" / "digits-6").glob("*/environment.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "stand-in: 7 images"}))
    write_page([small], tmp_path / "results", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    first = text[text.index("### Digits, 6 clients (stand-in data)\n") : text.index("### Digits, 6 clients, s = 80 %")]
    assert "Not the paper's data** (stand-in: 7 images)" in first
    assert "12.34" not in text
    assert "99.99" not in text + (tmp_path / "results" / "small.csv").read_text()


@pytest.mark.parametrize("shows", ["table", "curves", "sweep", "weights"])
def test_each_kind_has_its_figure(filled, tmp_path, shows):
    _, root = filled
    text = TABLE.replace('shows = "table"', f'shows = "{shows}"\naxis = "s"')
    rounds = "evaluate_every = 2"
    if shows == "weights":  # rounds 1, 20 and 50
        text = text.replace("rounds = 6", "rounds = 50").replace(rounds, "evaluate_every = 5")
        text = re.sub(r"fed(avg|pac-).*\n", "", text.replace(", fedavg-ft = 99.99", ""))
        small = experiment(tmp_path, text)
        root = tmp_path / "results"
        list(fill(cells(small, root, only="fedpac")))
    else:
        small = experiment(tmp_path, text)
    written = draw(small, root, tmp_path / "docs" / "results.md")
    assert {path.suffix for path in written} == {".png", ".svg"}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width > 500
    write_page([small], root, tmp_path / "docs" / "results.md")
    for image_link in re.findall(r"\]\((img/[^)]+)\)", (tmp_path / "docs" / "results.md").read_text()):
        assert (tmp_path / "docs" / image_link).exists()


def test_a_second_seed_that_has_begun_does_not_change_a_finished_result(filled, tmp_path):
    small, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    before = [(row.final, row.best) for row in outcomes(small, "digits,6", root)]
    list(fill(cells(small, root, seeds=2, only="digits,6,fedpac"), rounds=2))
    rows = outcomes(small, "digits,6", root)
    assert [(row.final, row.best) for row in rows] == before
    assert [run.seed for run in rows[0].begun] == [1]
    write_page([small], root, tmp_path / "docs" / "results.md")
    assert "| 6 | 1, 1 more begun |" in (tmp_path / "docs" / "results.md").read_text()
    assert '"digits,6",fedpac,FedPAC,1,' in (root / "small.csv").read_text()  # but its numbers are there


def test_a_row_that_lags_behind_does_not_hide_how_the_finished_ones_stand(tmp_path):
    small, root = experiment(tmp_path), tmp_path / "results"
    list(fill(cells(small, root, only="digits,6,fedpac,fedavg")))
    list(fill(cells(small, root, only="digits,6,fedpac-cc"), rounds=2))
    write_page([small], root, tmp_path / "results.md")
    finished = r"FedPAC is number \d of 3 in round 6, seed 0, [^;]*"
    remark = finished + r"; with the rows that are not finished, number \d of 4 in round 2, seed 0,"
    assert re.search(remark, (tmp_path / "results.md").read_text())
    svg = next(path for path in draw(small, root, tmp_path / "results.md") if path.suffix == ".svg").read_text()
    assert "<!-- without alignment (received, round 2) -->" in svg
    assert "<!-- FedPAC (received) -->" in svg


def test_an_unfinished_number_says_its_round(tmp_path):
    small = experiment(tmp_path)
    list(fill(cells(small, tmp_path / "results", only="digits,6,fedpac"), rounds=4))
    write_page([small], tmp_path / "results", tmp_path / "results.md")
    assert re.search(r"\| FedPAC \| .* received, round 4 \| \(", (tmp_path / "results.md").read_text())


def test_figures_of_a_sweep_and_of_short_runs(filled, tmp_path):
    """A sweep says what it is of, and heat maps of runs that are shorter than the paper's are drawn all the same."""
    _, root = filled
    swept = experiment(tmp_path, TABLE.replace('shows = "table"', 'shows = "sweep"\naxis = "s"'))
    svg = next(path for path in draw(swept, root, tmp_path / "results.md") if path.suffix == ".svg").read_text()
    assert "<!-- Digits, 6 clients, seed 0 -->" in svg
    for path in root.glob("*/*/environment.json"):
        copy = tmp_path / "stand-in" / path.relative_to(root)
        shutil.copytree(path.parent, copy.parent)
        copy.write_text(json.dumps(json.loads(path.read_text()) | {"note": "stand-in: 7 images"}))
    svg = next(path for path in draw(swept, tmp_path / "stand-in", tmp_path / "results.md") if path.suffix == ".svg")
    assert "<!-- Digits, 6 clients (stand-in data), seed 0 -->" in svg.read_text()
    one = re.sub(r"fed(avg|pac-).*\n", "", TABLE.replace(", fedavg-ft = 99.99", "")).replace('"table"', '"weights"')
    assert draw(experiment(tmp_path, one), root, tmp_path / "results.md")


def test_a_folder_that_is_damaged_or_anothers_is_named_and_hides_nothing_else(filled, tmp_path):
    small, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    (root / "digits-6" / "fedavg-seed0" / "metrics.csv").write_text("a,b\n1,2\n")
    config = root / "digits-6-s80" / "fedpac-seed0" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 1", "epochs = 2"))
    write_page([small], root, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert len(re.findall(r"\| FedAvg(-FT)? \|.*its folder is unusable", text)) == 2
    assert re.search(r"\| FedPAC \|.*its folder is unusable", text)
    assert "5 of 6 runs, 1 unusable" in text  # the damaged one has all its rounds
    assert re.search(r"\| FedPAC \| 12\.34 \| \d\d\.\d\d received", text)


def test_points_of_a_sweep_are_of_the_same_seeds(filled, tmp_path):
    _, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    swept = experiment(tmp_path, TABLE.replace('shows = "table"', 'shows = "sweep"\naxis = "s"'))
    page = tmp_path / "results.md"
    one = next(path for path in draw(swept, root, page) if path.suffix == ".svg").read_bytes()
    list(fill(cells(swept, root, seeds=2, only="digits,6,fedpac")))  # a second seed of one point
    assert next(path for path in draw(swept, root, page) if path.suffix == ".svg").read_bytes() == one


def test_a_tie_is_no_loss_and_ways_of_one_method_are_not_ranked(filled, tmp_path):
    _, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    page = tmp_path / "page.md"
    for name in ("metrics.csv", "rounds.csv"):
        shutil.copy(root / "digits-6" / "fedpac-seed0" / name, root / "digits-6" / "fedavg-seed0" / name)
    shutil.rmtree(root / "digits-6" / "fedpac-cc-seed0")
    text = re.sub(r"fedavg-ft = \{.*\n", "", TABLE).replace(", fedavg-ft = 99.99", "")
    write_page([experiment(tmp_path, text)], root, page)
    assert "FedPAC is number 1 of 2 in round 6, seed 0, level with another" in page.read_text()
    ways = re.sub(r"fedavg.*\n", "", text)
    write_page([experiment(tmp_path, ways)], root, page)
    assert "FedPAC is number" not in page.read_text()
