"""What is shown of runs, from a few of them on tiny data."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from fedpac.config import changed, make_config
from fedpac.data.scenario import build, describe
from fedpac.errors import RunError
from fedpac.methods import methods
from fedpac.runs import bubbles, figures, style, tables
from fedpac.runs.anatomy import dissect
from fedpac.runs.run import run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """FedPAC with two seeds and FedAvg, six clients in the digits' five groups."""
    root = tmp_path_factory.mktemp("runs")
    for method, seed in (("fedpac", 0), ("fedpac", 1), ("fedavg", 0)):
        config = make_config(
            {
                "method": method,
                "model": "logistic",
                "data": {"dataset": "digits", "clients": 6, "samples": 10, "test_samples": 10},
                "training": {"epochs": 1},
                "run": {"rounds": 3, "seed": seed, "evaluate_every": 1, "engine": "serial"},
            }
        )
        run(config, root / f"{method}{seed}")
    return root


def test_rows_agree_with_the_csv(runs):
    rows = tables.compare(tables.read_runs([runs]))
    assert [(row["method"], row["seeds"]) for row in rows] == [("FedAvg", "0"), ("FedPAC", "0, 1")]
    means = []
    for seed in (0, 1):
        with (runs / f"fedpac{seed}" / "metrics.csv").open() as file:
            final = [r for r in csv.DictReader(file) if r["round"] == "3" and r["split"] == "received"]
        means.append(np.mean([float(r["accuracy"]) for r in final]))
    assert rows[1]["received"] == f"{100 * np.mean(means):.2f} ± {100 * np.std(means, ddof=1):.2f}"


def test_summary_is_what_the_table_says(runs):
    written = json.loads((runs / "fedavg0" / "summary.json").read_text())
    shown = json.loads(json.dumps(tables.summarise(tables.read_run(runs / "fedavg0"))))
    assert {key: written[key] for key in shown} == shown
    assert written.keys() - shown.keys() == {"command", "commit", "versions", "kernels", "machine", "resumed"}


def test_describe_by_hand():
    shown = tables.describe(np.array([0.5, 1.0, 0.0, 0.5]), np.array([1.0, 3.0, 0.0, 0.0]))
    assert shown == {"mean": 0.5, "std": pytest.approx(0.125**0.5), "worst_decile": 0.0, "weighted_mean": 0.875}


def test_csv_has_all_digits_and_reads_back(runs):
    data = tables.read_runs([runs])
    rows = list(csv.DictReader(io.StringIO(tables.csv_text(*tables.exact_rows(data)))))
    assert len(rows) == 3
    assert float(rows[0]["personal_best_mean"]) == tables.summarise(data[0])["personal"]["best"]["mean"]


def test_markdown_is_a_table(runs):
    text = tables.markdown(tables.compare(tables.read_runs([runs])), tables.COLUMNS)
    lines = text.splitlines()
    assert {line.count("|") for line in lines} == {len(tables.COLUMNS) + 1}


def test_an_unfinished_run_can_be_looked_at(runs, tmp_path):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    (folder / "summary.json").unlink()
    for name in ("metrics.csv", "rounds.csv"):
        kept = [line for line in (folder / name).read_text().splitlines() if not line.startswith("3,")]
        (folder / name).write_text("\n".join(kept) + "\n")
    assert tables.compare([tables.read_run(folder)])[0]["rounds"] == "2 of 3"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.csv", "round,client,split,accuracy,loss\n", "no evaluated round yet"),
        ("metrics.csv", "a,b\n1,2\n", "has the columns a,b; expected round,client"),
        ("metrics.csv", "round,client,split,accuracy,loss\n1,0,received,good,1\n", "cannot be read as a run"),
        ("clients.csv", None, "clients.csv is missing"),
        ("environment.json", "{", "is damaged"),
        ("config.toml", None, "holds no run"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(runs, tmp_path, name, content, message):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(RunError, match=message):
        tables.read_run(folder)


def tiny(folder, **changes):
    """A run of two rounds; changes are keys of the config with __ for the dot."""
    values = {
        "method": "fedavg",
        "model": "logistic",
        "data": {"dataset": "digits", "clients": 4, "samples": 10, "test_samples": 10},
        "training": {"epochs": 1},
        "run": {"rounds": 2, "evaluate_every": 1, "engine": "serial"},
    }
    for key, value in changes.items():
        values = changed(values, key.replace("__", "."), value)
    run(make_config(values), folder)


def test_runs_of_one_method_are_grouped_by_what_is_different(tmp_path):
    """Two learning rates with two seeds each are two rows, wherever the folders are and whatever they are called."""
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            tiny(tmp_path / f"{lr}" / f"fedavg-seed{seed}", training__lr=lr, run__seed=seed)
    tiny(tmp_path / "other" / "local", method="local")
    data = tables.read_runs([tmp_path / "0.1", tmp_path / "0.2", tmp_path / "other"])
    rows = tables.compare(data)
    assert [(row["method"], row["seeds"]) for row in rows] == [
        ("FedAvg (lr=0.1)", "0, 1"), ("FedAvg (lr=0.2)", "0, 1"), ("Local-only", "0"),
    ]  # fmt: skip
    written = figures.draw_comparison(data, tmp_path / "figures")
    svg = next(path for path in written if path.name == "accuracy.svg").read_text()
    assert all(f"<!-- {row['method']} -->" in svg for row in rows)


def test_a_long_difference_is_told_by_the_folder(tmp_path):
    tiny(tmp_path / "a" / "fedavg")
    tiny(tmp_path / "b" / "fedavg", training__lr=0.5, training__epochs=2, data__s=50, data__clients=5, run__rounds=3)
    names = tables.together(tables.read_runs([tmp_path / "a", tmp_path / "b"]))
    assert list(names) == ["FedAvg (a/fedavg)", "FedAvg (b/fedavg)"]


def test_a_stand_in_is_never_a_seed_of_the_published_data(tmp_path):
    for seed in (0, 1):
        tiny(tmp_path / f"run{seed}", run__seed=seed)
    path = tmp_path / "run1" / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "stand-in: 7 images"}))
    assert len(tables.compare(tables.read_runs([tmp_path]))) == 2


def test_every_setting_of_a_comparison_has_its_own_file(tmp_path):
    for clients in (4, 6):
        tiny(tmp_path / f"run{clients}", data__clients=clients)
    written = figures.draw_comparison(tables.read_runs([tmp_path]), tmp_path / "figures")
    assert len(set(written)) == len(written) == 8


def test_a_method_looks_the_same_in_every_figure():
    every = list(methods())
    assert len(set(style.looks(every))) == len(every)
    alone = dict(zip(every, [style.looks([name])[0] for name in every], strict=True))
    assert style.looks(["ditto", "fedpac", "local"]) == [alone["ditto"], alone["fedpac"], alone["local"]]
    twice = style.looks(["fedpac", "fedpac", "of.my:Own"])
    assert twice[0] == alone["fedpac"]
    assert len(set(twice)) == 3
    assert len({colour for colour, _ in style.looks(style.FIRST)}) == len(style.FIRST)


def test_nothing_to_compare():
    with pytest.raises(RunError, match="no runs to compare"):
        tables.compare([])


def test_every_figure_is_a_picture_with_ink(runs, tmp_path):
    data = tables.read_runs([runs])
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
    data = tables.read_runs([runs])
    for folder in ("a", "b"):
        figures.accuracy_curves(data, tmp_path / folder / "curves.png")
    assert (tmp_path / "a" / "curves.svg").read_bytes() == (tmp_path / "b" / "curves.svg").read_bytes()


def test_heat_map_rounds(runs):
    data = tables.read_run(runs / "fedpac0")
    assert figures.heatmap_rounds(data, None) == [1, 2, 3]
    assert figures.heatmap_rounds(data, [2]) == [2]
    with pytest.raises(RunError, match="no weights of round 9; it has 1 to 3"):
        figures.heatmap_rounds(data, [9])
    with pytest.raises(RunError, match="FedAvg records no weights"):
        figures.heatmap_rounds(tables.read_run(runs / "fedavg0"), None)


def test_clients_are_ordered_by_group_and_weights_follow(runs):
    data = tables.read_run(runs / "fedpac0")
    assert figures.by_group(data) == [0, 5, 1, 2, 3, 4]  # client 5 is in the group of client 0
    lines = figures.heatmap_text(data)
    assert [len(line) for line in lines] == [12] * 6
    for matrix in data.peer_weights.values():
        assert matrix.sum(axis=1) == pytest.approx(np.ones(6))


def test_the_run_knows_what_its_clients_hold(runs):
    data = tables.read_run(runs / "fedpac1")
    config = make_config(data.config)
    assert data.class_counts.tolist() == describe(build(config.data, 1)).tolist()


@pytest.mark.parametrize("clients", [100, 101, 296, 1000])  # of 296, every fifth would be one group
def test_of_many_clients_a_sample_is_drawn(tmp_path, clients):
    counts = np.ones((clients, 3), int)
    groups = [i % 5 for i in range(clients)]
    bubbles.bubble_plot(counts, "many", tmp_path / "b.png", groups)
    label = f"60 of {clients:,} clients, coloured by group"
    assert (label in (tmp_path / "b.svg").read_text()) == (clients > 100)
    drawn = bubbles._drawn(clients, groups)
    assert drawn == sorted(set(drawn))
    assert len(drawn) == (100 if clients == 100 else 60)
    assert np.ptp(np.bincount([groups[i] for i in drawn], minlength=5)) <= 2
    assert len(bubbles._drawn(clients, ())) == len(bubbles._drawn(clients, [None] * clients)) == len(drawn)


NUMBERS = 117_066  # weights of the paper's network for 28 x 28 images
HEAD = 1_290


@pytest.mark.parametrize(
    ("name", "down", "up", "passes"),
    [
        ("fedavg", 4 * NUMBERS, 4 * NUMBERS + 8, {"full": 5}),
        ("fedper", 4 * (NUMBERS - HEAD), 4 * (NUMBERS - HEAD) + 8, {"full": 5}),
        ("local", 0, 8, {"full": 5}),
    ],
)
def test_the_measured_cost_is_the_one_on_paper(name, down, up, passes):
    anatomy = dissect(methods()[name]())
    assert (anatomy.bytes_down, anatomy.bytes_up, anatomy.training) == (down, up, passes)


def test_fedpac_is_measured_with_its_centroids():
    anatomy = dissect(methods()["fedpac"]())
    assert {"w", "head", "centroids"} <= anatomy.down.keys()
    assert anatomy.training == {"full": 5, "head": 1, "forward": 2}
    assert anatomy.on_client == {}
    assert "head.<i>" in anatomy.on_server
