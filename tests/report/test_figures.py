"""What is shown of runs, from a few of them on tiny data."""

import csv
import io

import numpy as np
import pytest
from PIL import Image

from fedpac.config import make_config
from fedpac.data.scenario import build, describe
from fedpac.errors import RunError
from fedpac.methods import list_methods
from fedpac.report import bubbles, comparison, figures, shown, style, text
from fedpac.report.heatmaps import heatmap_text
from fedpac.report.shown import HeatMaps, by_group, heatmap_rounds
from fedpac.runs.read import read_run, read_runs
from fedpac.runs.run_data import PeerWeights
from fedpac.runs.summary import summarise
from small_run import tiny


def test_rows_agree_with_the_csv(runs):
    rows = comparison.compare(read_runs([runs]))
    assert [(row["method"], row["seeds"]) for row in rows] == [("FedAvg", "0"), ("FedPAC", "0, 1")]
    means = []
    for seed in (0, 1):
        with (runs / f"fedpac{seed}" / "metrics.csv").open() as file:
            final = [r for r in csv.DictReader(file) if r["round"] == "3" and r["split"] == "received"]
        means.append(np.mean([float(r["accuracy"]) for r in final]))
    assert rows[1]["received"] == f"{100 * np.mean(means):.2f} ± {100 * np.std(means, ddof=1):.2f}"


def test_csv_has_all_digits_and_reads_back(runs):
    data = read_runs([runs])
    rows = list(csv.DictReader(io.StringIO(text.csv_text(*comparison.exact_rows(data)))))
    assert len(rows) == 3
    assert float(rows[0]["personal_best_mean"]) == summarise(data[0])["personal"]["best"]["mean"]


def test_markdown_is_a_table(runs):
    lines = text.markdown(comparison.compare(read_runs([runs])), comparison.COMPARISON_COLUMNS).splitlines()
    assert {line.count("|") for line in lines} == {len(comparison.COMPARISON_COLUMNS) + 1}


def test_every_setting_of_a_comparison_has_its_own_file(tmp_path):
    for clients in (4, 6):
        tiny(tmp_path / f"run{clients}", data__clients=clients)
    written = figures.draw_comparison(read_runs([tmp_path]), tmp_path / "figures")
    assert len(set(written)) == len(written) == 8


def test_a_method_looks_the_same_in_every_figure():
    every = list(list_methods())
    assert len(set(style.looks(every))) == len(every)
    alone = dict(zip(every, [style.looks([name])[0] for name in every], strict=True))
    assert style.looks(["ditto", "fedpac", "local"]) == [alone["ditto"], alone["fedpac"], alone["local"]]
    twice = style.looks(["fedpac", "fedpac", "of.my:Own"])
    assert twice[0] == alone["fedpac"]
    assert len(set(twice)) == 3
    assert len({colour for colour, _ in style.looks(style.FIRST)}) == len(style.FIRST)


def test_nothing_to_compare():
    with pytest.raises(RunError, match="no runs to compare"):
        comparison.compare([])


def test_every_figure_is_a_picture_with_ink(runs, tmp_path):
    data = read_runs([runs])
    written = figures.draw_run(data[1], tmp_path / "one") + figures.draw_comparison(data, tmp_path / "many")
    assert {p.name for p in written if p.suffix == ".png" and p.parent.name == "one"} == {
        "accuracy.png",
        "clients.png",
        "weights.png",
        "data.png",
    }
    for path in written:
        if path.suffix == ".png":
            pixels = np.asarray(Image.open(path).convert("L"))
            assert min(pixels.shape) > 200
            assert pixels.std() > 5
        else:
            assert path.read_text().rstrip().endswith("</svg>")


def test_equal_runs_give_equal_svg(runs, tmp_path):
    data = read_runs([runs])
    for folder in ("a", "b"):
        style.write_figure(tmp_path / folder / "curves.png", figures.accuracy_curves, data)
    assert (tmp_path / "a" / "curves.svg").read_bytes() == (tmp_path / "b" / "curves.svg").read_bytes()


def test_heat_map_rounds(runs):
    data = read_run(runs / "fedpac0")
    assert heatmap_rounds(data) == [1, 2, 3]
    with pytest.raises(RunError, match="FedAvg records no weights"):
        heatmap_rounds(read_run(runs / "fedavg0"))


def test_clients_are_ordered_by_group_and_weights_follow(runs):
    data = read_run(runs / "fedpac0")
    assert by_group(data) == [0, 5, 1, 2, 3, 4]  # client 5 is in the group of client 0
    lines = heatmap_text(data)
    assert [len(line) for line in lines] == [12] * 6
    for matrix in data.peer_weights.values():
        assert matrix.sum(axis=1) == pytest.approx(np.ones(6))


def test_of_a_crowd_those_who_took_part_are_shown(runs, monkeypatch):
    weights = PeerWeights(100_000, {1: [(7, 7, 0.25), (7, 99_999, 0.75), (99_999, 99_999, 1.0)]})
    assert 1 in weights  # and no matrix of 80 GB was made to find that out
    assert weights.present([1]) == {7, 99_999}
    assert weights.among([99_999, 7], 1).tolist() == [[1, 0], [0.75, 0.25]]

    data = read_run(runs / "fedpac0")
    everybody = HeatMaps.of(data)
    monkeypatch.setattr(shown, "MOST_CLIENTS", 3)
    some = HeatMaps.of(data)
    assert some.clients == everybody.clients[:3]
    assert some.matrices[3].tolist() == everybody.matrices[3][:3, :3].tolist()


def test_the_run_knows_what_its_clients_hold(runs):
    data = read_run(runs / "fedpac1")
    config = make_config(data.config)
    assert data.class_counts.tolist() == describe(build(config.data, 1)).tolist()


@pytest.mark.parametrize("clients", [100, 101, 296, 1000])  # of 296, every fifth would be one group
def test_of_many_clients_a_sample_is_drawn(tmp_path, clients):
    counts = np.ones((clients, 3), int)
    groups = [i % 5 for i in range(clients)]
    style.write_figure(tmp_path / "b.png", bubbles.bubble_plot, counts, "many", groups)
    label = f"60 of {clients:,} clients, coloured by group"
    assert (label in (tmp_path / "b.svg").read_text()) == (clients > 100)
    drawn = bubbles.drawn_of(clients, groups)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == (100 if clients == 100 else 60)
    assert np.ptp(np.bincount([groups[i] for i in drawn], minlength=5)) <= 2
    assert len(bubbles.drawn_of(clients, ())) == len(bubbles.drawn_of(clients, [None] * clients)) == len(drawn)
