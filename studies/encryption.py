"""What encryption costs and what it changes: FedPAC in the clear beside FedPAC with CKKS, round by round.

python studies/encryption.py [ROUNDS] > results/encryption.csv        Fashion-MNIST, 20 clients, seed 0

After every encrypted round all that the clients sent is decrypted here, summed in the clear with the same weights, and
compared with what the server made of the ciphertexts. That is the error of encryption; afterwards the two runs drift
apart as any two runs do that differ in the seventh digit.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch

from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines import ProcessEngine
from fedpac.engines.site import Job, Outcome
from fedpac.federation import Federation
from fedpac.message import Message, Payload
from fedpac.mods.base import Context, into_client
from fedpac.mods.ckks import Ckks
from fedpac.provenance import provenance
from fedpac.runs.execute import make_federation, make_task
from fedpac.weights import average, weighted_sum


class Listening(ProcessEngine):
    """Keeps what the clients answered in the last round."""

    heard: dict[int, Message]

    def run(self, jobs: Sequence[Job]) -> Iterable[Outcome]:
        outcomes = list(super().run(jobs))
        if any(outcome.up is not None for outcome in outcomes):
            self.heard = {outcome.client: outcome.up for outcome in outcomes if outcome.up is not None}
        return outcomes


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    about = provenance()
    versions = f"torch {about['versions']['torch']}, tenseal {__import__('tenseal').__version__}"
    print(f"# {about['command']}; seed 0; commit {about['commit']}; {versions}")
    columns = "encryption,round,seconds,megabytes_up,megabytes_down,received_percent,error_of_heads,error_of_body"
    print(columns, flush=True)
    seconds: dict[str, list[float]] = {"none": [], "ckks": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {encryption: start(encryption, rounds, folder, stack) for encryption in seconds}
        (mod,) = running["ckks"].task.mods
        assert isinstance(mod, Ckks)
        print(f"# {mod.parameters}", flush=True)
        for t in range(1, rounds + 1):
            for encryption, federation in running.items():  # in turns: what else the machine does hits both alike
                report = federation.step()
                seconds[encryption] += [report.seconds] if 1 < t < rounds else []  # neither start nor evaluation
                scores = report.accuracies("received")
                shown = f"{100 * sum(scores) / len(scores):.3f}" if scores else ""
                off = ["", ""] if encryption == "none" else [f"{error:.2e}" for error in errors(federation)]
                up, down = report.bytes_up / 1e6, report.bytes_down / 1e6
                row = (encryption, t, f"{report.seconds:.3f}", f"{up:.1f}", f"{down:.1f}", shown, *off)
                print(*row, sep=",", flush=True)
    plain, hidden = (statistics.median(seconds[encryption]) for encryption in seconds)
    each = statistics.median(b / a for a, b in zip(seconds["none"], seconds["ckks"], strict=True))
    print(f"# median seconds of a round: {plain:.3f} plain, {hidden:.3f} encrypted; median ratio {each:.2f}")


def start(encryption: str, rounds: int, folder: Path, stack: ExitStack) -> Federation:
    values = {
        "method": "fedpac",
        "data": {"dataset": "fashion-mnist", "clients": 20},
        "privacy": {"encryption": encryption},
        "run": {"rounds": rounds, "evaluate_every": rounds, "personal_every": 0},
    }
    config = make_config(values)
    scenario = build(config.data, 0)
    task, method = make_task(config, scenario, key=folder / "ckks.key"), config.make_method()
    engine = stack.enter_context(Listening(task, method, scenario.clients))
    return make_federation(config, task, method, engine)


def errors(federation: Federation) -> tuple[float, float]:
    """The largest difference between sums of ciphertexts and sums of what is in them: of heads, and of the body."""

    engine = federation.engine
    assert isinstance(engine, Listening)

    def opened(parts: dict[str, Any]) -> Message:
        return into_client(federation.task.mods, Message(**parts), Context(0, 1)).message

    replies = {i: opened(dict(up)) for i, up in engine.heard.items()}
    heads = {i: up.weights("head") for i, up in replies.items()}
    rows: dict[int, dict[int, float]] = {}
    for i, j, weight in federation.method.peer_weights(federation.server):
        rows.setdefault(i, {})[j] = weight
    state = federation.server.state
    found = opened({f"head.{i}": cast(Payload, state[f"head.{i}"]).to_tensors() for i in rows})
    of_heads = max(
        difference(found.weights(f"head.{i}"), weighted_sum([heads[j] for j in used], list(used.values())))
        for i, used in rows.items()
    )
    body = average({i: up.weights("w") for i, up in replies.items()}, {i: up.number("n") for i, up in replies.items()})
    return of_heads, difference(opened({"w": cast(Payload, state["w"]).to_tensors()}).weights("w"), body)


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


if __name__ == "__main__":
    main()
