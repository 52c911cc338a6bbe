"""What is read of run folders, and which of them are seeds of one experiment."""

import json
import shutil

import numpy as np
import pytest

from fedpac.errors import NotEvaluatedError, RunError
from fedpac.report import comparison, figures
from fedpac.runs.folder import ROUNDS
from fedpac.runs.read import read_run, read_runs
from fedpac.runs.seeds import together
from fedpac.runs.summary import over_clients, summarise
from small_run import tiny


def test_summary_is_what_the_table_says(runs):
    written = json.loads((runs / "fedavg0" / "summary.json").read_text())
    shown = json.loads(json.dumps(summarise(read_run(runs / "fedavg0"))))
    assert {key: written[key] for key in shown} == shown
    assert written.keys() - shown.keys() == {"command", "commit", "versions", "kernels", "machine", "resumed"}


def test_describe_by_hand():
    shown = over_clients(np.array([0.5, 1.0, 0.0, 0.5]), np.array([1.0, 3.0, 0.0, 0.0]))
    assert shown == {"mean": 0.5, "std": pytest.approx(0.125**0.5), "worst_decile": 0.0, "weighted_mean": 0.875}


def test_an_unfinished_run_can_be_looked_at(runs, tmp_path):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    (folder / "summary.json").unlink()
    for name in ("metrics.csv", "rounds.csv"):
        kept = [line for line in (folder / name).read_text().splitlines() if not line.startswith("3,")]
        (folder / name).write_text("\n".join(kept) + "\n")
    assert comparison.compare([read_run(folder)])[0]["rounds"] == "2 of 3"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.csv", "round,client,split,accuracy,loss\n", "no evaluated round yet"),
        ("metrics.csv", "a,b\n1,2\n", "has the columns a,b; expected round,client"),
        ("metrics.csv", "round,client,split,accuracy,loss\n1,0,received,good,1\n", "cannot be read as a run"),
        ("clients.csv", None, "clients.csv is missing"),
        ("clients.csv", "client,name,group,train,test,class_0\n0,a,,many,3,1\n", "cannot be read as a run"),
        ("rounds.csv", ",".join(ROUNDS) + "\n1,2,x,1,1,1\n", "cannot be read as a run"),
        ("environment.json", "{", "is damaged"),
        ("environment.json", "[]", "is damaged"),
        ("config.toml", None, "is not a run folder"),
        ("config.toml", 'model = "paper"\n[method]\nname = "fedavg"\n', "config.toml lacks data.dataset"),
        ("clients.csv", "client,name,group,train,test,class_0\n1,a,,3,3,3\n0,b,,3,3,3\n", "0, 1, ... in order"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(runs, tmp_path, name, content, message):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(RunError, match=message):
        read_run(folder)


def rewritten(folder, change):
    """The folder's metrics.csv with its rows changed."""
    header, *rows = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join([header, *change(rows)]))
    return folder


def test_accuracies_belong_to_the_client_that_the_row_names(runs, tmp_path):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    before = read_run(folder).accuracy
    after = read_run(rewritten(folder, lambda rows: rows[::-1])).accuracy
    for which in before:
        assert sorted(after[which]) == sorted(before[which])
        assert all((after[which][t] == before[which][t]).all() for t in before[which])
    assert len(set(before["received"][3])) > 1, "all clients are equal: nothing was tested"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [*rows, rows[0]], "round 1: client 0 occurs twice .personal"),
        (lambda rows: rows[1:], "round 1: client 0 is missing .personal"),
        (lambda rows: [rows[0].replace("1,0,", "1,9,"), *rows[1:]], "no client 9"),
        (lambda rows: [rows[0].replace("1,0,", "1,-1,"), *rows[1:]], "no client -1"),
        (lambda rows: [rows[0].replace("personal", "persona"), *rows[1:]], "split 'persona'"),
    ],
    ids=["twice", "missing", "beyond", "negative", "split"],
)
def test_rows_that_do_not_fit_the_clients_are_refused(runs, tmp_path, change, message):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    with pytest.raises(RunError, match=message):
        read_run(rewritten(folder, change))


def test_a_last_round_that_was_cut_off_is_left_out(runs, tmp_path):
    folder = shutil.copytree(runs / "fedavg0", tmp_path / "run")
    assert sorted(read_run(rewritten(folder, lambda rows: rows[:-1])).accuracy["received"]) == [1, 2]


def test_runs_of_one_method_are_grouped_by_what_is_different(tmp_path):
    """Two learning rates with two seeds each are two rows, wherever the folders are and whatever they are called."""
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            tiny(tmp_path / f"{lr}" / f"fedavg-seed{seed}", training__lr=lr, run__seed=seed)
    tiny(tmp_path / "other" / "local", method="local")
    data = read_runs([tmp_path / "0.1", tmp_path / "0.2", tmp_path / "other"])
    rows = comparison.compare(data)
    assert [(row["method"], row["seeds"]) for row in rows] == [
        ("FedAvg (lr=0.1)", "0, 1"), ("FedAvg (lr=0.2)", "0, 1"), ("Local-only", "0"),
    ]  # fmt: skip
    written = figures.draw_comparison(data, tmp_path / "figures")
    svg = next(path for path in written if path.name == "accuracy.svg").read_text()
    assert all(f"<!-- {row['method']} -->" in svg for row in rows)


def test_a_long_difference_is_told_by_the_folder(tmp_path):
    tiny(tmp_path / "a" / "fedavg")
    tiny(tmp_path / "b" / "fedavg", training__lr=0.5, training__epochs=2, data__s=50, data__clients=5, run__rounds=3)
    names = together(read_runs([tmp_path / "a", tmp_path / "b"]))
    assert list(names) == ["FedAvg (a/fedavg)", "FedAvg (b/fedavg)"]


def test_a_stand_in_is_never_a_seed_of_the_published_data(tmp_path):
    for seed in (0, 1):
        tiny(tmp_path / f"run{seed}", run__seed=seed)
    path = tmp_path / "run1" / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "stand-in: 7 images"}))
    assert len(comparison.compare(read_runs([tmp_path]))) == 2


def cut(folder, rounds):
    """As if the run had been left after that round."""
    (folder / "summary.json").unlink()
    for name in ("metrics.csv", "rounds.csv", "weights.csv"):
        header, *lines = (folder / name).read_text().splitlines()
        kept = [line for line in lines if int(line.split(",")[0]) <= rounds]
        (folder / name).write_text("\n".join([header, *kept]) + "\n")


def test_a_setting_that_is_younger_than_a_run_does_not_part_it_from_its_seeds(runs, tmp_path):
    for seed in (0, 1):
        shutil.copytree(runs / f"fedpac{seed}", tmp_path / f"{seed}")
    config = tmp_path / "1" / "config.toml"
    config.write_text(config.read_text().replace("augmented = false\n", ""))
    assert "augmented" not in config.read_text()
    ((name, same),) = together(read_runs([tmp_path])).items()
    assert (name, [run.seed for run in same]) == ("FedPAC", [0, 1])


def test_a_begun_seed_is_left_out_beside_finished_ones_and_named(runs, tmp_path):
    for seed in (0, 1):
        shutil.copytree(runs / f"fedpac{seed}", tmp_path / f"{seed}")
    cut(tmp_path / "1", 1)
    data = read_runs([tmp_path])
    (row,) = comparison.compare(data)
    (alone,) = comparison.compare(data[:1])
    assert (row["received"], row["seeds"], row["rounds"]) == (alone["received"], "0", "3")
    assert any(f"{tmp_path / '1'} is at round 1 of 3 and was skipped" in note for note in comparison.notes(data))
    assert figures.draw_comparison(data, tmp_path / "figures")  # the curve of the finished one


def test_the_same_seed_twice_is_two_rows(runs, tmp_path):
    for name in ("old", "new"):
        shutil.copytree(runs / "fedavg0", tmp_path / name)
    rows = comparison.compare(read_runs([tmp_path]))
    assert [(row["method"], row["seeds"]) for row in rows] == [("FedAvg (new)", "0"), ("FedAvg (old)", "0")]


def test_a_run_that_has_only_just_begun_keeps_no_other_from_being_shown(runs, tmp_path):
    for name in ("fedavg0", "fedpac0"):
        shutil.copytree(runs / name, tmp_path / name)
    cut(tmp_path / "fedpac0", 0)
    told = []
    assert [run.path.name for run in read_runs([tmp_path], skipped=told.append)] == ["fedavg0"]
    assert "no evaluated round yet" in str(told)
    with pytest.raises(NotEvaluatedError, match="no evaluated round yet"):
        read_runs([tmp_path / "fedpac0"], skipped=told.append)  # asked for by name
