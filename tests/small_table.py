"""A table of our own, small enough to be filled in a second."""

from pathlib import Path

from fedpac.tables.cells import Cell, cells
from fedpac.tables.results import ResultsFolder
from fedpac.tables.rows import FilledTable
from fedpac.tables.spec import Experiment, read_experiment

TABLE = """
title = "A small table"
source = "Nowhere"
shows = "table"

[methods]
fedpac = {}
fedavg = {}
fedavg-ft = { by_product_of = "fedavg", accuracy = "personal" }
fedpac-cc = { title = "without alignment", method = { name = "fedpac", alignment = false } }

[settings."digits,6"]
title = "Digits, 6 clients"
model = "logistic"
data = { dataset = "digits", clients = 6, samples = 10, test_samples = 10 }
training = { epochs = 1 }
run = { rounds = 6, evaluate_every = 2, checkpoint_every = 100, engine = "serial" }
x = 20
paper = { fedpac = 12.34, fedavg-ft = 99.99 }

[settings."digits,6,s80"]
title = "Digits, 6 clients, s = 80 %"
model = "logistic"
data = { dataset = "digits", clients = 6, samples = 10, test_samples = 10, s = 80 }
training = { epochs = 1 }
run = { rounds = 6, evaluate_every = 2, checkpoint_every = 100, engine = "serial" }
x = 80
"""
EXACT = ("config.toml", "clients.csv", "metrics.csv", "weights.csv")


def experiment(folder: Path, text: str = TABLE) -> Experiment:
    (folder / "small.toml").write_text(text)
    return read_experiment(folder / "small.toml")


def cells_of(experiment: Experiment, root: Path, seeds: int = 1, only: str = "") -> list[Cell]:
    return cells(experiment, ResultsFolder(root), seeds, only)


def filled_table(experiment: Experiment, root: Path) -> FilledTable:
    """The table with what there is in the folder now."""
    return FilledTable.of(experiment, ResultsFolder(root))


def contents(root: Path) -> dict[str, bytes]:
    """Everything under the root that must not depend on how the runs went."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.name in EXACT}
