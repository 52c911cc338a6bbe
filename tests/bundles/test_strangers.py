"""A bundle may come from a stranger: whatever is in it, opening it is a model or one error, and never runs code."""

import json
import os
import pickle
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from test_bundles import trained

import fedpac
from fedpac.bundles.card import digest
from fedpac.errors import ModelError
from fuzzing import budget, damaged, fuzz


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return trained("knn-per").models[0].save(tmp_path_factory.mktemp("bundle") / "model", onnx=False)


@pytest.fixture
def forged(bundle, tmp_path):
    """A copy with its card, or its weights, changed; the checksums are right again."""

    def make(card=lambda card: None, weights=lambda tensors: None) -> Path:
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(bundle, folder)
        tensors = load((folder / "weights.safetensors").read_bytes())
        weights(tensors)
        data = save(tensors)
        (folder / "weights.safetensors").write_bytes(data)
        values = json.loads((folder / "model.json").read_text())
        values["files"]["weights.safetensors"] = digest(data)
        card(values)
        (folder / "model.json").write_text(json.dumps(values))
        return folder

    return make


def layer(values, *names):
    at = values["network"]["tree"]
    for name in names:
        at = at["parts"][name]
    return at


FORGERIES = {
    "huge layer": (lambda c: layer(c, "body", "0").update(out_features=2_000_000_000), "but its weights are"),
    "many mixed": (lambda c: c.update(combination={"kind": "mixture", "components": 1000}), "1000 networks are mixed"),
    "any class": (lambda c: layer(c, "body", "0").update(layer="os.system"), "not one of the supported torch layers"),
    "container": (lambda c: layer(c, "body").update(layer="ModuleDict"), "not one of the supported torch layers"),
    "a setting": (lambda c: layer(c, "body", "0").update(device="cuda"), "not one of its settings"),
    "text": (lambda c: layer(c, "body", "0").update(in_features="6"), "cannot be created"),
    "negative": (lambda c: layer(c, "body", "0").update(in_features=-6), "cannot be created|damaged"),
    "dots": (lambda c: layer(c, "body")["parts"].update({"a.b": {"layer": "ReLU"}}), "cannot be called"),
    "padding": (
        lambda c: layer(c, "body")["parts"].update({"0": {"layer": "Conv2d", "in_channels": 1, "out_channels": 1,
                                                         "kernel_size": 3, "padding": 10**6}}), "padding"),
    "deep": (lambda c: c["network"].update(tree=nested(40)), "too deep"),
    "many": (lambda c: layer(c, "body").update(parts={str(i): {"layer": "ReLU"} for i in range(20_000)}), "too large"),
    "own": (lambda c: c.update(network={"kind": "own", "name": "os:system", "called": True}), "runs that code"),
    "unknown": (lambda c: c.update(network={"kind": "named", "name": "no-such-net"}), "is not known to this version"),
    "huge input": (lambda c: c["inputs"].update(shape=[1 << 24, 1 << 24]), "larger than any|does not take"),
    "no input": (lambda c: c["inputs"].update(shape=[]), "inputs.shape"),
    "classes": (lambda c: c.update(class_names=["a", "b"]), "one score for each of 2 classes"),
    "future": (lambda c: c.update(format=2), "format"),
    "a key": (lambda c: c.update(run="rm -rf"), "run"),
    "no weights": (lambda c: c.update(files={}), "names no weights"),
    "elsewhere": (lambda c: c["files"].update({"../../etc/passwd": ""}), "files"),
    "checksum": (lambda c: c["files"].update({"weights.safetensors": ""}), "its checksum does not match"),
    "memory": (lambda c: c["combination"].update(samples=1 << 28), "the memory is not"),
}  # fmt: skip


def nested(depth):
    tree = {"layer": "ReLU"}
    for _ in range(depth):
        tree = {"layer": "Sequential", "parts": {"0": tree}}
    return tree


@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_cards_are_refused_by_name(kind, forged):
    change, message = FORGERIES[kind]
    with pytest.raises(ModelError, match=message):
        fedpac.load_model(forged(card=change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("keys"), "the memory is not"),
        (lambda t: t.update(extra=torch.zeros(2)), "does not fit the network: 'extra'"),
        (lambda t: t.update({"model.head.bias": torch.zeros(4)}), "has shape"),
        (lambda t: t["model.head.bias"].fill_(torch.nan), "infinite or NaN"),
        (lambda t: t["votes"].fill_(77), "damaged|does not accept"),
    ],
)
def test_forged_weights_are_refused_by_name(change, message, forged):
    with pytest.raises(ModelError, match=message):
        fedpac.load_model(forged(weights=change))


def test_a_pickle_is_not_opened(forged):
    class Bomb:
        def __reduce__(self):
            return (open, ("ran", "w"))

    folder = forged()
    data = pickle.dumps(Bomb())
    (folder / "weights.safetensors").write_bytes(data)
    values = json.loads((folder / "model.json").read_text())
    values["files"]["weights.safetensors"] = digest(data)
    (folder / "model.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match="is damaged"):
        fedpac.load_model(folder)
    assert not Path("ran").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', "[" * 100_000, '"\\ud800"', "NaN"])
def test_cards_that_are_none(text, forged):
    folder = forged()
    (folder / "model.json").write_text(text)
    with pytest.raises(ModelError):
        fedpac.load_model(folder)


def open_damaged_card(folder, rng):
    valid = (folder / "valid.json").read_bytes()
    (folder / "model.json").write_bytes(damaged(valid, rng))
    fedpac.load_model(folder)


def odd(text, rng):
    """One value, anywhere in the JSON, is something else."""
    values = at = json.loads(text)
    while isinstance(at, dict | list) and at:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[rng.integers(len(keys))]
        if not isinstance(at[key], dict | list) or rng.random() < 0.2:
            at[key] = ODD[rng.integers(len(ODD))]
            break
        at = at[key]
    return json.dumps(values).encode()


def open_odd_card(folder, rng):
    (folder / "model.json").write_bytes(odd((folder / "valid.json").read_bytes(), rng))
    fedpac.load_model(folder)


def open_damaged_weights(folder, rng):
    valid = (folder / "valid.safetensors").read_bytes()
    data = damaged(valid, rng)
    (folder / "weights.safetensors").write_bytes(data)
    card = (folder / "valid.json").read_bytes()
    (folder / "model.json").write_bytes(card.replace(digest(valid).encode(), digest(data).encode()))
    fedpac.load_model(folder)


ODD = [None, True, -1, 0, 3, 10**6, 10**12, 1e300, "x", "os:system", "", [], {}, [1, 2], {"layer": "ReLU"}, ["a"]]


@pytest.mark.parametrize("case", [open_damaged_card, open_odd_card, open_damaged_weights])
@budget(short=150, long=5_000)
def test_whatever_is_damaged_is_a_model_or_an_error(case, cases, forged):
    """Soon, and without filling the memory. The weights' checksum is mended, so that their parser sees them."""
    folder = forged()
    shutil.copy(folder / "model.json", folder / "valid.json")
    shutil.copy(folder / "weights.safetensors", folder / "valid.safetensors")
    assert fuzz(partial(case, folder), cases).refused > cases / 3


def open_damaged_preprocessing(folder, rng):
    """And predict, since its numbers are used then."""
    valid = (folder / "valid.preprocessing").read_bytes()
    data = damaged(valid, rng) if rng.random() < 0.3 else odd(valid, rng)
    (folder / "preprocessing.json").write_bytes(data)
    card = (folder / "valid.json").read_bytes()
    (folder / "model.json").write_bytes(card.replace(digest(valid).encode(), digest(data).encode()))
    assert np.isfinite(fedpac.load_model(folder).predict_proba([{"age": "71.5", "ward": "B", "dose": 1}])).all()


@budget(short=150, long=5_000)
def test_a_damaged_preprocessing_is_a_model_or_an_error(cases, tables, tmp_path):
    folder = shutil.copytree(tables[0] / "models" / "north", tmp_path / "model")
    shutil.copy(folder / "model.json", folder / "valid.json")
    shutil.copy(folder / "preprocessing.json", folder / "valid.preprocessing")
    tally = fuzz(partial(open_damaged_preprocessing, folder), cases)
    assert tally.refused > cases / 3
    assert tally.accepted > cases / 10


def test_links_and_pipes_are_no_trap(forged, tmp_path):
    folder = forged()
    (folder / "weights.safetensors").unlink()
    os.mkfifo(folder / "weights.safetensors")
    with pytest.raises(ModelError, match="is missing"):
        fedpac.load_model(folder)
    with pytest.raises(ModelError, match="does not contain a model"):
        fedpac.load_model(tmp_path / "nothing")
