"""The data sets for people to look at: what is there, where it came from and under which terms."""

from pathlib import Path

from fedpac.data import datasets
from fedpac.data.published import PUBLISHED, published
from fedpac.errors import DataError

DATA_SET_COLUMNS = {
    "name": "data set",
    "images": "images",
    "classes": "classes",
    "shape": "shape",
    "status": "status",
    "where": "where",
    "licence": "licence",
    "source": "source",
}
TEXT_COLUMNS = ("name", "shape", "status", "where", "licence", "source")


def catalogue(name: str | None = None, data_dir: Path | None = None, download: bool = False) -> list[dict[str, str]]:
    """One row for each data set; files that are there are read, and fetched before that with `download`."""
    if name:
        return [_row(name, data_dir, download, alone=True)]
    return [_row(each, data_dir, download, alone=False) for each in PUBLISHED]


def _row(name: str, data_dir: Path | None, download: bool, alone: bool) -> dict[str, str]:
    entry = published(name)
    folder = datasets.data_root(data_dir) / name
    train, test = entry.images
    status = "not downloaded; use --download"
    if download or datasets.present(name, data_dir):
        try:
            data = datasets.load(name, data_dir)
            train, test = len(data.train.y), len(data.test.y)
            status = data.note or "as published"
        except DataError as error:
            if alone:  # one damaged file does not hide the other data sets
                raise
            status = f"unusable: {error}"
    return {
        "name": name,
        "images": f"{train:,} + {test:,}",
        "classes": str(entry.classes),
        "shape": " x ".join(map(str, entry.shape)),
        "status": status,
        "where": str(folder) if entry.wanted else "built in",
        "licence": entry.licence,
        "source": entry.page,
    }
