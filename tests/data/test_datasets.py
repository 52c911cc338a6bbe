import gzip
import os
import tarfile
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import idx, png
from PIL import Image

from fedpac.data import datasets
from fedpac.data.datasets import Dataset, data_root, load
from fedpac.data.formats import CINIC_CLASSES
from fedpac.data.published import PUBLISHED
from fedpac.errors import DataError

REAL = os.environ.get("FEDPAC_DATA")


def holds(data: Dataset, held: dict[str, np.ndarray]) -> None:
    for part, pool in (("train", data.train), ("test", data.test)):
        x = held[f"x_{part}"]
        np.testing.assert_array_equal(pool.x.numpy(), x[:, None] if x.ndim == 3 else x)
        np.testing.assert_array_equal(pool.y.numpy(), held[f"y_{part}"])
        assert pool.x.dtype == torch.uint8
        assert pool.y.dtype == torch.int64


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(download, folder):
        raise AssertionError(f"would download {download.url}")

    monkeypatch.setattr(datasets, "fetch", refuse)
    monkeypatch.delenv("FEDPAC_DATA", raising=False)


# ---------------------------------------------------------------- right files


def test_fashion_mnist_is_read_bit_by_bit(tmp_path, fashion):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns about read-only memory; ours is copy-on-write
        data = load("fashion-mnist", tmp_path)
    holds(data, fashion)
    assert data.note
    assert "200 + 100" in data.note
    assert "60000 + 10000" in data.note


def test_unpacked_files_are_read_too(tmp_path, fashion):
    for file in (tmp_path / "fashion-mnist").glob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    holds(load("fashion-mnist", tmp_path), fashion)


def test_emnist_images_are_turned_upright(tmp_path, emnist):
    holds(load("emnist", tmp_path), emnist)


def test_emnist_from_the_publishers_archive(tmp_path, emnist):
    folder = tmp_path / "emnist"
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        archive.writestr("gzip/emnist-letters-train-images-idx3-ubyte.gz", b"another set in the same archive")
        for file in list(folder.glob("*.gz")):
            archive.write(file, f"gzip/{file.name}")
            file.unlink()
    holds(load("emnist", tmp_path), emnist)


def test_cifar10_planes_and_batch_order(tmp_path, cifar):
    holds(load("cifar10", tmp_path), cifar)


def test_cifar10_from_the_publishers_archive(tmp_path, cifar):
    folder = tmp_path / "cifar10"
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        tar.add(folder / "cifar-10-batches-bin", "cifar-10-batches-bin")
    for file in (folder / "cifar-10-batches-bin").iterdir():
        file.unlink()
    holds(load("cifar10", tmp_path), cifar)


def test_cinic10_classes_and_sources_come_from_names(tmp_path, cinic):
    data = load("cinic10", tmp_path)
    assert data.train.y.bincount().tolist() == [4] * 10  # nothing of `valid`
    assert data.source is not None
    assert data.source[0].tolist() == [0, 0, 1, 1] * 10
    image = np.asarray(Image.open(cinic / "train" / "bird" / "n02690373_1.png")).transpose(2, 0, 1)
    at = 4 * CINIC_CLASSES.index("bird") + 2
    np.testing.assert_array_equal(data.train.x[at].numpy(), image)


def test_cinic10_is_the_same_from_folder_and_archive(tmp_path, cinic):
    data = load("cinic10", tmp_path)
    other = tmp_path / "other"
    (other / "cinic10").mkdir(parents=True)
    with tarfile.open(other / "cinic10" / "CINIC-10.tar.gz", "w:gz") as tar:
        for part in ("test", "valid", "train"):
            tar.add(cinic / part, f"./{part}")
    packed = load("cinic10", other)
    assert torch.equal(data.train.x, packed.train.x)
    assert torch.equal(data.test.y, packed.test.y)
    assert data.source is not None
    assert packed.source is not None
    assert torch.equal(data.source[1], packed.source[1])


def test_digits_need_no_files(tmp_path):
    data = load("digits", tmp_path)
    assert data.train.x.shape == (1297, 1, 28, 28)
    assert data.test.x.shape == (500, 1, 28, 28)
    assert not data.note
    x = data.train.x.double() / 255
    assert abs(x.mean().item() - data.train.mean[0]) < 1e-3
    assert abs(x.std().item() - data.train.std[0]) < 1e-3
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (data.train.y.bincount() + data.test.y.bincount()).tolist() == published
    together = torch.cat([data.train.x, data.test.x]).flatten(1)
    assert len(together.unique(dim=0)) == len(together)  # no test image is in the training set
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- where files are looked for


def test_argument_before_environment_before_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPAC_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path / "arg") == tmp_path / "arg"
    assert data_root() == tmp_path / "env"
    monkeypatch.delenv("FEDPAC_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "fedpac" in str(data_root())


def test_unknown_data_set_names_the_nearest():
    with pytest.raises(DataError, match="Did you mean 'cifar10'"):
        load("cifar-10")


# ---------------------------------------------------------------- the cache


def test_second_load_reads_only_the_cache(tmp_path, fashion, monkeypatch):
    load("fashion-mnist", tmp_path)
    monkeypatch.setattr(datasets, "contents", lambda sources, most: pytest.fail("decoded again"))
    holds(load("fashion-mnist", tmp_path), fashion)


def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path, fashion):
    load("fashion-mnist", tmp_path).train.x.zero_()
    holds(load("fashion-mnist", tmp_path), fashion)


def test_changed_files_are_decoded_again(tmp_path, fashion):
    load("fashion-mnist", tmp_path)
    changed = 255 - fashion["x_train"]
    (tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(idx(changed))
    holds(load("fashion-mnist", tmp_path), fashion | {"x_train": changed})
    assert len(list((tmp_path / "fashion-mnist" / "decoded").iterdir())) == 1  # the old one is gone


def test_an_added_image_is_noticed(tmp_path, cinic):
    load("cinic10", tmp_path)
    (cinic / "train" / "dog" / "n1.png").write_bytes(png(np.zeros((32, 32, 3), np.uint8)))
    assert len(load("cinic10", tmp_path).train.y) == 41


@pytest.mark.parametrize("damage", ["truncate", "garbage", "remove"])
def test_damaged_cache_is_rebuilt(tmp_path, fashion, damage):
    load("fashion-mnist", tmp_path)
    file = next((tmp_path / "fashion-mnist" / "decoded").glob("*/x_train.npy"))
    if damage == "truncate":
        os.truncate(file, 1000)
    elif damage == "garbage":
        file.write_bytes(b"not an array")
    else:
        file.unlink()
    holds(load("fashion-mnist", tmp_path), fashion)


def test_several_may_decode_at_once(tmp_path, fashion):
    with ThreadPoolExecutor(8) as pool:
        for data in pool.map(lambda _: load("fashion-mnist", tmp_path), range(8)):
            holds(data, fashion)
    assert len(list((tmp_path / "fashion-mnist" / "decoded").iterdir())) == 1


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, fashion, monkeypatch):
    def full(file, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.np, "save", full)
    fails(tmp_path, "fashion-mnist", str(tmp_path), "No space left")


def test_data_in_a_read_only_folder_are_cached_elsewhere(tmp_path, fashion, monkeypatch):
    monkeypatch.setattr(datasets.os, "access", lambda path, mode: False)  # as root, chmod would stop nobody
    monkeypatch.setattr(datasets, "_user_cache", lambda: tmp_path / "home")
    holds(load("fashion-mnist", tmp_path), fashion)
    assert not (tmp_path / "fashion-mnist" / "decoded").exists()
    assert (tmp_path / "home" / "fashion-mnist" / "decoded").exists()


# ---------------------------------------------------------------- whose files they are


@pytest.fixture
def publish(tmp_path, fashion, monkeypatch):
    """Says that the tiny Fashion-MNIST is what was published, and counts how often files are checked."""
    recipe = PUBLISHED["fashion-mnist"]
    files = [tmp_path / "fashion-mnist" / name for name in recipe.wanted]
    sums = [(md5(f.read_bytes()).hexdigest(), md5(gzip.decompress(f.read_bytes())).hexdigest()) for f in files]
    published = [replace(d, md5=one, holds=other) for d, (one, other) in zip(recipe.downloads, sums, strict=True)]
    monkeypatch.setitem(PUBLISHED, "fashion-mnist", replace(recipe, downloads=tuple(published), images=(200, 100)))
    checked = []
    check = datasets._is_published
    monkeypatch.setattr(datasets, "_is_published", lambda path, *rest: checked.append(path) or check(path, *rest))
    return checked


def test_published_files_are_checked_once(tmp_path, publish):
    for _ in range(3):
        assert load("fashion-mnist", tmp_path).note == ""
    assert len(publish) == 4


def test_files_that_were_packed_anew_or_unpacked_are_still_the_publishers(tmp_path, publish):
    images, unpacked = (tmp_path / "fashion-mnist" / f"t10k-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    images.write_bytes(gzip.compress(gzip.decompress(images.read_bytes()), 9))
    unpacked.with_suffix("").write_bytes(gzip.decompress(unpacked.read_bytes()))
    unpacked.unlink()
    assert load("fashion-mnist", tmp_path).note == ""


def test_a_file_that_is_not_the_publishers_makes_a_stand_in(tmp_path, fashion, publish):
    assert load("fashion-mnist", tmp_path).note == ""
    images = fashion["x_test"].copy()
    images[7, 3, 3] ^= 1  # one bit of one pixel; the file is sound
    (tmp_path / "fashion-mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(idx(images))
    for _ in range(2):
        note = load("fashion-mnist", tmp_path).note
        assert note == "stand-in: t10k-images-idx3-ubyte.gz is not the published file"
    assert len(publish) == 4 + 3


def test_what_cannot_be_remembered_is_checked_again(tmp_path, publish, monkeypatch):
    def refuse(path, data):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(datasets, "write_atomically", refuse)
    for _ in range(2):
        assert load("fashion-mnist", tmp_path).note == ""
    assert len(publish) == 8


# ---------------------------------------------------------------- wrong files


def fails(tmp_path: Path, name: str, *words: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    for word in words:
        assert word in str(caught.value)
    assert not list((tmp_path / name / "decoded").glob("*"))  # nothing half-written


def test_truncated_gzip(tmp_path, fashion):
    file = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    os.truncate(file, file.stat().st_size // 2)
    fails(tmp_path, "fashion-mnist", str(file), "cut short")


def test_wrong_magic(tmp_path, fashion):
    file = tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(idx(fashion["x_test"]))  # images where labels should be
    fails(tmp_path, "fashion-mnist", str(file), "00 00 08 03", "expected 00 00 08 01")


def test_bytes_missing_inside_an_idx_file(tmp_path, fashion):
    file = tmp_path / "fashion-mnist" / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes())[:-5]))
    fails(tmp_path, "fashion-mnist", str(file), "203 bytes, expected 208")


def test_more_labels_than_images(tmp_path, fashion):
    (tmp_path / "fashion-mnist" / "train-labels-idx1-ubyte.gz").write_bytes(idx(fashion["y_train"][:-1]))
    fails(tmp_path, "fashion-mnist", "200 train images but 199 labels")


def test_images_of_another_size(tmp_path, fashion):
    (tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz").write_bytes(idx(np.zeros((200, 20, 20), np.uint8)))
    fails(tmp_path, "fashion-mnist", "(1, 20, 20)", "expected (1, 28, 28)")


def test_label_out_of_range(tmp_path, cifar):
    file = tmp_path / "cifar10" / "cifar-10-batches-bin" / "data_batch_2.bin"
    data = bytearray(file.read_bytes())
    data[3073] = 10
    file.write_bytes(bytes(data))
    fails(tmp_path, "cifar10", "train label 21 is 10", "0 to 9")


def test_truncated_cifar_batch(tmp_path, cifar):
    file = tmp_path / "cifar10" / "cifar-10-batches-bin" / "test_batch.bin"
    os.truncate(file, 3073 * 20 - 1)
    fails(tmp_path, "cifar10", str(file), "61459 bytes", "multiple of 3073")


def test_one_missing_cifar_batch(tmp_path, cifar):
    (tmp_path / "cifar10" / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    fails(tmp_path, "cifar10", "data_batch_3.bin is missing")


@pytest.mark.parametrize(("name", "archive"), [("cifar10", "cifar-10-binary.tar.gz"), ("emnist", "gzip.zip")])
def test_damaged_archive(tmp_path, name, archive):
    (tmp_path / name).mkdir()
    (tmp_path / name / archive).write_bytes(b"\x1f\x8b damaged")
    fails(tmp_path, name, archive, "is not a readable")


def test_archive_without_the_files(tmp_path):
    for name, archive in (("cifar10", "cifar-10-binary.tar.gz"), ("cinic10", "CINIC-10.tar.gz")):
        (tmp_path / name).mkdir()
        with tarfile.open(tmp_path / name / archive, "w:gz"):
            pass
    fails(tmp_path, "cifar10", "data_batch_1.bin")
    fails(tmp_path, "cinic10", "no PNG under train/")


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("train/dog/bad.png", b"not a picture", ("bad.png", "is not a readable")),
        ("train/dog/big.png", png(np.zeros((64, 48, 3), np.uint8)), ("big.png", "48 x 64", "expected 32 x 32")),
        ("train/zebra/a.png", png(np.zeros((32, 32, 3), np.uint8)), ("'zebra'", "airplane")),
    ],
    ids=["damaged", "size", "class"],
)
def test_bad_image(tmp_path, cinic, path, content, words):
    (cinic / path).parent.mkdir(exist_ok=True)
    (cinic / path).write_bytes(content)
    fails(tmp_path, "cinic10", *words)


# ---------------------------------------------------------------- the real sets


@pytest.fixture
def real():
    def get(name: str) -> Dataset:
        if REAL is None or not Path(REAL, name).exists():
            pytest.skip(f"FEDPAC_DATA does not hold the real {name}")
        return load(name, REAL)

    return get


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [("fashion-mnist", [0.2860], [0.3530]), ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])],
)
def test_pixels_of_the_real_set_have_the_published_moments(real, name, mean, std):
    data = real(name)
    assert not data.note
    assert len(data.train.y.unique()) == len(data.test.y.unique()) == data.classes
    pixels = data.train.x[::2].float() / 255
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(mean), atol=2e-3, rtol=0)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(std), atol=2e-3, rtol=0)


def test_the_real_emnist_is_upright(real):
    data = real("emnist")
    ones = data.train.x[data.train.y == 1][:200, 0] > 128
    height, width = ones.any(2).sum(1).float().mean(), ones.any(1).sum(1).float().mean()
    assert height > 1.5 * width


def test_the_real_cinic10_has_both_sources_in_every_class(real):
    data = real("cinic10")
    assert data.source is not None
    for part, source in ((data.train, data.source[0]), (data.test, data.source[1])):
        assert (torch.bincount(part.y * 2 + source.long(), minlength=20) > 0).all()
