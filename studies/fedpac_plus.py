"""Which changes of FedPAC are worth having? Trials on seeds that no table reports, the negative ones included.

    python studies/fedpac_plus.py runs/trials > results/fedpac-plus-trials.csv

Runs what is missing of the trials below into that folder (CIFAR-10, 20 clients, about four seconds a round), and prints
the accuracy of the received models, the mean over clients.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from fedpac.client import Client
from fedpac.config import make_config
from fedpac.message import Message, Weights
from fedpac.methods.fedpac import FedPAC
from fedpac.provenance import provenance
from fedpac.runs.execute import advance
from fedpac.runs.read import read_run
from fedpac.server import Server

SEED, ROUNDS = 10, 60
TRIALS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("server momentum 0.5 of the body", {"method": {"beta": 0.5}}),
    "momentum, prior apart": (
        "and heads without their client's class frequencies, each row averaged over all clients by class counts",
        {"method": {"beta": 0.5, "prior": True}},
    ),
    "momentum, rate": ("and twice the body's learning rate", {"method": {"beta": 0.5}, "training": {"lr": 0.04}}),
    "momentum, rate, decay": (
        "and augmented statistics, and ten times the weight decay",
        {"method": {"beta": 0.5, "augmented": True}, "training": {"lr": 0.04, "weight_decay": 0.005}},
    ),
}


class Trial(FedPAC):
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

    def local(self, client: Client, down: Message) -> Message:
        up = super().local(client, down)
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


def accuracies(folder: Path, settings: dict[str, Any]) -> dict[int, float]:
    method = {"name": "fedpac_plus:Trial", **settings.get("method", {})}
    run = {"seed": SEED, "rounds": 400, "evaluate_every": 10, "personal_every": 0, "engine": "serial"}
    data = {"dataset": "cifar10", "clients": 20}
    config = make_config({"method": method, "data": data, "run": run, "training": settings.get("training", {})})
    advance(config, folder, callbacks=[lambda report: report.round >= ROUNDS])
    found = read_run(folder).accuracy["received"]
    return {t: float(100 * scores.mean()) for t, scores in found.items() if t <= ROUNDS}


if __name__ == "__main__":
    origin = provenance()
    print(f"# {origin['command']}; commit {origin['commit']}; seed {SEED}; torch {origin['versions']['torch']}")
    print("trial,change,round,received")
    for name, (what, settings) in TRIALS.items():
        for t, mean in accuracies(Path(sys.argv[1]) / name.replace(", ", "-").replace(" ", "-"), settings).items():
            print(f'"{name}","{what}",{t},{mean:.2f}', flush=True)
