"""Models that live without the run and its data: the same predictions, by torch and by onnxruntime."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import fedpac
from environment import lend, run_in
from fedpac.bundles import read_card
from fedpac.bundles.layers import NoTreeError, build, tree_of
from fedpac.data.clients import Scenario
from fedpac.errors import ConfigError, FedpacError, ModelError
from fedpac.methods import list_methods
from fedpac.native import accelerate, plain
from helpers import CLASSES
from odd_models import ODD, drawn

ROOT = Path(__file__).parents[2]
CASES: list[tuple[str, dict[str, object]]] = [(name, {}) for name in list_methods()] + [
    ("fed-rod", {"variant": "hyper"}),
    ("apfl", {"adaptive": True}),
]
SEVERAL = {
    "fed-rod": "two-heads", "fedcp": "divided", "feddbe": "shifted", "fedem": "mixture", "fedem-ft": "mixture",
    "knn-per": "neighbours", "pfedfda": "linear-head",
}  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    return fedpac.Classifier(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3))


def some(seed: int, n: int = 20):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)


CLIENTS = [(*some(i, 30), *some(i + 10)) for i in range(3)]


def trained(method="fedpac", model=None, clients=CLIENTS, **settings):
    return fedpac.fit(
        network() if model is None else model, clients, method, settings=settings, rounds=2, epochs=1, lr=0.05,
        engine="serial",
    )  # fmt: skip


@pytest.mark.parametrize(("method", "settings"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_every_method_exports_and_predicts_the_same(method, settings, tmp_path):
    for which in ("received", "personal") if method in SEVERAL else (list_methods()[method].reported,):
        check_bundle(trained(method, **settings).model(1, which), tmp_path / which)


def check_bundle(model, folder):
    loaded = fedpac.load_model(model.save(folder, onnx=False))
    x, _ = some(99, 50)
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    assert loaded.card.combination.kind == SEVERAL.get(model.method, "network")
    assert loaded.card.metrics["accuracy"] == np.mean(model.predict(CLIENTS[1][2]) == CLIENTS[1][3])
    assert (loaded.card.client, loaded.card.which) == ("client 1", model.which)


@pytest.mark.parametrize("method", ["fedpac", "knn-per", "fedem", "fed-rod"])
def test_onnxruntime_predicts_the_same(method, tmp_path):
    model = trained(method).models[0]
    folder = model.save(tmp_path / "model")
    assert json.loads((folder / "model.json").read_text())["onnx"] == ""
    x, _ = some(99, 50)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    label, proba = session.run(["label", "probabilities"], {"x": x})
    np.testing.assert_allclose(proba, model.predict_proba(x), atol=1e-6)
    assert label.tolist() == model.labels(x)


def test_images_bring_their_normalisation(tmp_path):
    """And the fused blocks are torch's own layers again."""
    random = np.random.default_rng(0)
    data = [(random.integers(0, 256, (12, 28, 28), dtype=np.uint8), np.arange(12) % 3) * 2 for _ in range(2)]
    model = fedpac.Classifier(
        nn.Sequential(nn.Conv2d(1, 2, 5), nn.MaxPool2d(2), nn.LeakyReLU(), nn.Flatten()), nn.Linear(288, 3)
    )
    made = trained("fedavg", model, data).models[0]
    folder = made.save(tmp_path / "model")
    x = data[0][0]
    loaded = fedpac.load_model(folder)
    np.testing.assert_allclose(loaded.predict_proba(x), made.predict_proba(x), atol=1e-6)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedpac"])
    assert about["inputs"] == {"kind": "bytes", "shape": [1, 28, 28], "images": None}
    (_, proba) = session.run(None, {"x": x[:, None]})
    np.testing.assert_allclose(proba, made.predict_proba(x), atol=1e-6)


def test_undoing_the_fusion_gives_torch_s_layers_back():
    block = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.LeakyReLU(0.1), nn.Conv2d(2, 2, 3), nn.ReLU())
    fused = accelerate(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)))
    assert [type(m).__name__ for m in plain(fused)] == ["Conv2d", "MaxPool2d", "ReLU"]
    again = plain(accelerate(block))
    assert [type(m).__name__ for m in again] == ["Conv2d", "MaxPool2d", "LeakyReLU", "Conv2d", "ReLU"]
    assert again[2].negative_slope == 0.1
    assert type(block[0]).__name__ == "FusedConvPool"  # a copy


@pytest.mark.parametrize("kind", list(ODD))
def test_odd_networks_come_back_or_say_that_their_code_is_needed(kind, tmp_path):
    odd = ODD[kind]
    data, model = odd.data(), drawn(odd.make)
    scenario = Scenario(data, CLASSES, tuple(data[0].train.pool.x.shape[1:]), "tiny")
    made = trained("fedavg", model, scenario).models[0]
    folder = made.save(tmp_path / "model", onnx=False)
    x = data[0].test.tensors()[0]
    if read_card(folder).network.kind == "own":
        with pytest.raises(ModelError, match="runs that code"):
            fedpac.load_model(folder)
        loaded = fedpac.load_model(folder, network=model)
    else:
        loaded = fedpac.load_model(folder)
    np.testing.assert_allclose(loaded.predict_proba(x), made.predict_proba(x), atol=1e-6)


class Doubling(nn.Module):
    def forward(self, x):
        return 2 * x


def test_code_of_the_user_s_own_is_never_imported_silently(tmp_path):
    model = network()
    model.body.append(Doubling())
    folder = trained(model=model).models[0].save(tmp_path / "model")
    with pytest.raises(ModelError, match=r"test_bundles.Doubling is not.*loading it runs that code.*pass an instance"):
        fedpac.load_model(folder)
    with pytest.raises(ModelError, match="pass an instance"):
        fedpac.load_model(folder, trust=True)  # nobody knows how it was made
    x, _ = some(99)
    expected = fedpac.load_model(folder, network=model).predict_proba(x)
    _, proba = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"x": x})  # needs no code
    np.testing.assert_allclose(proba, expected, atol=1e-6)
    with pytest.raises(ModelError, match="does not fit the network"):
        fedpac.load_model(folder, network=fedpac.Classifier(nn.Linear(6, 8), nn.Linear(8, 4)))


def test_a_predictor_that_is_nobody_s_says_why_not(tmp_path):
    class Ensemble(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x)

    class Mine(fedpac.FedAvg):
        name = "mine"
        title = "Mine"

        def received(self, client, down):
            return Ensemble(super().received(client, down))

    with pytest.raises(ConfigError, match="Mine predicts with a Ensemble, which a bundle cannot hold"):
        trained(Mine()).models[0].save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_all_clients_at_once_under_their_names(tmp_path):
    scenario = fedpac.from_arrays(CLIENTS, names=["north", "east side", "south/.."])
    folders = trained(clients=scenario).save(tmp_path / "models", licence="CC-BY-4.0", onnx=False)
    assert [folder.name for folder in folders] == ["north", "east-side", "south"]
    assert fedpac.load_model(folders[1]).card.licence == "CC-BY-4.0"
    abroad = fedpac.from_arrays(CLIENTS, names=["Zürich", "a b", "a/b"])
    folders = trained(clients=abroad).save(tmp_path / "abroad", onnx=False)
    assert [folder.name for folder in folders] == ["Zürich", "a-b-1", "a-b-2"]
    assert [fedpac.load_model(folder).card.client for folder in folders] == ["Zürich", "a b", "a/b"]
    with pytest.raises(FedpacError, match="already exists"):
        trained(clients=scenario).save(tmp_path / "models")


def test_a_bundle_is_whole_or_not_there(tmp_path, monkeypatch):
    model = trained().models[0]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpac.bundles.writing.write_atomically", full)
    with pytest.raises(FedpacError, match="the disk is full"):
        model.save(tmp_path / "model", onnx=False)
    assert not list(tmp_path.iterdir())


NEW = """
import sys, json, numpy as np, fedpac
model = fedpac.load_model("model")
np.save("proba.npy", model.predict_proba(np.load("x.npy")))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"onnx", "flwr", "ray", "optuna", "pytest", "cvxpy"}))
"""
NEWER = """
import sys, numpy as np, onnxruntime
label, proba = onnxruntime.InferenceSession("model/model.onnx").run(None, {"x": np.load("x.npy")})
np.save("proba.npy", proba)
print([name for name in ("torch", "fedpac") if name in sys.modules])
"""


def test_a_new_environment_predicts_the_same_numbers(tmp_path):
    """With fedpac's own requirements and nothing else; with onnxruntime and nothing else."""
    model = trained("fedem").models[0]
    model.save(tmp_path / "model")
    x, _ = some(99, 200)
    np.save(tmp_path / "x.npy", x)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    libraries = lend(tmp_path / "libraries", *project["dependencies"])
    assert not (libraries / "pandas").exists()
    assert run_in([libraries, ROOT / "src"], "-c", NEW, cwd=tmp_path).strip() == "[]"
    np.testing.assert_array_equal(
        np.load(tmp_path / "proba.npy"), fedpac.load_model(tmp_path / "model").predict_proba(x)
    )
    small = lend(tmp_path / "small", *project["optional-dependencies"]["runtime"])
    assert not (small / "torch").exists()
    assert run_in([small], "-c", NEWER, cwd=tmp_path).strip() == "[]"
    np.testing.assert_allclose(np.load(tmp_path / "proba.npy"), model.predict_proba(x), atol=1e-6)


# --- trees --------------------------------------------------------------------------------------------------------


def test_a_tree_makes_the_same_network():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, (3, 5), stride=2, padding=(1, 0), bias=False), nn.BatchNorm2d(4, momentum=0.3), nn.GELU("tanh"),
        nn.Sequential(nn.AvgPool2d(2), nn.GroupNorm(2, 4, affine=False)), nn.AdaptiveAvgPool2d(2), nn.Flatten(1),
        nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 2),
    ).eval()  # fmt: skip
    again = build(json.loads(json.dumps(tree_of(network)))).eval()
    assert str(again) == str(network)
    again.load_state_dict(network.state_dict())
    x = torch.randn(2, 3, 20, 20)
    assert torch.equal(again(x), network(x))
    assert str(build(tree_of(nn.Embedding(7, 3, padding_idx=0)))) == "Embedding(7, 3, padding_idx=0)"


@pytest.mark.parametrize("odd", [nn.LSTM(2, 3), nn.Sequential(Doubling()), nn.ModuleDict(), nn.Bilinear(2, 2, 2)])
def test_what_has_no_tree_is_named(odd):
    with pytest.raises(NoTreeError, match="is not one of the supported torch layers"):
        tree_of(odd)


# --- tables -------------------------------------------------------------------------------------------------------


def test_a_table_s_model_takes_raw_rows_and_knows_nothing_of_other_sites(tables):
    folder, result = tables
    loaded = fedpac.load_model(folder / "models" / "south")
    rows = [{"age": "71.5", "ward": "B"}, {"ward": "NA", "age": None}, {"age": 50, "ward": "somewhere else"}]
    np.testing.assert_array_equal(loaded.predict_proba(rows), result.model("south").predict_proba(rows))
    assert loaded.labels(rows)[0] == "yes"
    assert loaded.optional == ("dose",)  # the site does not have it
    with pytest.raises(FedpacError, match="missing column dose"):
        fedpac.load_model(folder / "models" / "north").predict(rows)
    texts = [path.read_text() for path in (folder / "models" / "south").glob("*.json")]
    assert not any("north" in text for text in texts)


def test_raw_rows_by_onnxruntime(tables):
    folder, result = tables
    path = folder / "models" / "north" / "model.onnx"
    assert path.exists(), read_card(path.parent).onnx
    session = onnxruntime.InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedpac"])
    assert about == {
        "client": "north", "method": "FedPAC", "classes": ["no", "yes"], "missing": ["", "NA"],
        "columns": {"age": "number", "ward": "category", "dose": "number"},
    }  # fmt: skip
    age, dose = np.array([[71.5], [np.nan], [50]]), np.array([[1.0], [2.0], [np.nan]])
    ward = np.array([["B"], [""], ["somewhere else"]], dtype=object)
    label, proba = session.run(None, {"age": age, "dose": dose, "ward": ward})
    rows = {"age": age[:, 0], "dose": dose[:, 0], "ward": ward[:, 0]}
    np.testing.assert_allclose(proba, result.model("north").predict_proba(rows), atol=1e-6)
    assert label.tolist() == result.model("north").labels(rows)


ROWS = """
import sys, json, numpy as np, fedpac
from fedpac.cli import main
model = fedpac.load_model("models/north")
rows = [dict(age="71.5", ward="B", dose=1), dict(age=None, ward="NA", dose="2")]
np.save("proba.npy", model.predict_proba(rows))
sys.argv = ["fedpac", "predict", "models/north", "north.csv", "--out", "elsewhere.csv"]
try:
    main()
except SystemExit as done:
    assert not done.code
print(sorted({name.partition(".")[0] for name in sys.modules} & {"onnx", "pyarrow", "flwr", "ray", "pytest"}))
"""


def test_a_new_environment_predicts_raw_rows(fedpac, tables):
    """With fedpac and its run-time extra, and nothing else."""
    folder, result = tables
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["runtime"]
    libraries = lend(Path("libraries").absolute(), *project["dependencies"], *extra)
    assert run_in([libraries, ROOT / "src"], "-c", ROWS, cwd=folder).splitlines()[-1] == "[]"
    rows = [{"age": "71.5", "ward": "B", "dose": 1}, {"age": None, "ward": "NA", "dose": "2"}]
    np.testing.assert_array_equal(np.load(folder / "proba.npy"), result.model("north").predict_proba(rows))
    assert fedpac("predict", folder / "models" / "north", folder / "north.csv", "--out", "here.csv")[0] == 0
    assert (folder / "elsewhere.csv").read_bytes() == Path("here.csv").read_bytes()


def test_another_preprocessing_is_not_taken_for_the_model_s_own(tables, tmp_path):
    folder, _ = tables
    bundle = shutil.copytree(folder / "models" / "north", tmp_path / "model")
    file = bundle / "preprocessing.json"
    values = json.loads(file.read_text())
    values["columns"][0]["mean"] += 10
    file.write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"preprocessing\.json is damaged .* its checksum does not match"):
        fedpac.load_model(bundle)


def test_a_column_that_is_called_as_an_output_says_why_there_is_no_onnx(tables, tmp_path):
    folder, _ = tables
    for site in ("north", "south"):
        text = (folder / f"{site}.csv").read_text()
        (tmp_path / f"{site}.csv").write_text(text.replace("age", "value", 1))
    (tmp_path / "schema.toml").write_text((folder / "schema.toml").read_text().replace("age", "value"))
    result = fedpac.fit("mlp", fedpac.from_tables(tmp_path / "schema.toml"), rounds=1, engine="serial")
    card = fedpac.load_model(result.models[0].save(tmp_path / "model")).card
    assert card.onnx == "a column is called 'value', as an output of the graph is; rename it"
    assert "model.onnx" not in card.files


def test_predicting_rows_of_a_file(fedpac, tables):
    folder, _ = tables
    code, text, complaint = fedpac("predict", folder / "models" / "north", folder / "north.csv")
    assert code == 0
    assert text.startswith("row,class,p(no),p(yes)\n0,")
    assert len(text.splitlines()) == 61
    assert "of 60 samples" in complaint
