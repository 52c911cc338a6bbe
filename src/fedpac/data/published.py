"""The published data sets, one entry each: its files and terms, how it is decoded, and what the paper does with it.

A new entry works with every scenario, `fedpac data` and `fedpac run` at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from fedpac.data import formats
from fedpac.data.download import Download
from fedpac.data.formats import Arrays, Files
from fedpac.errors import DataError, unknown


@dataclass(frozen=True, eq=False, kw_only=True)
class Usual:
    """What a scenario takes from its data set where the config does not say."""

    classes: int
    class_names: tuple[str, ...] = ()
    samples: int = 600  # per client
    test_samples: int = 300
    augment: bool = False
    dominant: tuple[tuple[int, ...], ...] | None = None  # where the classes have groups of their own


@dataclass(frozen=True, eq=False, kw_only=True)
class Published(Usual):
    """A data set as its publisher offers it; what is usual with it is what the paper does."""

    wanted: tuple[str, ...]  # files or folders that hold the data
    downloads: tuple[Download, ...]  # either the wanted files themselves or an archive of them
    decode: Callable[[Files], Arrays]
    sources: bool = False  # whether it says of each image where it came from: `source_train`, `source_test`
    images: tuple[int, int]  # training, test
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    training: Mapping[str, Any] = field(default_factory=dict)  # the paper's settings that are this data set's alone
    licence: str
    page: str  # where its publisher describes it

    @property
    def most_bytes(self) -> int:
        """What its files may hold: a stand-in may be half as large again as what was published."""
        return sum(self.images) * (prod(self.shape) + 1) * 3 // 2


def published(name: str) -> Published:
    if name not in PUBLISHED:
        raise DataError(unknown("data set", name, PUBLISHED))
    return PUBLISHED[name]


def _mnist_like(**settings: Any) -> Published:
    return Published(shape=(1, 28, 28), mean=(0.1307,), std=(0.3081,), **settings)


_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FASHION_CLASSES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FASHION_MD5 = {  # of the file, and of what is packed in it
    "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
}

PUBLISHED: dict[str, Published] = {
    "digits": Published(
        wanted=(),
        downloads=(),
        decode=lambda files: formats.digits(),
        images=(1297, 500),
        shape=(1, 28, 28),
        classes=10,
        mean=(0.3095,),
        std=(0.3495,),
        samples=50,
        test_samples=40,
        training={"batch": 10},  # not the paper's: its clients are smaller
        licence="CC BY 4.0",
        page="https://archive.ics.uci.edu/dataset/80 (comes with scikit-learn)",
    ),
    "fashion-mnist": _mnist_like(
        class_names=_FASHION_CLASSES,
        wanted=tuple(_FASHION_MD5),
        downloads=tuple(Download(f"{_FASHION}/{name}", *md5) for name, md5 in _FASHION_MD5.items()),
        decode=formats.idx_set("train", "t10k"),
        images=(60_000, 10_000),
        classes=10,
        test_samples=600,
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
    ),
    "cifar10": Published(
        class_names=_CIFAR_CLASSES,
        wanted=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
        downloads=(
            Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        ),
        decode=formats.cifar10,
        images=(50_000, 10_000),
        shape=(3, 32, 32),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment=True,
        training={"lr": 0.02},
        licence="none stated; cite Krizhevsky 2009",
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
    ),
    "emnist": _mnist_like(
        wanted=tuple(
            f"emnist-byclass-{p}-{k}-ubyte.gz" for p in ("train", "test") for k in ("images-idx3", "labels-idx1")
        ),
        downloads=(
            Download("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),
        ),
        decode=formats.idx_set("emnist-byclass-train", "emnist-byclass-test", transposed=True),
        images=(697_932, 116_323),
        classes=62,
        samples=1000,
        test_samples=600,
        dominant=(tuple(range(10)), tuple(range(10, 36)), tuple(range(36, 62))),  # digits, upper case, lower case
        training={"batch": 100},
        licence="work of the US government (NIST)",
        page="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    ),
    "cinic10": Published(
        class_names=_CIFAR_CLASSES,
        wanted=("train", "test"),  # `valid` is left alone: the paper trains on small shares of `train`
        downloads=(
            Download(
                "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                "6ee4d0c996905fe93221de577967a372",
            ),
        ),
        decode=formats.cinic10,
        sources=True,
        images=(90_000, 90_000),
        shape=(3, 32, 32),
        classes=10,
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
        augment=True,
        training={"lr": 0.02},
        licence="MIT; images under CIFAR-10's and ImageNet's terms",
        page="https://datashare.ed.ac.uk/handle/10283/3192",
    ),
}
