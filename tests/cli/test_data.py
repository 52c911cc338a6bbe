"""The command line and data: files that are damaged, missing or stand-ins, and what a scenario makes of them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest


def fashion(folder: Path, cut: bool = False) -> None:
    """Fashion-MNIST's four files with very few images."""
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = bytes([0, 0, 8, 3, 0, 0, 0, 60, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(60 * 784 - (9 if cut else 0))
        labels = bytes([0, 0, 8, 1, 0, 0, 0, 60]) + bytes(k % 10 for k in range(60))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


@pytest.mark.parametrize("damage", ["truncated", "cut", "noise"])
def test_damaged_data_files(fedpac, tmp_path, damage):
    folder = tmp_path / "data" / "fashion-mnist"
    fashion(folder, cut=damage == "cut")
    file = folder / "train-images-idx3-ubyte.gz"
    if damage != "cut":
        file.write_bytes(file.read_bytes()[:40] if damage == "truncated" else b"not an image file")
    code, _, complaint = fedpac("run", "--dataset", "fashion-mnist", "--rounds", "1", "--out", "r")
    assert code == 1
    assert file.name in complaint
    assert "Traceback" not in complaint
    assert not Path("r").exists()
    code, listed, _ = fedpac("data")
    assert code == 0
    assert "unusable" in listed  # and the others are listed beside it
    assert "digits" in listed


def test_a_missing_data_file(fedpac, tmp_path):
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        (folder / name).write_bytes(bytes(3073))
    code, _, complaint = fedpac("run", "--dataset", "cifar10", "--rounds", "1", "--out", "r")
    assert code == 1
    assert "data_batch_3.bin is missing" in complaint
    assert "Traceback" not in complaint
    assert not Path("r").exists()


def test_a_download_with_the_wrong_checksum(fedpac, tmp_path, monkeypatch):
    import dataclasses

    from fedpac.data.download import Download
    from fedpac.data.published import PUBLISHED

    (tmp_path / "file.bin").write_bytes(b"something else")
    recipe = dataclasses.replace(
        PUBLISHED["cifar10"], downloads=(Download((tmp_path / "file.bin").as_uri(), "0" * 32),)
    )
    monkeypatch.setitem(PUBLISHED, "cifar10", recipe)
    code, _, complaint = fedpac("run", "--dataset", "cifar10", "--rounds", "1", "--out", "r")
    assert code == 1
    assert "0" * 32 in complaint
    assert "Traceback" not in complaint
    assert not Path("r").exists()


def test_a_stand_in_is_announced(fedpac, tmp_path):
    fashion(tmp_path / "data" / "fashion-mnist")
    small = ["--set", "data.samples=5", "--set", "data.test_samples=5", "--set", "model=logistic", "--engine", "serial"]
    code, text, complaint = fedpac(
        "run", "--dataset", "fashion-mnist", "--clients", 3, "--rounds", 1, "--no-figures", "--out", "r", *small
    )
    assert code == 0, complaint
    assert "Not the published data set: stand-in: 60 + 60 images" in text
    assert "*" in fedpac("compare", "r")[1]
    code, text, _ = fedpac("data", "fashion-mnist")
    assert "stand-in: 60 + 60" in text


def test_data(fedpac):
    code, text, _ = fedpac("data")
    assert code == 0
    assert "digits" in text
    assert "not downloaded" in text
    code, text, _ = fedpac("data", "digits", "--scenario", "dirichlet", "--clients", 8, "--figure", "d.png")
    assert code == 0
    assert "8 clients" in text
    assert Path("d.png").exists()
    assert Path("d.svg").exists()


def test_data_shows_the_scenario_if_anything_is_said_of_it(fedpac):
    code, text, _ = fedpac("data", "digits", "--clients", 5)
    assert (code, text) == (0, "digits groups: 5 clients with 50 training samples of 10 classes\n")
    code, text, _ = fedpac("data", "--set", "data.scenario=iid")
    assert code == 0
    assert text.startswith("digits iid: 20 clients")


def test_data_says_when_samples_repeat(fedpac):
    assert "more than once" not in fedpac("data", "digits", "--clients", 5)[1]
    _, text, _ = fedpac("data", "digits", "--clients", 2, "--set", "data.samples=1500")
    assert "2 clients hold duplicate training samples; " in text
    _, text, _ = fedpac("data", "digits", "--clients", 2, "--scenario", "iid", "--set", "data.samples=1000")
    assert text.splitlines()[1] == "703 training samples are shared by several clients"  # 2 x 1000 of 1297


def test_a_figure_of_stand_in_data_says_so(fedpac, tmp_path):
    fashion(tmp_path / "data" / "fashion-mnist")
    assert fedpac("data", "fashion-mnist", "--set", "data.samples=5", "--figure", "f.png")[0] == 0
    assert "fashion-mnist groups (stand-in data)" in Path("f.svg").read_text()


def test_own_data_dealt_out(fedpac):
    rng = np.random.default_rng(0)
    np.savez("mine.npz", x=rng.normal(size=(300, 4)), y=rng.integers(0, 3, 300))
    mine = ["--scenario", "dirichlet", "--clients", 5, "--set", "data.path=mine.npz"]
    assert fedpac("data", *mine)[1].startswith("own dirichlet: 5 clients")
    code, text, _ = fedpac("run", *mine, "--set", "model=logistic", "--rounds", 1, "--engine", "serial", "--out", "r")
    assert code == 0
    assert "own dirichlet" in text
    assert "participation = 0.3" in Path("r/config.toml").read_text()


def test_run_from_another_folder_can_be_resumed(fedpac, tmp_path, monkeypatch):
    fashion(tmp_path / "elsewhere" / "fashion-mnist")
    small = ["--set", "data.samples=5", "--set", "data.test_samples=5", "--set", "model=logistic", "--engine", "serial"]
    run = ["run", "--dataset", "fashion-mnist", "--clients", 3, "--rounds", 1, "--no-figures", *small]
    assert fedpac(*run, "--data-dir", "elsewhere", "--out", "r")[0] == 0
    Path("r/summary.json").unlink()
    (tmp_path / "w").mkdir()
    monkeypatch.chdir(tmp_path / "w")
    code, _, complaint = fedpac("resume", "../r", "--no-figures")  # it knows where its data were
    assert code == 0, complaint
    assert json.loads(Path("../r/summary.json").read_text())["rounds"] == 1
