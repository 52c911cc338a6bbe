"""Why does FedPAC+ stop gaining after a hundred rounds? Trials on a seed that no table reports.

    python -m studies.late_rounds results/late-rounds.csv runs/late [MOST]

20 clients, 200 rounds, seed 10: the accuracy of the received models every tenth round, the mean over clients; empty
from where training diverged. Started again, it goes on with the trials that are missing. Two to twenty minutes each.
"""

import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from studies.rows import fill
from torch import nn

from fedpac.client import Client
from fedpac.config import make_config
from fedpac.errors import TrainingError
from fedpac.message import Message
from fedpac.methods.fedpac_plus import FedPACPlus
from fedpac.runs.execute import advance
from fedpac.runs.read import read_run
from fedpac.server import Server
from fedpac.weights import weighted_sum

SEED, ROUNDS, EVERY = 10, 200, 10
SETTINGS = {"few": ("cifar10", 100), "many": ("fashion-mnist", 600)}
STEADY = {"growth": 1.0, "warmup": 0, "falls_from": 0}
VARIANT = "studies.late_rounds:Variant"
SLOWER = {"name": VARIANT, "growth": 4.98, "growth_rounds": 199, "half": 50}

TRIALS: dict[tuple[str, str], dict[str, Any]] = {
    ("few", "FedPAC"): {"name": "fedpac"},
    ("few", "FedPAC, lambda 5"): {"name": "fedpac", "lam": 5.0},
    ("few", "steady"): {"name": "fedpac-plus", **STEADY},
    ("few", "steady, three head epochs"): {"name": "fedpac-plus", **STEADY, "head_epochs": 3},
    ("few", "steady, moving average of bodies"): {"name": VARIANT, **STEADY, "kept": 0.9},
    ("few", "steady, lambda 5"): {"name": "fedpac-plus", **STEADY, "lam": 5.0},
    ("few", "steady, lambda 10"): {"name": "fedpac-plus", **STEADY, "lam": 10.0},
    ("few", "growing alignment"): {"name": "fedpac-plus", "falls_from": 0},
    ("few", "alignment grows half as fast, rate falls from the start"): SLOWER,
    ("few", "growing alignment, rate falls from round 50 on"): {"name": "fedpac-plus"},
    ("many", "steady"): {"name": "fedpac-plus", **STEADY},
    ("many", "warm-up, lambda 3"): {"name": "fedpac-plus", **STEADY, "warmup": 10, "lam": 3.0},
    ("many", "warm-up, rate falls to zero"): {"name": VARIANT, **STEADY, "warmup": 10, "cosine": True},
    ("many", "warm-up, rate falls from the start"): {"name": VARIANT, **STEADY, "warmup": 10, "half": 100},
    ("many", "growing alignment"): {"name": "fedpac-plus", "falls_from": 0},
    ("many", "alignment grows half as fast, rate falls from the start"): SLOWER,
    ("many", "growing alignment, rate falls from round 50 on"): {"name": "fedpac-plus"},
}  # fmt: skip


class Variant(FedPACPlus):
    """FedPAC+ with what it does not have."""

    name: ClassVar[str] = "variant"
    title: ClassVar[str] = "Variant"

    falls_from: int = 0
    half: Annotated[int, Field(ge=0, description="rounds after which the body's rate is half of what it was")] = 0
    cosine: Annotated[bool, Field(description="the body's rate falls to zero")] = False
    kept: Annotated[float, Field(ge=0, lt=1, description="of the moving average that clients predict with")] = 0.0

    def body_lr(self, client: Client) -> float:
        past = client.round - 1
        fall = 1 + past / self.half if self.half else 1.0
        rise = 0.5 * (1 + math.cos(math.pi * past / ROUNDS)) if self.cosine else 1.0
        return super().body_lr(client) * rise / fall

    def merge(self, server: Server, replies: dict[int, Message]) -> None:
        super().merge(server, replies)
        if self.kept:
            now = server.weights("w")
            before = server.weights("slow") if "slow" in server.state else now
            server.state["slow"] = weighted_sum([before, now], [self.kept, 1 - self.kept])

    def send(self, server: Server, client: int) -> Message:
        down = super().send(server, client)
        return Message(**down, slow=server.weights("slow")) if "slow" in server.state else down

    def received(self, client: Client, down: Message) -> nn.Module:
        slow = down.weights("slow") if "slow" in down else {}
        return client.with_weights({**self.assemble(client, down), **slow})


def accuracies(folder: Path, setting: str, trial: str) -> list[object]:
    dataset, samples = SETTINGS[setting]
    config = make_config({
        "method": TRIALS[setting, trial],
        "data": {"dataset": dataset, "clients": 20, "samples": samples},
        "run": {"seed": SEED, "rounds": ROUNDS, "evaluate_every": EVERY, "personal_every": ROUNDS, "engine": "serial"},
    })  # fmt: skip
    with suppress(TrainingError):
        advance(config, folder)
    found = read_run(folder).accuracy["received"]
    return [float(100 * found[t].mean()) if t in found else "" for t in range(EVERY, ROUNDS + 1, EVERY)]


if __name__ == "__main__":
    table, runs = Path(sys.argv[1]), Path(sys.argv[2])
    most = int(sys.argv[3]) if len(sys.argv) > 3 else len(TRIALS)

    def measure(cell: tuple[str, str]) -> list[object]:
        setting, trial = cell[0], cell[1].strip('"')
        return accuracies(runs / f"{setting}-{trial.replace(',', '').replace(' ', '-')}", setting, trial)

    columns = ("setting", "trial", *(f"round {t}" for t in range(EVERY, ROUNDS + 1, EVERY)))
    fill(table, columns, [(setting, f'"{trial}"') for setting, trial in TRIALS], measure, most, f"seed {SEED}")
