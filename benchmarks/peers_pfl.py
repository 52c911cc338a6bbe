"""A contender: FedAvg on Apple's pfl, two single-threaded processes that share the cohort, data and model resident.

    python -m benchmarks.peers_pfl WORKLOAD_FILE {nchw,nhwc}        in the peers' environment

It starts its second process by itself, in the environment that torchrun would give it.
"""

import os
import socket
import subprocess
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.contender import say, wait_for_go
from benchmarks.networks import load_initial, network

PROCESSES = 2


def torchrun_environment(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES), "LOCAL_WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "bench",
        "PFL_PYTORCH_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(path: str, layout: str) -> None:
    # pfl joins the other process while it is being imported
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    file: dict[str, Any] = torch.load(path, mmap=True)
    recipe, rank = file["recipe"], int(os.environ["RANK"])
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    net: Any = network(file["network"], file["x"].shape[2], file["classes"])
    load_initial(net, file["initial"])
    net = net.to(memory_format=form)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net.train()
        return F.cross_entropy(net(x), y)

    net.loss, net.metrics = loss, lambda x, y: {}

    mean, std = (file[name].view(1, -1, 1, 1) for name in ("mean", "std"))
    users = {
        i: Dataset((((x / 255 - mean) / std).contiguous(memory_format=form), y.clone()), user_id=str(i))
        for i, (x, y) in enumerate(zip(file["x"], file["y"], strict=True))
    }
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))

    def optimizer(parameters: Any, lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr, recipe["momentum"], weight_decay=recipe["weight_decay"])

    class Turns(TrainingProcessCallback[Any]):
        """A round begins when the parent says so; the other process waits with the first."""

        def begin(self) -> bool:
            more = torch.tensor([float(wait_for_go()) if rank == 0 else 0.0])
            torch.distributed.all_reduce(more)
            self.start = time.perf_counter()
            return bool(more)

        def on_train_begin(self, *, model: Any) -> Metrics:
            if rank == 0:
                say(ready=True)
            self.begin()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if rank == 0:
                say(seconds=time.perf_counter() - self.start, clients=file["chosen"])
            return not self.begin(), Metrics()

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=1_000_000, evaluation_frequency=1_000_000,
            train_cohort_size=file["chosen"], val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(net, optimizer, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=recipe["epochs"], local_learning_rate=recipe["lr"], local_batch_size=recipe["batch"]
        ),
        callbacks=[Turns()],
        send_metrics_to_platform=False,
    )  # fmt: skip


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(sys.argv[1], sys.argv[2])
    else:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.peers_pfl", *sys.argv[1:]]
        second = subprocess.Popen(
            command, env={**os.environ, **torchrun_environment(1, port)}, stdin=subprocess.DEVNULL
        )
        first = subprocess.run(command, env={**os.environ, **torchrun_environment(0, port)})
        second.wait(timeout=20)
        sys.exit(first.returncode)
