"""Numbers instead of classes, from files to predictions: tables, npz files, and what is said of them."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

import fedpac as library
from fedpac.data.table_sites import from_tables
from fedpac.methods import list_methods

QUICK = ["--engine", "serial", "--no-figures", "--model", "mlp", "--set", "run.evaluate_every=2"]
FIT = ["--rounds", "6", "--set", "training.lr=0.05", "--set", "training.batch=10"]


def rows(seed: int, n: int = 80) -> pd.DataFrame:
    """A length of stay in days, far from mean 0 and standard deviation 1."""
    random = np.random.default_rng(seed)
    age, ward = random.normal(60, 15, n), random.choice(["A", "B"], n)
    stay = 500 + 8 * age + 120 * (ward == "B") + random.normal(0, 10, n)
    return pd.DataFrame({"patient": [f"{seed}-{i}" for i in range(n)], "age": age, "ward": ward, "stay": stay.round(2)})


@pytest.fixture
def tables(tmp_path, fedpac):
    rows(0).to_csv("north.csv", index=False)
    rows(1).set_index("patient").reset_index().iloc[::-1].to_parquet("south.parquet")  # with an index of pandas's
    assert fedpac("data", "describe", "north.csv", "south.parquet", "--target", "stay", "--out", "schema.toml")[0] == 0
    return Path("schema.toml")


def test_tables_with_a_number_from_schema_to_predictions(fedpac, tables):
    text = tables.read_text()
    assert 'target_type = "number"' in text
    assert "classes" not in text
    assert "__index_level_0__" not in text
    for method in ("ditto", "local"):
        how = ["--tables", "schema.toml", "--method", method, "--validation", "0.2", "--metrics", "mae,mse,r2"]
        code, shown, complaint = fedpac("run", *QUICK, *FIT, *how, "--out", f"runs/{method}")
        assert (code, complaint) == (0, "")
        assert "test R²" in shown
        assert "%" not in shown.split("test R²")[1].split("MB up")[0]
    summary = json.loads(Path("runs/ditto/summary.json").read_text())
    assert summary["metric"] == "r2"
    assert summary["personal"]["selected"]["by"] == "validation/r2"
    assert 0.9 < summary["personal"]["final"]["mean"] <= 1
    assert Path("runs/ditto/metrics.csv").read_text().startswith("round,client,split,r2,loss\n")

    code, shown, _ = fedpac("compare", "runs/ditto", "runs/local", "--per-client", "--out", "comparison")
    assert code == 0
    assert "personal R²" in shown
    assert "Final test R²" in shown
    assert Path("comparison/r2.png").exists()
    assert fedpac("report", "runs/ditto", "runs/local", "--out", "report.html")[0] == 0
    assert '"measure":{"name":"r2","title":"R\\u00b2"' in Path("report.html").read_text()

    code, shown, complaint = fedpac("export", "runs/ditto", "--client", "south", "--selected", "--out", "model")
    assert (code, complaint) == (0, "")
    assert "onnxruntime predicts the same as torch" in shown
    rows(7, 20).to_csv("new.csv", index=False)
    code, shown, told = fedpac("predict", "model", "new.csv")
    assert code == 0
    read = list(csv.DictReader(shown.splitlines()))
    assert read[0].keys() == {"row", "stay"}
    predicted, true = np.array([float(row["stay"]) for row in read]), rows(7, 20)["stay"]
    assert r2_score(true, predicted) > 0.9
    (error,) = re.findall(r"mae ([\d.]+) of 20 samples", told)
    assert float(error) == pytest.approx(mean_absolute_error(true, predicted), rel=1e-3)

    new = rows(7, 20)
    feed = {"age": new[["age"]].to_numpy(), "ward": new[["ward"]].to_numpy(dtype=object)}
    (value,) = onnxruntime.InferenceSession("model/model.onnx").run(["value"], feed)
    np.testing.assert_allclose(value[:, 0], predicted, rtol=1e-5)


def test_errors_are_in_the_target_s_own_units(fedpac, tables):
    """Though the network learns a number of mean 0 and standard deviation 1."""
    fedpac("run", *QUICK, *FIT, "--tables", "schema.toml", "--method", "fedavg", "--metrics", "mae,mse", "--out", "run")
    scenario = from_tables("schema.toml")
    model = library.load_run("run").models[0]
    x, y = (part.numpy() for part in scenario.clients[0].test.tensors())
    fitted = scenario.preprocessing.predicted
    assert abs(fitted.mean - 1040) < 40
    true, found = y * fitted.scale + fitted.mean, model.predict(x)
    with Path("run/scores.csv").open() as file:
        last = {row["metric"]: float(row["value"]) for row in csv.DictReader(file)
                if (row["round"], row["client"], row["split"]) == ("6", "0", "received")}  # fmt: skip
    assert last["mae"] == pytest.approx(mean_absolute_error(true, found), rel=1e-4)
    assert last["mse"] == pytest.approx(mean_squared_error(true, found), rel=1e-4)
    assert model.metrics()["mae"] == pytest.approx(last["mae"], rel=1e-4)


@pytest.mark.parametrize("method", sorted(name for name, cls in list_methods().items() if cls.needs_classes))
def test_methods_that_need_classes_refuse_by_name_and_write_nothing(fedpac, tables, method):
    code, _, complaint = fedpac("run", *QUICK, "--tables", "schema.toml", "--method", method, "--out", "run")
    assert code == 1
    assert f"method {method}: it needs classes" in " ".join(complaint.split())
    assert not Path("run").exists()


@pytest.fixture
def arrays(tmp_path, fedpac):
    random = np.random.default_rng(0)
    Path("clinics").mkdir()
    for name in ("a", "b"):
        x = random.normal(size=(60, 3)).astype("float32")
        np.savez(f"clinics/{name}.npz", x=x, y=x @ [1.0, -2.0, 0.5] + 0.1 * random.normal(size=60))
    return ["--scenario", "natural", "--set", "data.path=clinics"]


def test_npz_files_with_numbers(fedpac, arrays):
    code, _, complaint = fedpac("run", *QUICK, *arrays, "--method", "fedrep", "--out", "run")
    assert code == 1
    assert "set data.target=number" in " ".join(complaint.split())
    arrays = [*arrays, "--set", "data.target=number"]
    results = {}
    for engine in ("serial", "process"):
        how = [*QUICK, *FIT, *arrays, "--method", "fedrep", "--engine", engine, "--validation", "0.2"]
        code, _, complaint = fedpac("run", *how, "--track", f"{engine}.jsonl", "--out", engine)
        assert (code, complaint) == (0, "")
        results[engine] = [Path(engine, name).read_bytes() for name in ("metrics.csv", "scores.csv")]
    assert results["serial"] == results["process"]
    assert '"received/test/r2"' in Path("serial.jsonl").read_text()
    x = np.load("clinics/a.npz")["x"]
    np.savez("new.npz", x=x, y=np.load("clinics/a.npz")["y"])
    code, shown, told = fedpac("predict", "serial", "new.npz", "--client", "a")
    assert code == 0
    assert shown.startswith("row,value\n")
    assert told.startswith("r2 0.")
    best = LinearRegression().fit(x, np.load("clinics/a.npz")["y"]).predict(x)
    predicted = [float(row["value"]) for row in csv.DictReader(shown.splitlines())]
    assert np.corrcoef(predicted, best)[0, 1] > 0.95
    code, shown, _ = fedpac("data", *arrays)
    assert "with a number to predict" in shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--scenario", "dirichlet"], "scenario 'dirichlet' deals samples out by class"),
        (["--metrics", "auroc"], "there is no regression metric 'auroc'"),
        (["--set", "hostile.attack=label-flip"], "hostile.attack = 'label-flip' turns classes round"),
        (["--set", "training.label_smoothing=0.1"], "but this task is regression"),
    ],
)
def test_what_makes_no_sense_for_numbers_is_refused(fedpac, arrays, given, expected):
    how = [*QUICK, *arrays, "--set", "data.target=number", "--method", "fedavg", "--rounds", "1"]
    code, _, complaint = fedpac("run", *how, *given, "--out", "run")
    assert code == 1
    assert expected in " ".join(complaint.split())
    assert not Path("run").exists()


def test_numbers_and_classes_are_not_compared(fedpac, arrays):
    how = [*QUICK, "--rounds", "1", "--method", "fedavg"]
    fedpac("run", *how, *arrays, "--set", "data.target=number", "--out", "runs/numbers")
    fedpac("run", *how, "--dataset", "digits", "--clients", "2", "--model", "logistic", "--out", "runs/classes")
    code, _, complaint = fedpac("compare", "runs/numbers", "runs/classes")
    assert code == 1
    assert "judged by R² and runs/classes by accuracy" in " ".join(complaint.split())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ('classes = ["a", "b"]\ntarget_type = "number"', "leave one of them out"),
        ("", 'or say target_type = "number"'),
        ('target_type = "numbr"', "target_type"),
    ],
)
def test_a_schema_says_one_thing_of_its_target(fedpac, tables, change, expected):
    tables.write_text(tables.read_text().replace('target_type = "number"', change))
    code, _, complaint = fedpac("run", *QUICK, "--tables", "schema.toml", "--method", "fedavg", "--out", "run")
    assert code == 1
    assert expected in " ".join(complaint.split())
