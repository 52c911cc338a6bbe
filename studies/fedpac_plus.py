"""Which changes of FedPAC are worth having? Trials on seeds that no table reports, the negative ones included.

    python studies/fedpac_plus.py runs/trials > results/fedpac-plus-trials.csv

Runs what is missing of the trials below into that folder (CIFAR-10, 20 clients, four to eight seconds a round), and
prints the accuracy of the received models, the mean over clients.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.config import make_config
from fedpac.errors import TrainingError
from fedpac.message import Message, Weights
from fedpac.methods.fedpac import FedPAC
from fedpac.methods.fedpac_plus import FedPACPlus
from fedpac.provenance import provenance
from fedpac.runs.execute import advance
from fedpac.runs.read import read_run
from fedpac.server import Server
from fedpac.training import Correction, controlled, flatten, steps_per_epoch

SEED = 10
WARM_UP = "and ten rounds in which momentum grows from zero"
STEADY = {"growth": 1.0, "warmup": 0, "falls_from": 0}  # as FedPAC+ was at the time
FULL = {"full_control": 1}  # at any number of steps
SWITCHES, GUESSED, PLUS = "fedpac_plus:Switches", "fedpac_plus:Guessed", "fedpac-plus"


class Trial(NamedTuple):
    name: str
    change: str
    method: dict[str, Any]
    training: Mapping[str, Any] = MappingProxyType({})
    rounds: int = 60
    samples: int = 600
    test_samples: int = 300


TRIALS = [
    Trial("momentum", "server momentum 0.5 of the body", {"name": SWITCHES, "beta": 0.5}),
    Trial(
        "momentum, prior apart",
        "and heads without their client's class frequencies, each row averaged over all clients by class counts",
        {"name": SWITCHES, "beta": 0.5, "prior": True},
    ),
    Trial("momentum, rate", "and twice the body's learning rate", {"name": SWITCHES, "beta": 0.5}, {"lr": 0.04}),
    Trial(
        "momentum, rate, decay",
        "and augmented statistics, and ten times the weight decay",
        {"name": SWITCHES, "beta": 0.5, "augmented": True},
        {"lr": 0.04, "weight_decay": 0.005},
    ),
    *(
        Trial(
            f"{'control' if control else 'no control'}, {samples} samples",
            "and control variates of the body" if control else "momentum, rate and augmented statistics",
            {"name": PLUS, **STEADY, "control": control}, {}, 100, samples, 900,
        )
        for samples in (200, 600) for control in (False, True)
    ),
    *(
        Trial(f"{name}, 100 samples", change, {"name": PLUS, **STEADY, **method}, {}, rounds, 100)
        for name, change, method, rounds in (
            ("no control", "momentum, rate and augmented statistics", {"control": False}, 100),
            ("no control, warm-up", WARM_UP, {"control": False, "warmup": 10}, 40),
            ("control", "momentum, rate, augmented statistics and control variates", FULL, 40),
            ("control, warm-up", WARM_UP, {**FULL, "warmup": 10}, 40),
        )
    ),
    Trial(
        "guessed control, 200 samples",
        "and control variates that clients guess from the bodies they receive, without a byte more",
        {"name": GUESSED, **STEADY, "control": False}, {}, 100, 200, 900,
    ),
]  # fmt: skip


class Guessed(FedPACPlus):
    """c is what the body moved by since the client's last visit, less the momentum, divided by the length of a step."""

    name: ClassVar[str] = "guessed"
    title: ClassVar[str] = "Guessed"

    def local(self, client: Client, down: Message, correction: Correction | None = None) -> Message:
        recipe, now = client.recipe, flatten(down.weights("w"), client.model, "body")
        steps, b = recipe.epochs * steps_per_epoch(client.n, recipe.batch), recipe.momentum
        reach = self.body_lr(client) * sum((1 - b**k) / (1 - b) for k in range(1, steps + 1))
        drift = controlled(torch.zeros_like(now))
        if "then" in client.state:
            then, absent = client.tensor("then"), client.round - int(client.tensor("when"))
            c = (1 - self.momentum) * (then - now) / (absent * reach) - recipe.weight_decay * then
            drift = controlled(c - client.tensor("c"))
        up = super().local(client, down, drift)
        client.state.update(then=now, c=drift.mean, when=torch.tensor(client.round))
        return up


class Switches(FedPAC):
    """FedPAC with switches."""

    name: ClassVar[str] = "trial"
    title: ClassVar[str] = "Trial"

    beta: Annotated[float, Field(ge=0, lt=1, description="server momentum of the body")] = 0.0
    prior: Annotated[bool, Field(description="heads travel without the log of the class frequencies")] = False

    def shifted(self, client: Client, head: Weights, sign: int) -> Weights:
        """The head with the log of the client's class frequencies added to its bias, or taken out again."""
        if not self.prior:
            return head
        counts = client.class_counts.to(client.task.dtype)
        log_prior = ((counts + 1) / (counts.sum() + len(counts))).log()
        return {name: t + sign * log_prior if name.endswith("bias") else t for name, t in head.items()}

    def assemble(self, client: Client, down: Message) -> Weights:
        return {**down.weights("w"), **self.shifted(client, down.weights("head"), 1)}

    def local(self, client: Client, down: Message, correction: Correction | None = None) -> Message:
        up = super().local(client, down, correction)
        return Message(**{**up, "head": self.shifted(client, up.weights("head"), -1)})

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        old = server.weights("w")
        super().merge(server, replies)
        if self.beta:
            step = {name: t - old[name] for name, t in server.weights("w").items()}
            if "v" in server.state:
                step = {name: self.beta * server.weights("v")[name] + t for name, t in step.items()}
            server.state.update(v=step, w={name: old[name] + t for name, t in step.items()})
        if self.prior:
            counts = torch.stack([up.weights("statistics")["counts"] for up in replies.values()]).double()
            shares = (counts / counts.sum(0).clamp(min=1)).T.float()
            heads = [up.weights("head") for up in replies.values()]
            mean = {k: torch.einsum("km,mk...->k...", shares, torch.stack([h[k] for h in heads])) for k in heads[0]}
            server.state.update({f"head.{i}": mean for i in replies})


def accuracies(folder: Path, trial: Trial) -> dict[int, float]:
    """Until the last round, or until training diverges."""
    run = {"seed": SEED, "rounds": 400, "evaluate_every": 10, "personal_every": 0, "engine": "serial"}
    data = {"dataset": "cifar10", "clients": 20, "samples": trial.samples, "test_samples": trial.test_samples}
    config = make_config({"method": trial.method, "data": data, "run": run, "training": dict(trial.training)})
    with suppress(TrainingError):
        advance(config, folder, callbacks=[lambda report: report.round >= trial.rounds])
    found = read_run(folder).accuracy["received"]
    return {t: float(100 * scores.mean()) for t, scores in found.items() if t <= trial.rounds}


if __name__ == "__main__":
    origin = provenance()
    print(f"# {origin['command']}; commit {origin['commit']}; seed {SEED}; torch {origin['versions']['torch']}")
    print("trial,change,round,received")
    for trial in TRIALS:
        for t, mean in accuracies(Path(sys.argv[1]) / trial.name.replace(", ", "-").replace(" ", "-"), trial).items():
            print(f'"{trial.name}","{trial.change}",{t},{mean:.2f}', flush=True)
