"""Data sets, how they are split among clients, and the user's own data."""

from fedpac.data.augment import crop_and_flip
from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.data.config import DataConfig
from fedpac.data.own import from_arrays, from_folder, from_owners
from fedpac.data.scenario import build, describe

__all__ = [
    "ClientData",
    "DataConfig",
    "Pool",
    "Samples",
    "Scenario",
    "build",
    "crop_and_flip",
    "describe",
    "from_arrays",
    "from_folder",
    "from_owners",
]
