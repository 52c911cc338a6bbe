"""What a client gets that never took part: FedPAC's welcome beside a global model, training alone and taking part.

    python studies/newcomers.py RUNS > results/newcomers.csv         RUNS: a folder of runs, which are continued
    python studies/newcomers.py RUNS fashion-mnist/fedavg            only this run, and no table
    python studies/newcomers.py RUNS fashion-mnist=100,600           only these rows

Clients 16 to 19 of 20 stay away, one of each of four groups. They come after the last round with 5, 20, 100 or all 600
of their training images; the accuracy is that on their 600 test images. Which images they bring is drawn five times.
`took part` is FedPAC with all 20 clients from the start, those four with the images of the first draw. With all 600
images, that and `alone` are those four in the committed runs of 20 clients.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, pstdev

import torch
from torch import Tensor

from fedpac.api import Result, fit
from fedpac.bundles.client_model import ClientModel
from fedpac.config import Config, make_config
from fedpac.data.clients import ClientData, Samples, Scenario
from fedpac.data.scenario import build
from fedpac.engines import SerialEngine
from fedpac.methods import Method, make_method
from fedpac.networks import build_model
from fedpac.provenance import provenance
from fedpac.randomness import torch_stream
from fedpac.runs.execute import conduct, make_task, saved_state
from fedpac.runs.folder import RunStore
from fedpac.runs.origins import census_of
from fedpac.runs.read import read_run
from fedpac.server import Server

DATASETS = ("fashion-mnist", "cifar10")
NEWCOMERS = (16, 17, 18, 19)
SIZES = (5, 20, 100, 600)
ROUNDS = {"fashion-mnist": 100, "cifar10": 30}
DRAWS = 5
COMMITTED = Path(__file__).parent.parent / "results"


def config_of(dataset: str, method: str) -> Config:
    run = {"rounds": ROUNDS[dataset], "evaluate_every": ROUNDS[dataset], "engine": "serial", "checkpoint_every": 2}
    return make_config({"method": method, "data": {"dataset": dataset}, "run": run})


def few(data: ClientData, client: int, size: int, draw: int) -> ClientData:
    """The client with so many of its training samples."""
    order = torch.randperm(len(data.train), generator=torch_stream(draw, "newcomer", client))
    return replace(data, train=replace(data.train, index=data.train.index[order[:size]]))


def scenario_of(whole: Scenario, size: int) -> Scenario:
    """Those who take part: all but the newcomers, or all of them where these have so many samples."""
    clients = [few(data, i, size, 0) if i in NEWCOMERS else data for i, data in enumerate(whole.clients)]
    return replace(whole, clients=clients if size else [d for i, d in enumerate(clients) if i not in NEWCOMERS])


def names(dataset: str) -> dict[str, tuple[str, int]]:
    """Runs: name -> method, and the samples that newcomers have in it; 0: they stay away."""
    runs = {f"{dataset}/{method}": (method, 0) for method in ("fedpac", "fedavg")}
    return runs | {f"{dataset}/took-part-{size}": ("fedpac", size) for size in SIZES[:-1]}


def trained(name: str, folder: Path) -> Result:
    """The run's result; what is left of the run is done first."""
    dataset = name.partition("/")[0]
    method, size = names(dataset)[name]
    config = config_of(dataset, method)
    scenario, store = scenario_of(build(config.data, 0), size), RunStore(folder / name)
    task = make_task(config, scenario)
    with store.locked(create=True):
        if not store.finished:
            conduct(config, store, task, census_of(scenario), lambda m: SerialEngine(task, m, scenario.clients))
    saved = saved_state(store, config)
    assert saved is not None
    server = Server(task, saved.server)
    server.round = saved.round
    return Result(task, config.make_method(), scenario, server, saved.clients, [])


def arrays(part: Samples) -> tuple[Tensor, Tensor]:
    return part.pool.x[part.index], part.labels()


def accuracy(model: ClientModel, data: ClientData) -> float:
    x, y = arrays(data.test)
    return 100 * float((torch.from_numpy(model.predict(x)) == y).double().mean())


def welcomed(result: Result, method: Method, data: ClientData) -> float:
    return accuracy(replace(result, method=method).welcome(*arrays(data.train)), data)


def committed(dataset: str, method: str) -> float:
    """The four in a run of all 20 clients with 600 images each."""
    run = read_run(COMMITTED / f"{dataset}-20" / f"{method}-seed0")
    return 100 * float(run.accuracy["received"][ROUNDS[dataset]][list(NEWCOMERS)].mean())


def alone(newcomers: Sequence[ClientData], like: Result) -> float:
    """Local training only, for as many rounds as the others had."""
    rounds = like.server.round
    task = like.task
    recipe = task.recipe.model_dump(include={"lr", "momentum", "weight_decay", "batch", "epochs"})
    network = build_model("paper", like.scenario.shape, task.classes, task.seed)
    scenario = replace(like.scenario, clients=list(newcomers))
    result = fit(network, scenario, "local", rounds=rounds, evaluate_every=rounds, engine="serial", **recipe)
    return mean(accuracy(result.model(i, "received"), data) for i, data in enumerate(newcomers))


def took_part(dataset: str, size: int, folder: Path) -> list[float]:
    """Those four among the 20 of FedPAC, after the same number of rounds; nothing if that run has not been made."""
    if size < SIZES[-1]:
        if not RunStore(folder / f"{dataset}/took-part-{size}").finished:
            return []
        result = trained(f"{dataset}/took-part-{size}", folder)
        return [mean(accuracy(result.model(i), result.scenario.clients[i]) for i in NEWCOMERS)]
    return [committed(dataset, "fedpac")]


def measure(dataset: str, sizes: Sequence[int], folder: Path) -> None:
    """The rows of one data set."""
    fedpac, fedavg = trained(f"{dataset}/fedpac", folder), trained(f"{dataset}/fedavg", folder)
    whole = build(config_of(dataset, "fedpac").data, 0).clients
    everybodys = mean(accuracy(fedavg.welcome(), whole[i]) for i in NEWCOMERS)
    for size in sizes:
        found: dict[str, list[float]] = {"FedPAC, welcome": [], "FedAvg-FT": [], "alone": []}
        for draw in range(DRAWS if size < SIZES[-1] else 1):
            newcomers = [few(whole[i], i, size, draw) for i in NEWCOMERS]
            found["FedPAC, welcome"].append(mean(welcomed(fedpac, fedpac.method, data) for data in newcomers))
            found["FedAvg-FT"].append(mean(welcomed(fedavg, make_method("fedavg-ft"), data) for data in newcomers))
            found["alone"].append(alone(newcomers, fedpac) if size < SIZES[-1] else committed(dataset, "local"))
        found |= {"FedAvg": [everybodys], "took part": took_part(dataset, size, folder)}
        for name, values in found.items():
            if values:
                numbers = f"{mean(values):.2f},{pstdev(values):.2f},{len(values)},{ROUNDS[dataset]}"
                print(f'{dataset},{size},"{name}",{numbers}', flush=True)


def main() -> None:
    folder, *chosen = sys.argv[1:]
    for name in [name for name in chosen if "/" in name]:
        trained(name, Path(folder))
    datasets = [name for name in chosen or DATASETS if "/" not in name]
    if not datasets:
        return
    about = provenance()
    print("dataset,samples,model,accuracy_percent,std_over_draws,draws,rounds")
    print(f"# {about['command']}; seed 0; commit {about['commit']}; torch {about['versions']['torch']}", flush=True)
    for dataset, _, sizes in (name.partition("=") for name in datasets):
        measure(dataset, [int(size) for size in sizes.split(",")] if sizes else SIZES, Path(folder))


if __name__ == "__main__":
    main()
