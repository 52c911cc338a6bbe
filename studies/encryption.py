"""What encryption costs and what it changes: FedPAC in the clear beside FedPAC with CKKS, round by round.

python studies/encryption.py [ROUNDS] > results/encryption.csv        Fashion-MNIST, 20 clients, seed 0

After every encrypted round all that the clients sent is decrypted here, summed in the clear with the same weights, and
compared with what the server made of the ciphertexts. That is the error of encryption; afterwards the two runs drift
apart as any two runs do that differ in the seventh digit.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import torch

from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines import ProcessEngine
from fedpac.message import Message
from fedpac.mods.base import Context, into_client
from fedpac.mods.ckks import Ckks
from fedpac.provenance import provenance
from fedpac.runs.execute import make_federation, make_task
from fedpac.weights import average, weighted_sum


class Listening(ProcessEngine):
    """Keeps what the clients answered in the last round."""

    def run(self, jobs):
        outcomes = list(super().run(jobs))
        if any(outcome.up is not None for outcome in outcomes):
            self.heard = {outcome.client: outcome.up for outcome in outcomes}
        return outcomes


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    about = provenance()
    versions = f"torch {about['versions']['torch']}, tenseal {__import__('tenseal').__version__}"
    print(f"# {about['command']}; seed 0; commit {about['commit']}; {versions}")
    columns = "encryption,round,seconds,megabytes_up,megabytes_down,received_percent,error_of_heads,error_of_body"
    print(columns, flush=True)
    medians = {}
    for encryption in ("none", "ckks"):
        values = {
            "method": "fedpac",
            "data": {"dataset": "fashion-mnist", "clients": 20},
            "privacy": {"encryption": encryption},
            "run": {"rounds": rounds, "evaluate_every": rounds, "personal_every": 0},
        }
        config = make_config(values)
        scenario = build(config.data, 0)
        seconds = []
        with tempfile.TemporaryDirectory() as folder:
            task, method = make_task(config, scenario, key=Path(folder) / "ckks.key"), config.make_method()
            if encryption == "ckks":
                (mod,) = task.mods
                assert isinstance(mod, Ckks)
                print(f"# {mod.parameters}", flush=True)
            with Listening(task, method, scenario.clients) as engine:
                federation = make_federation(config, task, method, engine)
                for report in federation.rounds():
                    seconds += [report.seconds] if 1 < report.round < rounds else []  # neither start nor evaluation
                    scores = report.accuracies("received")
                    shown = f"{100 * sum(scores) / len(scores):.3f}" if scores else ""
                    off = ["", ""] if encryption == "none" else [f"{e:.2e}" for e in errors(task, federation, engine)]
                    up, down = report.bytes_up / 1e6, report.bytes_down / 1e6
                    row = (encryption, report.round, f"{report.seconds:.3f}", f"{up:.1f}", f"{down:.1f}", shown, *off)
                    print(*row, sep=",", flush=True)
        medians[encryption] = statistics.median(seconds)
    ratio = medians["ckks"] / medians["none"]
    print(
        f"# median seconds of a round: {medians['none']:.3f} plain, {medians['ckks']:.3f} encrypted, {ratio:.2f} times"
    )


def errors(task, federation, engine) -> tuple[float, float]:
    """The largest difference between sums of ciphertexts and sums of what is in them: of heads, and of the body."""

    def opened(parts):
        return into_client(task.mods, Message(**parts), Context(0, 1)).message

    replies = {i: opened(up) for i, up in engine.heard.items()}
    heads = {i: up.weights("head") for i, up in replies.items()}
    rows: dict[int, dict[int, float]] = {}
    for i, j, weight in federation.method.peer_weights(federation.server):
        rows.setdefault(i, {})[j] = weight
    found = opened({f"head.{i}": federation.server.state[f"head.{i}"].to_tensors() for i in rows})
    of_heads = max(
        difference(found.weights(f"head.{i}"), weighted_sum([heads[j] for j in used], list(used.values())))
        for i, used in rows.items()
    )
    body = average({i: up.weights("w") for i, up in replies.items()}, {i: up.number("n") for i, up in replies.items()})
    return of_heads, difference(opened({"w": federation.server.state["w"].to_tensors()}).weights("w"), body)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


if __name__ == "__main__":
    main()
