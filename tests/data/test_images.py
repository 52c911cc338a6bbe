"""Images of any size, data sets of other libraries, and tokens."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import ClassLabel, DatasetDict, Features, Sequence, Value
from datasets import Dataset as HuggingFace
from datasets import Image as ImageColumn
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fedpac
from fedpac.config import make_config
from fedpac.data.images import Pictures
from fedpac.errors import DataError, FedpacError
from fedpac.runs.execute import run

KINDS = ("healthy", "ill")


def picture(random: np.random.Generator, kind: int, size: tuple[int, int], colour: bool) -> Image.Image:
    """The ill ones are brighter."""
    shape = (*size, 3) if colour else size
    return Image.fromarray(random.integers(100 * kind, 120 + 100 * kind, shape, dtype=np.uint8))


@pytest.fixture(scope="module")
def clinics(tmp_path_factory) -> Path:
    """Three sites with images of every size, some grey and some coloured."""
    folder, random = tmp_path_factory.mktemp("clinics"), np.random.default_rng(0)
    for site in ("north", "east", "south"):
        for kind, name in enumerate(KINDS):
            (folder / site / name).mkdir(parents=True)
            for i in range(12):
                size = (int(random.integers(12, 40)), int(random.integers(12, 40)))
                picture(random, kind, size, colour=i % 2 == 0).save(folder / site / name / f"{i:02}.png")
    return folder


def test_images_of_mixed_sizes_get_one(clinics):
    scenario = fedpac.from_folder(clinics, images=Pictures(size=(16, 20)))
    assert (scenario.shape, scenario.class_names) == ((3, 16, 20), KINDS)
    assert [client.name for client in scenario.clients] == ["east", "north", "south"]
    assert fedpac.from_folder(clinics, images=Pictures(size=(8, 8), colour="grey")).shape == (1, 8, 8)
    with pytest.raises(
        DataError, match=r"pixels, the images before it are .* resize all, such as with data.image_size"
    ):
        fedpac.from_folder(clinics)


def test_cropping_keeps_proportions_and_the_middle():
    wide = np.zeros((10, 30), dtype=np.uint8)
    wide[:, 10:20] = 200
    crop, squeeze = Pictures(size=(10, 10), fit="crop").formed(wide), Pictures(size=(10, 10)).formed(wide)
    assert crop.shape == squeeze.shape == (10, 10, 1)
    assert (crop == 200).all()
    assert 50 < squeeze.mean() < 80
    assert Pictures(size=(10, 30)).formed(wide).tobytes() == wide.tobytes()  # what fits is left alone


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"dataset": "digits", "image_size": 8}, "image_size is for your own folders of images"),
        ({"scenario": "natural", "path": "x.npz", "image_colour": "grey"}, "image_colour is for your own folders"),
        ({"scenario": "natural", "path": "x", "image_fit": "crop"}, "image_fit has no effect without image_size"),
        ({"scenario": "natural", "path": "x", "image_size": 0}, "image_size"),
        ({"scenario": "natural", "path": "x", "image_size": [8, 8, 3]}, "image_size"),
        ({"scenario": "natural", "path": "x", "image_colour": "sepia"}, "image_colour"),
    ],
)
def test_keys_that_mean_nothing_are_refused(data, message):
    with pytest.raises(FedpacError, match=message):
        make_config({"data": data})


def test_a_run_of_mixed_images_is_the_same_on_every_engine_and_its_bundle_resizes(clinics, tmp_path):
    values = {
        "model": "mlp", "method": "fedpac",
        "data": {"scenario": "natural", "path": str(clinics), "image_size": [12, 16], "image_fit": "crop"},
        "training": {"lr": 0.05}, "run": {"rounds": 3, "evaluate_every": 1},
    }  # fmt: skip
    for engine in ("serial", "process"):
        config = make_config({**values, "run": {**values["run"], "engine": engine, "workers": 2}})
        run(config, tmp_path / engine)
    metrics = [(tmp_path / engine / "metrics.csv").read_bytes() for engine in ("serial", "process")]
    assert metrics[0] == metrics[1]
    result = fedpac.load_run(tmp_path / "serial")
    model = fedpac.load_model(result.model("north").save(tmp_path / "model", onnx=False))
    file = clinics / "south" / "ill" / "01.png"
    assert model.labels(model.inputs.read_image(file)) == ["ill"]
    assert model.class_names == KINDS


DEEP = np.array([[0, 256, 257, 4095], [32768, 65278, 65279, 65535]], dtype=np.uint16)
SHALLOW = [[0, 0, 1, 15], [127, 254, 254, 255]]  # the nearest of 256 greys below; Pillow would make all but 0 white


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    Image.fromarray(DEEP).save(tmp_path / "deep.png")
    assert Pictures().read(tmp_path / "deep.png")[..., 0].tolist() == SHALLOW
    assert Pictures(colour="colour").read(tmp_path / "deep.png")[..., 2].tolist() == SHALLOW
    for mode in ("I;16", "I"):  # what Pillow makes of such a file, depending on its version
        image = Image.fromarray(DEEP.astype(np.int32) if mode == "I" else DEEP)
        assert image.mode == mode
        assert Pictures().of(image, "client 0")[..., 0].tolist() == SHALLOW


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("L", 1), ("LA", 1), ("RGB", 3), ("RGBA", 3), ("P", 3)])
def test_transparency_makes_no_colour(tmp_path, mode, channels):
    image = Image.fromarray(np.full((6, 5), 90, dtype=np.uint8)).convert(mode)
    image.save(tmp_path / "image.png")
    assert Pictures().read(tmp_path / "image.png").shape == Pictures().of(image, "x").shape == (6, 5, channels)


def test_what_systems_leave_beside_images_is_no_image(clinics, tmp_path):
    folder, small = shutil.copytree(clinics, tmp_path / "clinics"), Pictures(size=(12, 12))
    plain = fedpac.from_folder(folder, images=small)
    for place in (".", "north", "north/ill"):
        for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._00.png"):
            (folder / place / name).write_bytes(b"junk")
    littered = fedpac.from_folder(folder, images=small)
    assert torch.equal(littered.clients[0].train.pool.x, plain.clients[0].train.pool.x)
    (folder / "north" / "ill" / "99.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"99\.png is not a readable PNG or JPEG image"):
        fedpac.from_folder(folder, images=small)


def test_a_folder_of_images_is_predicted(fedpac, clinics, tmp_path):
    base = ["--scenario", "natural", "--set", f"data.path={clinics}", "--set", "data.image_size=12"]
    assert fedpac("data", *base)[1].splitlines()[1] == "classes: healthy, ill"
    sizes = ["--set", "model=mlp", "--set", "run.engine=serial", "--rounds", 3, "--set", "training.lr=0.05"]
    assert fedpac("run", *base, *sizes, "--no-figures", "--out", "r")[0] == 0
    assert fedpac("export", "r", "--client", "east", "--out", "model", "--no-onnx")[0] == 0
    code, text, _ = fedpac("predict", "model", clinics / "north" / "ill")
    assert (code, text.splitlines()[0]) == (0, "image,class,p(healthy),p(ill)")
    assert [line.split(",")[0] for line in text.splitlines()[1:]] == [f"{i:02}.png" for i in range(12)]
    code, text, _ = fedpac("predict", "model", clinics / "north" / "ill" / "07.png")
    assert text.splitlines()[1].startswith("07.png,")


# --- data sets of other libraries ---------------------------------------------------------------------------------


class Items(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def arrays(seed, n=30):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def network():
    torch.manual_seed(0)
    return fedpac.Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))


def test_torch_datasets_give_what_their_arrays_give():
    data = [(*arrays(i), *arrays(i + 10)) for i in range(2)]
    expected = fedpac.fit(network(), data, rounds=2, engine="serial").accuracy
    plain = [(Items(*c[:2]), Items(*c[2:])) for c in data]
    tensors = [[TensorDataset(*map(torch.as_tensor, part)) for part in (c[:2], c[2:])] for c in data]
    for clients in (plain, tensors, [dict(zip(("train", "test"), c, strict=True)) for c in plain]):
        assert fedpac.fit(network(), clients, rounds=2, engine="serial").accuracy == expected


def test_hugging_face_images_on_disk(tmp_path):
    random = np.random.default_rng(0)
    features = Features({"image": ImageColumn(), "label": ClassLabel(names=list(KINDS))})
    for site in ("a", "b"):
        parts = {}
        for part, n in (("train", 12), ("test", 6)):
            kinds = [i % 2 for i in range(n)]
            pictures = [picture(random, kind, (int(random.integers(8, 20)), 10), colour=False) for kind in kinds]
            parts[part] = HuggingFace.from_dict({"image": pictures, "label": kinds}, features=features)
        DatasetDict(parts).save_to_disk(tmp_path / site)
    folders = [tmp_path / "a", str(tmp_path / "b")]
    scenario = fedpac.from_datasets(folders, ["a", "b"], images=Pictures(size=(10, 10)))
    assert (scenario.shape, scenario.classes, scenario.class_names) == ((1, 10, 10), 2, KINDS)
    torch.manual_seed(0)
    model = fedpac.Classifier(nn.Sequential(nn.Flatten(), nn.Linear(100, 8), nn.ReLU()), nn.Linear(8, 2))
    result = fedpac.fit(model, scenario, rounds=3, lr=0.05, engine="serial")
    assert min(result.accuracy) == 1
    with pytest.raises(DataError, match="resize images with images=Pictures"):
        fedpac.fit(model, folders)
    with pytest.raises(DataError, match="there is no folder"):
        fedpac.from_datasets([tmp_path / "c"])
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="is not a data set written by save_to_disk"):
        fedpac.from_datasets([tmp_path / "d"])


def tokens(n=40, length=6):
    random = np.random.default_rng(n)
    x = random.integers(0, 20, (n, length))
    return {"input_ids": x.tolist(), "label": (x[:, 0] > 9).astype(int).tolist(), "length": [length] * n}


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)

    def forward(self, x):
        return self.table(x).flatten(1)


@pytest.mark.parametrize("source", ["hugging face", "tensors"])
def test_token_sequences_agree_between_engines(source):
    features = Features({"input_ids": Sequence(Value("int64")), "label": Value("int64"), "length": Value("int64")})
    parts = [HuggingFace.from_dict(tokens(n), features=features) for n in (40, 20, 30, 25)]
    clients = fedpac.from_datasets([parts[:2], parts[2:]], x="input_ids")
    if source == "tensors":
        pairs = [(torch.tensor(tokens(n)["input_ids"]), torch.tensor(tokens(n)["label"])) for n in (40, 20, 30, 25)]
        clients = [(*pairs[0], *pairs[1]), (*pairs[2], *pairs[3])]
    losses = []
    for engine in ("serial", "process"):
        torch.manual_seed(0)
        model = fedpac.Classifier(Bag(), nn.Linear(48, 2))
        result = fedpac.fit(model, clients, rounds=3, lr=0.1, engine=engine, workers=2)
        losses.append([score.loss for report in result.history for score in report.scores])
        assert result.models[0].predict(torch.tensor(tokens(20)["input_ids"])).shape == (20,)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ((Items([], []), Items([], [])), "there are no samples"),
        (({0: "a"}, {0: "b"}), "expected .sample, label., or columns by name|is a str"),
        ((HuggingFace.from_dict(tokens()),) * 2, "name the columns of samples and labels"),
        ({"train": Items(*arrays(0)), "dev": Items(*arrays(0))}, "expected the splits train and test"),
        ((HuggingFace.from_dict({"text": ["a"], "label": [0]}),) * 2, "not numbers"),
        ((HuggingFace.from_dict({"x": [[1, 2], [1]], "label": [0, 1]}),) * 2, "pad tokens"),
        (
            (HuggingFace.from_dict({"x": [[1, 2]], "label": ["ill"]}),) * 2,
            "sample 0 has the label 'ill'; expected a num",
        ),
    ],
)
def test_data_sets_that_cannot_be_used(client, message):
    with pytest.raises(DataError, match=message):
        fedpac.from_datasets([client])


def test_a_stream_of_samples_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(3), 0

    with pytest.raises(DataError, match="an IterableDataset has no length"):
        fedpac.fit("mlp", [(Stream(), Stream())], rounds=1)


class Measured(Items):
    """Numbers to predict."""

    def __getitem__(self, i):
        return self.x[i], 0.5 + self.y[i]


def test_data_sets_of_numbers_to_predict():
    """Which are neither cut off to whole numbers nor taken for classes."""
    data = Measured(*arrays(0))
    clients = [(data, data)] * 2
    scenario = fedpac.from_datasets(clients, classes=0)
    assert scenario.classes == 0
    assert scenario.clients[1].train.labels().tolist() == [0.5 + k for k in data.y]
    result = fedpac.fit("mlp", clients, method="ditto", classes=0, rounds=1, engine="serial")
    assert result.models[0].predict(data.x).dtype.kind == "f"
    with pytest.raises(DataError, match="expected one whole number per sample"):
        fedpac.from_datasets(clients)
