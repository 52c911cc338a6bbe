"""A contender: FedAvg on Flower's simulation engine (Ray): two actors with one thread each, data and model resident.

python -m benchmarks.peers_flower WORKLOAD_FILE {nchw,nhwc}        in the peers' environment
"""

import functools
import os
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contender import say, wait_for_go
from benchmarks.networks import load_initial, network

ACTORS = 2
FILE, LAYOUT = os.environ.get("BENCH_FILE", ""), os.environ.get("BENCH_LAYOUT", "nchw")  # the actors inherit these


@functools.cache
def workload() -> dict[str, Any]:
    found: dict[str, Any] = torch.load(FILE, mmap=True)
    return found


@functools.cache
def net() -> torch.nn.Module:
    """One resident network per actor."""
    torch.set_num_threads(1)
    file = workload()
    made: Any = network(file["network"], file["x"].shape[2], file["classes"])
    load_initial(made, file["initial"])
    return made.to(memory_format=torch.channels_last) if LAYOUT == "nhwc" else made


@functools.cache
def client_data(i: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised once, then kept in the actor's memory."""
    file = workload()
    x = (file["x"][i] / 255 - file["mean"].view(1, -1, 1, 1)) / file["std"].view(1, -1, 1, 1)
    return (x.contiguous(memory_format=torch.channels_last) if LAYOUT == "nhwc" else x), file["y"][i].clone()


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model, recipe = net(), workload()["recipe"]
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = client_data(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(
        model.parameters(), recipe["lr"], recipe["momentum"], weight_decay=recipe["weight_decay"]
    )
    model.train()
    for _ in range(recipe["epochs"]):
        for index in torch.randperm(len(y)).split(recipe["batch"]):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content=reply, reply_to=message)


class TimedFedAvg(FedAvg):
    """Flower's own FedAvg; a round begins when the parent says so, and ends with the new global model."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not wait_for_go():
            os._exit(0)
        self.start_of_round = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        failed = [reply for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(failed[0].error.reason)
        say(seconds=time.perf_counter() - self.start_of_round, clients=len(replies))
        return result


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    file = workload()
    share = file["chosen"] / len(file["x"])
    strategy = TimedFedAvg(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=len(file["x"]))
    say(ready=True)
    strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=1_000_000)


if __name__ == "__main__":
    os.environ |= {
        "BENCH_FILE": sys.argv[1], "BENCH_LAYOUT": sys.argv[2], "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # as for all other contenders; Ray's default is 15
    }  # fmt: skip
    warnings.simplefilter("ignore")
    from benchmarks import peers_flower  # by its own name, so that the actors import it and keep their caches

    peers_flower.FILE, peers_flower.LAYOUT = sys.argv[1], sys.argv[2]
    run_simulation(
        peers_flower.server_app, peers_flower.client_app, num_supernodes=len(peers_flower.workload()["x"]),
        backend_config={
            "init_args": {"num_cpus": ACTORS, "log_to_driver": False, "logging_level": "error"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
