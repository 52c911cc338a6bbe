"""Data set + partition + shift = what every client holds: a pure function of the config and a seed."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedpac.data import datasets
from fedpac.data.clients import ClientData, Pool, Samples, Scenario
from fedpac.data.config import BY_GROUP, TURNING, DataConfig
from fedpac.data.datasets import Dataset
from fedpac.data.own import OWN, from_folder, from_owners, pooled
from fedpac.data.partition import Ints, deal
from fedpac.data.published import Usual
from fedpac.data.scenarios import known
from fedpac.data.schema import read_schema
from fedpac.data.shift import random_turns, relabelling
from fedpac.data.table_sites import from_tables
from fedpac.data.validation import held_out
from fedpac.errors import ConfigError
from fedpac.randomness import numpy_stream


def build(config: DataConfig, seed: int, data_dir: Path | None = None) -> Scenario:
    """Every client's data. The same config and seed give the same data, on every machine."""
    config = config.resolved()
    if not config.rule.dealt:
        scenario = _natural(config, seed)
    elif config.dataset == OWN:
        data, config = _own(config, seed)
        scenario = _dealt(config, data, seed)
    else:
        scenario = _dealt(config, datasets.load(config.dataset, data_dir), seed)
    if len(scenario.shape) != 3 and (config.augment or config.shift in TURNING):
        raise ConfigError(f"augment and shift '{config.shift}' need images; these samples have shape {scenario.shape}.")
    scenario = _shifted(scenario, config, seed)
    if config.validation_share and scenario.preprocessing is None:  # tables' sites hold out their own, by their ids
        scenario = held_out(scenario, config.validation_share, seed)
    return scenario


def predicts_numbers(config: DataConfig) -> bool:
    """Whether the targets are numbers, and no classes."""
    if config.path is not None and config.path.suffix == ".toml":
        return read_schema(config.path.expanduser()).numeric
    return config.target == "number"


# --- from resolved configs ----------------------------------------------------------------------------------------


def _natural(config: DataConfig, seed: int) -> Scenario:
    path = known(config.path)
    how = (path, seed, known(config.test_share), known(config.min_samples))
    if path.suffix == ".toml":
        scenario = from_tables(*how, validation_share=config.validation_share or 0.0)
    elif path.suffix == ".npz":
        scenario = from_owners(*how, numbers=config.target == "number")
    else:
        scenario = from_folder(*how, config.images, numbers=config.target == "number")
    return replace(scenario, clients=[replace(c, augment=bool(config.augment)) for c in scenario.clients])


def _own(config: DataConfig, seed: int) -> tuple[Dataset, DataConfig]:
    """The user's samples in a pool, and the config with all that had to wait for them."""
    data = pooled(known(config.path), seed, known(config.test_share), config.images)
    samples, test_samples = (max(1, len(pool.y) // known(config.clients)) for pool in (data.train, data.test))
    usual = Usual(classes=data.classes, samples=samples, test_samples=test_samples)
    try:
        config.check_against(usual)
    except ValueError as error:
        raise ConfigError(f"config: data: {error}") from None
    return data, config.resolved(usual)


def _dealt(config: DataConfig, data: Dataset, seed: int) -> Scenario:
    available = np.bincount(data.train.y.numpy(), minlength=data.classes)
    train_counts, test_counts = config.rule.counts(config, available, numpy_stream(seed, "partition"))
    sources = data.source if config.shift == "source" and data.source is not None else (None, None)
    train = _deal(data.train, train_counts, numpy_stream(seed, "deal train"), "training samples", sources[0])
    test = _deal(data.test, test_counts, numpy_stream(seed, "deal test"), "test samples", sources[1])
    groups = config.rule.groups(config, None) if config.rule.grouped else None
    clients = [
        ClientData(own_train, own_test, bool(config.augment), i % groups if groups else None, f"client {i}")
        for i, (own_train, own_test) in enumerate(zip(train, test, strict=True))
    ]
    shape = tuple(data.train.x.shape[1:])
    images = config.images if data.class_names and config.dataset == OWN else None
    name = f"{config.dataset} {config.scenario}"
    return Scenario(clients, data.classes, shape, name, data.note, data.class_names, images=images)


def _deal(pool: Pool, counts: Ints, stream: np.random.Generator, what: str, source: Tensor | None) -> list[Samples]:
    """Every client's part; where there are sources, the first half of the clients draws from 0, the second from 1."""
    y = pool.y.numpy()
    if source is None:
        dealt = deal(y, counts, stream, what)
    else:
        half = (len(counts) + 1) // 2
        dealt = deal(y, counts[:half], stream, what, np.flatnonzero(source == 0))
        if half < len(counts):
            dealt += deal(y, counts[half:], stream, what, np.flatnonzero(source == 1), first=half)
    return [Samples(pool, torch.from_numpy(index)) for index in dealt]


def _shifted(scenario: Scenario, config: DataConfig, seed: int) -> Scenario:
    if config.shift not in BY_GROUP:
        return scenario
    groups = known(config.groups)
    relabel = [relabelling(seed, g, scenario.classes) if config.shift == "labels" else None for g in range(groups)]
    angles = config.angles or (0.0,) * groups
    clients = []
    for i, client in enumerate(scenario.clients):
        g = i % groups

        def shifted(part: Samples, name: str, i: int = i, g: int = g) -> Samples:
            if config.shift == "turns":
                return replace(part, turns=random_turns(seed, i, name, len(part), angles[g]))
            return replace(part, relabel=relabel[g], rotate=angles[g])

        train, test = shifted(client.train, "train"), shifted(client.test, "test")
        clients.append(replace(client, train=train, test=test, group=g))
    return replace(scenario, clients=clients)


def describe(scenario: Scenario, part: Literal["train", "test"] = "train") -> Tensor:
    """How many samples of each class (columns) each client (rows) holds."""
    return torch.stack([getattr(client, part).class_counts(scenario.classes) for client in scenario.clients])


def repeated(scenario: Scenario) -> tuple[int, int]:
    """How many clients hold duplicate training samples, and how many samples several clients hold."""
    distinct = [np.unique(client.train.index.numpy()) for client in scenario.clients]
    holders = np.bincount(np.concatenate(distinct))
    clients = sum(len(own) < len(client.train) for own, client in zip(distinct, scenario.clients, strict=True))
    return clients, int((holders > 1).sum())
