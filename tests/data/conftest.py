"""Tiny data sets in their publishers' own file formats."""

from pathlib import Path

import numpy as np
import pytest
from formats import idx, labels, png

from fedpac.data.formats import CINIC_CLASSES


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def fashion(tmp_path: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """200 + 100 images under tmp_path/fashion-mnist; returns what the files hold."""
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    held = {}
    for part, prefix, n in (("train", "train", 200), ("test", "t10k", 100)):
        held[f"x_{part}"] = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
        held[f"y_{part}"] = labels(n, 10)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(idx(held[f"x_{part}"]))
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(idx(held[f"y_{part}"]))
    return held


@pytest.fixture
def emnist(tmp_path: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """124 + 62 upright images; the files hold them transposed, as EMNIST does."""
    folder = tmp_path / "emnist"
    folder.mkdir()
    held = {}
    for part, n in (("train", 124), ("test", 62)):
        held[f"x_{part}"] = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
        held[f"y_{part}"] = labels(n, 62)
        turned = np.ascontiguousarray(held[f"x_{part}"].transpose(0, 2, 1))
        (folder / f"emnist-byclass-{part}-images-idx3-ubyte.gz").write_bytes(idx(turned))
        (folder / f"emnist-byclass-{part}-labels-idx1-ubyte.gz").write_bytes(idx(held[f"y_{part}"]))
    return held


@pytest.fixture
def cifar(tmp_path: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Five batches of 20 and a test batch of 20; x as (N, 3, 32, 32)."""
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    x, y = rng.integers(256, size=(120, 3, 32, 32), dtype=np.uint8), labels(120, 10)
    for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        rows = slice(20 * i, 20 * i + 20)
        record = [bytes([label]) + image.tobytes() for label, image in zip(y[rows], x[rows], strict=True)]
        (folder / name).write_bytes(b"".join(record))
    return {"x_train": x[:100], "y_train": y[:100], "x_test": x[100:], "y_test": y[100:]}


@pytest.fixture
def cinic(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Two images from CIFAR-10 and two from ImageNet for each class and part, and a `valid` part to be left alone."""
    for part in ("train", "test", "valid"):
        for kind in CINIC_CLASSES:
            folder = tmp_path / "cinic10" / part / kind
            folder.mkdir(parents=True)
            for name in (f"cifar10-{part}-1", f"cifar10-{part}-12", "n02690373_1", "n02690373_12"):
                (folder / f"{name}.png").write_bytes(png(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)))
    return tmp_path / "cinic10"
