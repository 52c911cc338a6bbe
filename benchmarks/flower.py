"""(j) What a real federation costs: rounds over Flower, by a site that stays and by a stock SuperNode, side by side.

Two sites, half a megabyte each way, next to no training: what is measured is everything but the training. Then where
that time goes, how many bytes cross the wire, and the same with 50 MB each way.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.superlink.grid import HttpGrid

from benchmarks.common import Figure, Target, cpu_seconds, machine, progress, save, table, targets_table
from fedpac.callbacks import Callbacks
from fedpac.config import Config, make_config
from fedpac.deploy.certs import make_certificates
from fedpac.deploy.conductor import Plan
from fedpac.deploy.serving import Service
from fedpac.deploy.superlink import end, flower_environment, free_port, start
from fedpac.deploy.trial import join_command
from fedpac.rounds import RoundReport
from fedpac.runs.execute import run as run_here

SITES = ["client-0", "client-1"]
HALF_MB = {"model": "paper", "data": {"dataset": "digits", "clients": 2, "samples": 10, "test_samples": 10}}
LARGE = 1_250_000  # inputs of a linear model with ten outputs: 50 MB


def config_of(rounds: int, engine: str = "flower", **sections: Any) -> Config:
    run = {"rounds": rounds, "evaluate_every": 1_000_000, "engine": engine, "workers": 2}
    return make_config({"method": "fedavg", "training": {"epochs": 1}, "run": run, **(sections or HALF_MB)})


class Deployed:
    """SuperLink, gate and two sites, which stay for as many runs as are asked for."""

    def __init__(self, folder: Path, stack: ExitStack, *more: str, data: Path | None = None) -> None:
        folder.mkdir()
        certificates = folder / "certs"
        make_certificates(certificates, ["localhost"], SITES)
        self.folder, self.runs = folder, 0
        self.service = stack.enter_context(Service(folder / "server", "127.0.0.1", free_port(), certificates, SITES))
        self.wire = Wire(self.service.gate.address)
        stated = folder / "data.toml"
        stated.write_text(config_of(1).to_toml())
        self.sites = []
        for site in SITES:
            where = ["--data", str(data / f"{site}.npz")] if data is not None else ["--simulated", str(stated)]
            command = join_command(self.wire.address, site, certificates, folder / site) + where + list(more)
            self.sites.append(start(command, flower_environment(folder / "flwr"), folder / f"{site}.log"))
            stack.callback(end, self.sites[-1])

    def run(self, config: Config) -> list[RoundReport]:
        """The reports of all rounds but the first, which waits for the sites, and the last, which evaluates."""
        self.runs += 1
        reports: list[RoundReport] = []
        self.service.carry_out(
            Plan(config, self.folder / f"run{self.runs}"), lambda _: None, Callbacks([reports.append])
        )
        return reports[1:-1]

    def cpu(self) -> dict[str, float]:
        assert self.service.link.process is not None
        return {
            "server and gate": time.process_time(),
            "SuperLink": cpu_seconds(self.service.link.process.pid),
            "two sites": sum(cpu_seconds(site.pid) for site in self.sites),
        }


class Wire:
    """Stands between the sites and the gate, and counts the bytes that pass, TLS and all."""

    def __init__(self, behind: str) -> None:
        self.bytes = 0
        host, port = behind.split(":")
        ready = threading.Event()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while data := await reader.read(2**18):
                    self.bytes += len(data)
                    writer.write(data)
                    await writer.drain()
            except OSError:
                pass
            writer.close()

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

        async def serve() -> None:
            server = await asyncio.start_server(meet, "127.0.0.1", 0)
            self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await server.serve_forever()

        threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
        ready.wait()


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    """Seconds that the server spends in Flower's grid, by what it does there."""
    spent = {"push_messages": 0.0, "pull_messages": 0.0}
    originals: dict[str, Callable[..., Any]] = {name: getattr(HttpGrid, name) for name in spent}

    def timed(name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return originals[name](*arguments)
            finally:
                spent[name] += time.perf_counter() - begun

        return call

    for name in spent:
        setattr(HttpGrid, name, timed(name))
    try:
        yield spent
    finally:
        for name, original in originals.items():
            setattr(HttpGrid, name, original)


def large_data(folder: Path) -> Config:
    """Random samples, so that no weight is like another and nothing on the way can make the messages smaller."""
    folder.mkdir()
    stream = np.random.default_rng(0)
    for site in SITES:
        x, y = 1e-3 * stream.standard_normal((2, LARGE), np.float32), np.array([0, 9])
        np.savez(folder / f"{site}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    federation = {"sites": SITES, "classes": 10, "shape": [LARGE]}
    return config_of(4, model="logistic", federation=federation)


def seconds(reports: list[RoundReport]) -> list[float]:
    return [report.seconds for report in reports]


def run(quick: bool = False) -> list[Target]:
    begun = machine()
    turns, rounds = (1, 6) if quick else (2, 12)
    took: dict[str, list[float]] = {"process engine": [], "site that stays": [], "stock SuperNode": []}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        persistent = Deployed(folder / "persistent", stack, "--stay")
        stock = Deployed(folder / "stock", stack, "--stock")
        for turn in range(turns):
            here: list[RoundReport] = []
            run_here(config_of(rounds, "process"), folder / f"here{turn}", callbacks=[here.append])
            took["process engine"] += seconds(here[1:-1])
            with clocked() as spent:
                before, wire = persistent.cpu(), persistent.wire.bytes
                reports = persistent.run(config_of(rounds))
                after = persistent.cpu()
            took["site that stays"] += seconds(reports)
            took["stock SuperNode"] += seconds(stock.run(config_of(4)))
            progress("  " + "  ".join(f"{name} {Figure.of(values).text(3)}" for name, values in took.items()))
        own = sum(report.bytes_up + report.bytes_down for report in reports) / len(reports)
        # in the last round, a model goes down three times: to train, to score and to keep
        wired = (persistent.wire.bytes - wire) / own / (rounds + 1)
        where = [
            ["the round", f"{Figure.of(seconds(reports)).median:.3f}"],
            ["of it, the server hands messages to SuperLink", f"{spent['push_messages'] / (rounds + 2):.3f}"],
            ["the server asks SuperLink for answers and fetches them", f"{spent['pull_messages'] / (rounds + 2):.3f}"],
            ["training at the two sites, summed", f"{np.median([r.client_seconds for r in reports]):.3f}"],
            *([f"CPU of {name}", f"{(after[name] - before[name]) / (rounds + 2):.3f}"] for name in before),
        ]
        config = large_data(folder / "data")
        large = Deployed(folder / "large", stack, "--stay", data=folder / "data")
        heavy_wire = large.wire.bytes
        heavy = large.run(config)
        heavy_own = sum(report.bytes_up + report.bytes_down for report in heavy) / len(heavy)
        heavy_wired = (large.wire.bytes - heavy_wire) / heavy_own / (config.run.rounds + 1)
    here_median = Figure.of(took["process engine"]).median
    rows = [
        [name, Figure.of(values).text(3), f"{Figure.of(values).median / here_median:.1f}"]
        for name, values in took.items()
    ]
    overhead = Figure.of(took["site that stays"])
    slower = Figure.of(took["stock SuperNode"]).median / overhead.median
    targets = [Target("a round over Flower, 2 sites, 0.5 MB each way, seconds", overhead, 0.5, at_least=False)]
    markdown = "\n\n".join(
        [
            table(
                ["two clients, 0.47 MB each way, next to no training", "seconds a round", "this / process engine"], rows
            ),
            f"A stock SuperNode takes {slower:.1f} times as long as a site that stays: it starts a process for each "
            "message and sleeps between two looks.",
            table(["where the time goes (site that stays)", "seconds a round"], where),
            f"On the wire, TLS and all: {wired:.3f} times the messages' own size. With 50 MB each way: "
            f"{Figure.of(seconds(heavy)).text(2)} seconds a round, {heavy_wired:.3f} times the messages' own size.",
            targets_table(targets),
        ]
    )
    data = {
        "seconds": took, "where": where, "wire": wired, "large": {"seconds": seconds(heavy), "wire": heavy_wired},
        "targets": [target.to_json() for target in targets],
    }  # fmt: skip
    save("flower", data, markdown, begun)
    return targets
