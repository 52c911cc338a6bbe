"""Tables of two sites, of which one lacks a column, and a model for each."""

import numpy as np
import pytest
import torch
from torch import nn

import fedpac

SCHEMA = """
target = "ill"
classes = ["no", "yes"]
missing = ["", "NA"]
[sites]
north = "north.csv"
south = "south.csv"
[features]
age = "number"
ward = "category"
dose = "number"
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(0)
    for site in ("north", "south"):
        lines = ["ward,age,ill" + (",dose" if site == "north" else "")]
        for _ in range(60):
            age = random.normal(60, 10)
            cells = [random.choice(["A", "B", "NA"]), f"{age:.3f}", "yes" if age > 60 else "no"]
            lines.append(",".join([*cells, *([random.choice(["1", "2", ""])] if site == "north" else [])]))
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    torch.manual_seed(0)
    model = fedpac.Classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))
    result = fedpac.fit(model, fedpac.from_tables(folder / "schema.toml"), rounds=10, lr=0.2, engine="serial")
    result.save(folder / "models")
    return folder, result
