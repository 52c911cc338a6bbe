"""Folders of images of any size, tokens and a network of one's own: the same numbers whatever engine trains them."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedpac as library
from fedpac.errors import ModelError

HOW = ["--scenario", "natural", "--rounds", "2", "--no-figures", "--set", "training.epochs=1", "--set",
       "training.batch=8", "--set", "run.evaluate_every=1"]  # fmt: skip


@pytest.fixture
def clinics(tmp_path, fedpac):
    """Stripes across or down, in grey or colour, no two images of one size."""
    random = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("across", "down"):
            folder = Path("clinics", site, kind)
            folder.mkdir(parents=True)
            for i in range(10):
                height, width = random.integers(14, 40, 2)
                stripes = 200 * (np.indices((height, width))[int(kind == "down")] % 8 < 4) + random.integers(0, 50)
                image = Image.fromarray(stripes.astype(np.uint8))
                (image if site == "north" else image.convert("RGB")).save(folder / f"{i}.png")
    return ["--set", "data.path=clinics", "--set", "data.image_size=16", "--model", "resnet8-gn"]


@pytest.fixture
def notes(tmp_path, fedpac):
    """The class is the token that comes most often."""
    random = np.random.default_rng(0)
    Path("notes").mkdir()
    for site in ("north", "south"):
        y = random.integers(0, 3, 30)
        x = random.integers(0, 9, (30, 8))
        x[:, ::2] = y[:, None]
        np.savez(f"notes/{site}.npz", x=x, y=y)
    return ["--set", "data.path=notes", "--model", "transformer"]


@pytest.mark.parametrize("data", ["clinics", "notes"])
def test_engines_agree_bit_for_bit(fedpac, request, data):
    given = request.getfixturevalue(data)
    written = []
    for engine in ("serial", "process"):
        code, _, complaint = fedpac("run", *HOW, *given, "--engine", engine, "--workers", "2", "--out", engine)
        assert (code, complaint) == (0, "")
        written.append(Path(engine, "metrics.csv").read_bytes())
    assert written[0] == written[1]


def test_a_transformer_s_bundle_predicts_the_same(fedpac, notes):
    assert fedpac("run", *HOW, *notes, "--engine", "serial", "--out", "run")[0] == 0
    code, _, complaint = fedpac("export", "run", "--client", "south", "--no-onnx", "--out", "model")
    assert (code, complaint) == (0, "")
    x = np.load("notes/south.npz")["x"]
    expected = library.load_run("run").model("south").predict_proba(x)
    np.testing.assert_array_equal(library.load_model("model").predict_proba(x), expected)


def test_a_bundle_that_names_code_is_opened_on_the_user_s_word_alone(fedpac, tmp_path, monkeypatch):
    Path("my_bundled.py").write_text(
        "from pathlib import Path\nfrom torch import nn\nimport fedpac\n"
        "Path('imported').touch()\n"
        "class Twice(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
        "def make(shape, classes):\n"
        "    body = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 5), Twice())\n"
        "    return fedpac.Classifier(body, nn.Linear(5, classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    how = ["--dataset", "digits", "--clients", "2", "--rounds", "1", "--engine", "serial", "--no-figures"]
    code, _, complaint = fedpac("run", *how, "--model", "my_bundled:make", "--out", "run")
    assert (code, complaint) == (0, "")
    assert fedpac("export", "run", "--model", "my_bundled:make", "--no-onnx", "--out", "model")[0] == 0
    expected = library.load_run("run", trust=True).models[0]
    x = expected.data.test.pool.x[:20].numpy()
    np.savez("x.npz", x=x)
    del sys.modules["my_bundled"]
    Path("imported").unlink()

    code, _, complaint = fedpac("predict", "model", "x.npz")
    assert code == 1
    assert "loading it runs that code" in " ".join(complaint.split())
    with pytest.raises(ModelError, match="my_bundled:make"):
        library.load_model("model")
    assert not Path("imported").exists()  # asked or not, nothing was imported

    code, shown, _ = fedpac("predict", "model", "x.npz", "--trust")
    assert code == 0
    assert Path("imported").exists()
    assert len(shown.splitlines()) == 21
    np.testing.assert_array_equal(library.load_model("model", trust=True).predict(x), expected.predict(x))
    sys.modules.pop("my_bundled", None)
