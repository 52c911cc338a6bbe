"""The page of results and its figures, from a table of our own."""

import json
import re
import shutil

import pytest
from PIL import Image

from fedpac.report.drawing import draw
from fedpac.report.order import comparisons
from fedpac.report.page import write_page
from fedpac.runs.read import read_run
from fedpac.tables.cells import fill
from small_table import TABLE, cells_of, experiment, filled_table


def test_the_page_sets_ours_beside_the_papers(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "digits-6-s80" / "fedavg-seed0")
    page = tmp_path / "docs" / "results.md"
    write_page([filled_table(small, tmp_path / "results")], page)
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


def test_the_page_counts_where_the_order_is_the_papers(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    table = filled_table(small, tmp_path / "results")
    lead = {row.row: row.final for row in table.rows["digits,6"]}
    lead = lead["fedpac"] - lead["fedavg-ft"]
    (one,) = comparisons([table, table])  # a comparison that two tables show is one; fedpac-cc is no rival
    assert (one.rival, one.paper) == ("FedAvg-FT", pytest.approx(12.34 - 99.99))
    assert one.lead == pytest.approx(lead)
    write_page([table], tmp_path / "page.md")
    other = f"Digits, 6 clients ({lead:+.2f}, -87.65)" if lead > 0 else ""
    agreed = int(lead < 0)
    text = (tmp_path / "page.md").read_text()
    assert f"| **FedPAC and all rivals** | 1 | 1 | {agreed} | {1 - agreed} |" in text
    assert f"| FedPAC and FedAvg-FT | 1 | 1 | {agreed} | {other} |" in text

    shutil.rmtree(tmp_path / "results" / "digits-6" / "fedavg-seed0")  # FedAvg-FT is its by-product
    write_page([filled_table(small, tmp_path / "results")], tmp_path / "page.md")
    assert "FedPAC and" not in (tmp_path / "page.md").read_text()


def test_unfinished_runs_are_shown_as_such(tmp_path):
    small = experiment(tmp_path)
    wanted = cells_of(small, tmp_path, only="digits,6")
    list(fill(wanted[:1]))
    list(fill(wanted[1:2], rounds=3))
    write_page([filled_table(small, tmp_path)], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "round 2, seed 0 %" in text  # the last evaluated round that both have
    row = next(line for line in text.splitlines() if line.startswith("| FedAvg-FT |"))
    assert "2 of 6" in row
    assert re.search(r"\([+-]\d+\.\d\d\)", row)
    assert "1 of 6 runs, 1 more begun" in text


def test_several_seeds_are_a_mean_and_a_spread(filled, tmp_path):
    small, root = filled
    shutil.copytree(root, tmp_path / "results")
    list(fill(cells_of(small, tmp_path / "results", seeds=2, only="digits,6,fedpac")))
    write_page([filled_table(small, tmp_path / "results")], tmp_path / "page.md")
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
    write_page([filled_table(small, tmp_path / "results")], tmp_path / "page.md")
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
        list(fill(cells_of(small, root, only="fedpac")))
    else:
        small = experiment(tmp_path, text)
    written = draw(filled_table(small, root), tmp_path / "docs" / "results.md")
    assert {path.suffix for path in written} == {".png" if shows == "weights" else ".svg"}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert image.width > 500
        else:
            assert path.read_text().rstrip().endswith("</svg>")
    write_page([filled_table(small, root)], tmp_path / "docs" / "results.md")
    for image_link in re.findall(r"\]\((img/[^)]+)\)", (tmp_path / "docs" / "results.md").read_text()):
        assert (tmp_path / "docs" / image_link).exists()


def test_a_second_seed_that_has_begun_does_not_change_a_finished_result(filled, tmp_path):
    small, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    before = [(row.final, row.best) for row in filled_table(small, root).rows["digits,6"]]
    list(fill(cells_of(small, root, seeds=2, only="digits,6,fedpac"), rounds=2))
    rows = filled_table(small, root).rows["digits,6"]
    assert [(row.final, row.best) for row in rows] == before
    assert [run.seed for run in rows[0].begun] == [1]
    write_page([filled_table(small, root)], tmp_path / "docs" / "results.md")
    assert "| 6 | 1, 1 more begun |" in (tmp_path / "docs" / "results.md").read_text()
    assert '"digits,6",fedpac,FedPAC,1,' in (root / "small.csv").read_text()  # but its numbers are there


def test_a_row_that_lags_behind_does_not_hide_how_the_finished_ones_stand(tmp_path):
    small, root = experiment(tmp_path), tmp_path / "results"
    list(fill(cells_of(small, root, only="digits,6,fedpac,fedavg")))
    list(fill(cells_of(small, root, only="digits,6,fedpac-cc"), rounds=2))
    write_page([filled_table(small, root)], tmp_path / "results.md")
    finished = r"FedPAC is number \d of 3 in round 6, seed 0, [^;]*"
    remark = finished + r"; with the rows that are not finished, number \d of 4 in round 2, seed 0,"
    assert re.search(remark, (tmp_path / "results.md").read_text())
    svg = draw(filled_table(small, root), tmp_path / "results.md")[0].read_text()
    assert "<!-- without alignment (received, round 2) -->" in svg
    assert "<!-- FedPAC (received) -->" in svg


def test_an_unfinished_number_says_its_round(tmp_path):
    small = experiment(tmp_path)
    list(fill(cells_of(small, tmp_path / "results", only="digits,6,fedpac"), rounds=4))
    write_page([filled_table(small, tmp_path / "results")], tmp_path / "results.md")
    assert re.search(r"\| FedPAC \| .* received, round 4 \| \(", (tmp_path / "results.md").read_text())


def test_figures_of_a_sweep_and_of_short_runs(filled, tmp_path):
    """A sweep says what it is of, and heat maps of runs that are shorter than the paper's are drawn all the same."""
    _, root = filled
    swept = experiment(tmp_path, TABLE.replace('shows = "table"', 'shows = "sweep"\naxis = "s"'))
    svg = draw(filled_table(swept, root), tmp_path / "results.md")[0].read_text()
    assert "<!-- Digits, 6 clients, seed 0 -->" in svg
    for path in root.glob("*/*/environment.json"):
        copy = tmp_path / "stand-in" / path.relative_to(root)
        shutil.copytree(path.parent, copy.parent)
        copy.write_text(json.dumps(json.loads(path.read_text()) | {"note": "stand-in: 7 images"}))
    svg = draw(filled_table(swept, tmp_path / "stand-in"), tmp_path / "results.md")[0].read_text()
    assert "<!-- Digits, 6 clients (stand-in data), seed 0 -->" in svg
    one = re.sub(r"fed(avg|pac-).*\n", "", TABLE.replace(", fedavg-ft = 99.99", "")).replace('"table"', '"weights"')
    assert draw(filled_table(experiment(tmp_path, one), root), tmp_path / "results.md")


def test_a_folder_that_is_damaged_or_anothers_is_named_and_hides_nothing_else(filled, tmp_path):
    small, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    (root / "digits-6" / "fedavg-seed0" / "metrics.csv").write_text("a,b\n1,2\n")
    config = root / "digits-6-s80" / "fedpac-seed0" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 1", "epochs = 2"))
    write_page([filled_table(small, root)], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert len(re.findall(r"\| FedAvg(-FT)? \|.*its folder is unusable", text)) == 2
    assert re.search(r"\| FedPAC \|.*its folder is unusable", text)
    assert "4 of 6 runs, 2 unusable" in text
    assert re.search(r"\| FedPAC \| 12\.34 \| \d\d\.\d\d received", text)


def test_points_of_a_sweep_are_of_the_same_seeds(filled, tmp_path):
    _, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    swept = experiment(tmp_path, TABLE.replace('shows = "table"', 'shows = "sweep"\naxis = "s"'))
    page = tmp_path / "results.md"
    (drawn,) = draw(filled_table(swept, root), page)
    one = drawn.read_bytes()
    list(fill(cells_of(swept, root, seeds=2, only="digits,6,fedpac")))  # a second seed of one point
    drawn.unlink()
    assert draw(filled_table(swept, root), page) == [drawn]
    assert drawn.read_bytes() == one


@pytest.mark.parametrize("shows", ["table", "curves", "sweep", "weights"])
def test_a_figure_is_drawn_again_only_if_what_it_shows_has_changed(filled, tmp_path, shows):
    _, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    text = TABLE.replace('shows = "table"', f'shows = "{shows}"\naxis = "s"')
    if shows == "weights":
        text = re.sub(r"fed(avg|pac-).*\n", "", text.replace(", fedavg-ft = 99.99", ""))
    small, page = experiment(tmp_path, text), tmp_path / "results.md"
    drawn = draw(filled_table(small, root), page)
    assert drawn
    before = {path: path.stat().st_mtime_ns for path in drawn}
    for path in root.glob("*/*/environment.json"):  # another machine, another commit: nothing that is shown
        path.write_text(path.read_text().replace("cores", "processors"))
    assert draw(filled_table(small, root), page) == []
    assert {path: path.stat().st_mtime_ns for path in drawn} == before
    name = "weights.csv" if shows == "weights" else "metrics.csv"  # another accuracy, or weight, in the last round
    changed = root / "digits-6" / "fedpac-seed0" / name
    changed.write_text(re.sub(r"^(6,0,\w+),[^,\n]+", r"\1,0.0123", changed.read_text(), flags=re.MULTILINE))
    again = draw(filled_table(small, root), page)
    assert again == [path for path in drawn if path.stem in ("small-digits-6", "small-digits")]
    assert again


def test_a_tie_is_no_loss_and_ways_of_one_method_are_not_ranked(filled, tmp_path):
    _, root = filled
    root = shutil.copytree(root, tmp_path / "results")
    page = tmp_path / "page.md"
    for name in ("metrics.csv", "rounds.csv"):
        shutil.copy(root / "digits-6" / "fedpac-seed0" / name, root / "digits-6" / "fedavg-seed0" / name)
    shutil.rmtree(root / "digits-6" / "fedpac-cc-seed0")
    text = re.sub(r"fedavg-ft = \{.*\n", "", TABLE).replace(", fedavg-ft = 99.99", "")
    write_page([filled_table(experiment(tmp_path, text), root)], page)
    assert "FedPAC is number 1 of 2 in round 6, seed 0, level with another" in page.read_text()
    ways = re.sub(r"fedavg.*\n", "", text)
    write_page([filled_table(experiment(tmp_path, ways), root)], page)
    assert "FedPAC is number" not in page.read_text()
