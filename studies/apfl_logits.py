"""Is APFL below the paper on CIFAR-10 because parameters are mixed here, and logits in its authors' code?

    python -m studies.apfl_logits results/apfl-logits.csv runs/apfl-logits

CIFAR-10, 20 clients, seed 0, to round 60: the mean personal accuracy over clients of APFL with mixed logits, and of the
run in results/cifar10-20/apfl-seed0 in the same rounds. About twenty minutes on one core.
"""

import sys
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from fedpac.client import Client
from fedpac.config import make_config
from fedpac.message import Message
from fedpac.methods.apfl import APFL, half
from fedpac.models import weights_of
from fedpac.provenance import provenance
from fedpac.runs.execute import advance
from fedpac.runs.read import read_run
from fedpac.training import Batch, train

RESULTS = Path(__file__).parents[1] / "results"
ROUNDS = 60


class Ensemble(nn.Module):
    """alpha v(x) + (1 - alpha) w(x)."""

    def __init__(self, alpha: float, v: nn.Module, w: nn.Module) -> None:
        super().__init__()
        self.alpha, self.v, self.w = alpha, v, w

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.alpha * self.v(x) + (1 - self.alpha) * self.w(x)
        return mixed


class MixedLogits(APFL):
    name: ClassVar[str] = "mixed-logits"
    title: ClassVar[str] = "APFL, mixed logits"

    def local(self, client: Client, down: Message) -> Message:
        alpha = self.share(client)
        pair = nn.ModuleDict({"w": client.own_model(down.weights("w")), "v": client.own_model(client.weights("v"))})

        def loss(pair: nn.Module, batch: Batch) -> Tensor:
            assert isinstance(pair, nn.ModuleDict)
            ours = pair["w"](batch.x)
            return batch.loss(ours) + batch.loss(alpha * pair["v"](batch.x) + (1 - alpha) * ours.detach())

        trained = train(client, weights_of(pair), model=pair, loss=loss)
        client.state["v"] = half(trained, "v")
        return Message(w=half(trained, "w"), n=client.n)

    def received(self, client: Client, down: Message) -> nn.Module:
        models = [client.own_model(weights) for weights in (client.weights("v"), down.weights("w"))]
        return Ensemble(self.share(client), *models)


if __name__ == "__main__":
    table, folder = Path(sys.argv[1]), Path(sys.argv[2])
    config = make_config(
        {
            "method": {"name": "studies.apfl_logits:MixedLogits"},
            "data": {"dataset": "cifar10", "clients": 20},
            "run": {"rounds": ROUNDS, "evaluate_every": 10, "engine": "serial"},
        }
    )
    advance(config, folder)
    about = provenance()
    lines = [f"# {about['command']}; seed 0; commit {about['commit']}; torch {about['versions']['torch']}"]
    lines.append("round,mixed logits,mixed parameters")
    logits, parameters = (read_run(run).accuracy["personal"] for run in (folder, RESULTS / "cifar10-20" / "apfl-seed0"))
    for t in sorted(logits):
        lines.append(f"{t},{100 * logits[t].mean():.2f},{100 * parameters[t].mean():.2f}")
    table.write_text("\n".join(lines) + "\n")
    print(table.read_text())
