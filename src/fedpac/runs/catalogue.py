"""The data sets for people to look at: what is there, where it came from and under which terms."""

from pathlib import Path

from fedpac.data import datasets
from fedpac.errors import DataError

TERMS = {
    "digits": ("CC BY 4.0", "https://archive.ics.uci.edu/dataset/80 (comes with scikit-learn)"),
    "fashion-mnist": ("MIT", "https://github.com/zalandoresearch/fashion-mnist"),
    "cifar10": ("none stated; cite Krizhevsky 2009", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    "emnist": ("work of the US government (NIST)", "https://www.nist.gov/itl/products-and-services/emnist-dataset"),
    "cinic10": ("MIT; images under CIFAR-10's and ImageNet's terms", "https://datashare.ed.ac.uk/handle/10283/3192"),
}

COLUMNS = {
    "name": "data set",
    "images": "images",
    "classes": "classes",
    "shape": "shape",
    "status": "status",
    "where": "where",
    "licence": "licence",
    "source": "source",
}
TEXT = ("name", "shape", "status", "where", "licence", "source")


def catalogue(name: str | None = None, data_dir: Path | None = None, download: bool = False) -> list[dict[str, str]]:
    """One row for each data set; files that are there are read, and fetched before that with `download`."""
    if name:
        return [_row(name, data_dir, download, alone=True)]
    return [_row(each, data_dir, download, alone=False) for each in datasets.RECIPES]


def _row(name: str, data_dir: Path | None, download: bool, alone: bool) -> dict[str, str]:
    recipe = datasets.recipe_of(name)
    folder = datasets.data_root(data_dir) / name
    train, test = recipe.images
    status = "not here; --download fetches it"
    if download or datasets.present(name, data_dir):
        try:
            data = datasets.load(name, data_dir)
            train, test = len(data.train.y), len(data.test.y)
            status = data.note or "as published"
        except DataError as error:
            if alone:  # one damaged file does not hide the other data sets
                raise
            status = f"unusable: {error}"
    licence, source = TERMS.get(name, ("see the source", recipe.downloads[0].url if recipe.downloads else ""))
    return {
        "name": name,
        "images": f"{train:,} + {test:,}",
        "classes": str(recipe.classes),
        "shape": " x ".join(map(str, recipe.shape)),
        "status": status,
        "where": str(folder) if recipe.wanted else "built in",
        "licence": licence,
        "source": source,
    }
