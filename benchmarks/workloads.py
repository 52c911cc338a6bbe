"""The workloads by name, as fedpac runs them, and as one file of plain tensors for everybody else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.networks import two_conv_cnn
from fedpac.config import make_config
from fedpac.data.clients import Scenario
from fedpac.data.scenario import build
from fedpac.models import Classifier
from fedpac.networks import build_model
from fedpac.recipe import Recipe
from fedpac.task import Task

SEED = 0
ENDLESS = 1_000_000  # rounds: in the last one everybody takes part, which no measurement wants


@dataclass(frozen=True)
class Workload:
    data: Mapping[str, Any]
    chosen: int  # clients that take part in a round
    network: str = "paper"
    training: Mapping[str, Any] | None = None


PFL_TRAINING = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch": 10, "epochs": 1}

WORKLOADS = {
    # the paper's setting: 20 clients with 600 images each, all take part, 5 epochs in batches of 50
    "fashion-mnist": Workload({"dataset": "fashion-mnist"}, 20),
    "cifar10": Workload({"dataset": "cifar10"}, 20),
    # pfl's published benchmark: 1,000 users with 50 images each, 50 in a round, 1 epoch in batches of 10
    "pfl-cifar10": Workload(
        {"dataset": "cifar10", "scenario": "iid", "clients": 1000, "samples": 50, "test_samples": 10, "augment": False},
        50, "two-conv", PFL_TRAINING,
    ),
    # FLUTE's CPU benchmark: 1,000 clients, 10 in a round, 1 epoch in batches of 10, logistic regression
    "flute": Workload(
        {"dataset": "fashion-mnist", "scenario": "iid", "clients": 1000, "samples": 60, "test_samples": 10},
        10, "logistic", {"lr": 0.03, "momentum": 0.0, "weight_decay": 0.0, "batch": 10, "epochs": 1},
    ),
    # whole-batch gradients, nothing random: two programs that compute the same end with the same weights
    "check": Workload(
        {"dataset": "fashion-mnist", "clients": 5, "samples": 100, "test_samples": 50},
        5, training={"lr": 0.1, "batch": 100},
    ),
    # what `--quick` runs instead: the same visits to a tenth of the clients
    "quick-fashion-mnist": Workload({"dataset": "fashion-mnist", "clients": 2}, 2),
    "quick-cifar10": Workload({"dataset": "cifar10", "clients": 2}, 2),
    "quick-pfl-cifar10": Workload(
        {"dataset": "cifar10", "scenario": "iid", "clients": 100, "samples": 50, "test_samples": 10, "augment": False},
        6, "two-conv", PFL_TRAINING,
    ),
}  # fmt: skip


def scale_workload(clients: int) -> Workload:
    """Thirty of any number of clients: 50 Fashion-MNIST images each, as in the paper's scarce setting."""
    return Workload({"dataset": "fashion-mnist", "clients": clients, "samples": 50, "test_samples": 20}, 30)


def federation_parts(workload: Workload) -> tuple[Scenario, Task]:
    config = make_config({"data": workload.data, "training": workload.training or {}})
    scenario = build(config.data, SEED)
    network: nn.Module
    if workload.network == "two-conv":
        torch.manual_seed(SEED)
        plain = two_conv_cnn(scenario.classes)
        network = Classifier(plain.body, plain.head)
    else:
        network = build_model(workload.network, scenario.shape, scenario.classes, SEED)
    task = Task(network, scenario.classes, config.training, SEED, len(scenario.clients), ENDLESS)
    return scenario, task


def participation(workload: Workload, scenario: Scenario) -> float:
    return workload.chosen / len(scenario.clients)


def export(name: str, folder: Path) -> Path:
    """The workload as plain tensors: images as bytes (client, sample, channel, row, column), labels, start, recipe."""
    workload = WORKLOADS[name]
    scenario, task = federation_parts(workload)
    recipe: Recipe = task.recipe
    first = scenario.clients[0]
    parts = {"": [c.train for c in scenario.clients], "_test": [c.test for c in scenario.clients]}
    tensors = {f"x{end}": torch.stack([p.pool.x[p.index] for p in some]) for end, some in parts.items()}
    tensors |= {f"y{end}": torch.stack([p.labels() for p in some]) for end, some in parts.items()}
    path = folder / f"{name}.pt"
    torch.save(
        {
            **tensors,
            "mean": torch.tensor(first.train.pool.mean),
            "std": torch.tensor(first.train.pool.std),
            "augment": first.augment,
            "initial": list(task.initial.values()),
            "network": workload.network,
            "classes": scenario.classes,
            "chosen": workload.chosen,
            "recipe": recipe.model_dump(),
        },
        path,
    )
    return path
