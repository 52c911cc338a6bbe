"""Deals fedpac's handwritten digits out to two clinics: data/clinic-a/samples.npz and data/clinic-b/samples.npz."""

from pathlib import Path

import numpy as np

from fedpac.data.config import DataConfig
from fedpac.data.scenario import build

clients = build(DataConfig(dataset="digits", clients=2), seed=0).clients
for name, client in zip(("clinic-a", "clinic-b"), clients, strict=True):
    arrays = {}
    for split, part in (("train", client.train), ("test", client.test)):
        arrays[f"x_{split}"] = part.pool.x[part.index].numpy()
        arrays[f"y_{split}"] = part.labels().numpy()
    folder = Path("data") / name
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "samples.npz", **arrays)
