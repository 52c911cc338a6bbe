"""Compression: what travels is smaller, what arrives is near, and what is left out is not lost."""

import pytest
import torch

from fedpac.engines import SerialEngine, make_engine
from fedpac.errors import MessageError, RunError
from fedpac.federation import Federation
from fedpac.message import Message
from fedpac.methods import list_methods, make_method
from fedpac.mods import Context, Float16, Mod, Passage, TopK
from fedpac.mods.base import into_client, out_of_server
from fedpac.recipe import Recipe
from fedpac.task import Task
from helpers import CLASSES, INPUTS, RECIPE, Finished, run_federation, tiny_data, tiny_model


def federation(name: str, *mods: Mod, engine: str = "serial", rounds: int = 3) -> Finished:
    data = tiny_data()
    sample = torch.zeros(INPUTS)
    task = Task(tiny_model("norm"), CLASSES, Recipe(**RECIPE), 3, len(data), rounds, sample=sample, mods=mods)
    method = make_method(name)
    with make_engine(engine, task, method, data, 2) as running:
        running_federation = Federation(task, method, running)
        return Finished(task, running_federation, list(running_federation.rounds()))


@pytest.mark.parametrize("mod", [Float16(), TopK(0.3)])
@pytest.mark.parametrize("name", list_methods())
def test_every_method_runs_compressed_and_equally_on_every_engine(name, mod):
    if name == "pfedfda" and isinstance(mod, TopK):  # the largest changes of a covariance make no covariance
        with pytest.raises(RunError, match="'gaussian' at 'covariance' is not a covariance"):
            federation(name, mod)
        return
    serial, process = federation(name, mod), federation(name, mod, engine="process")
    assert serial.scores() == process.scores()
    assert serial.bytes() == process.bytes()
    plain = federation(name)
    assert sum(r.bytes_up for r in serial.reports) <= sum(r.bytes_up for r in plain.reports)


def test_half_precision_halves_the_bytes():
    small, plain = federation("fedavg", Float16()), federation("fedavg")
    for which in ("bytes_down", "bytes_up"):
        ratio = getattr(small.reports[0], which) / getattr(plain.reports[0], which)
        assert 0.5 <= ratio < 0.55  # a counter of batches and the number of samples stay as they are


def test_what_half_precision_cannot_hold_travels_whole():
    sent = Message(w={"a": torch.tensor([1.0, 1e6]), "b": torch.tensor([2.0])}, n=3)
    passage = out_of_server([Float16()], sent, Context(0, 1))
    assert passage.message.weights("w")["a"].dtype == torch.float32
    assert passage.message.weights("w")["b"].dtype == torch.float16
    assert into_client([Float16()], passage.message, Context(0, 1)).message == sent


def test_top_k_of_everything_is_nothing_lost():
    whole, plain = (
        federation("fedavg", TopK(1.0)),
        run_federation(make_method("fedavg"), rounds=3, model=tiny_model("norm")),
    )
    for name, tensor in plain.server.weights("w").items():
        torch.testing.assert_close(whole.server.weights("w")[name], tensor, rtol=1e-5, atol=1e-6)


def test_top_k_keeps_the_largest_changes_and_the_rest_for_later():
    down = Message(w={"a": torch.zeros(4), "steps": torch.tensor(1)})
    state: dict[str, object] = {}
    arrived = torch.zeros(4)
    left = torch.zeros(4)
    for round in range(1, 6):
        change = torch.tensor([1.0, 0.2, -0.5, 0.01]) * round
        passage = into_client([TopK(0.5)], down, Context(0, round, state))
        wire = passage.back(Message(w={"a": change, "steps": torch.tensor(2)}, n=5))
        server = out_of_server([TopK(0.5)], down, Context(0, round))
        reply = server.back(wire)
        assert reply.number("n") == 5
        assert int(reply.weights("w")["steps"]) == 2
        expected = left + change
        kept = expected.abs().topk(2).indices
        assert torch.equal(reply.weights("w")["a"].nonzero().flatten(), kept.sort().values)
        arrived += reply.weights("w")["a"]
        left = expected.index_fill(0, kept, 0.0)
    torch.testing.assert_close(arrived + left, sum(torch.tensor([1.0, 0.2, -0.5, 0.01]) * t for t in range(1, 6)))


@pytest.mark.parametrize(
    "forged",
    [
        {"top-k index": torch.tensor([99], dtype=torch.int32), "top-k value": torch.ones(1)},
        {"top-k index": torch.tensor([-1], dtype=torch.int32), "top-k value": torch.ones(1)},
        {"top-k index": torch.tensor([0, 1], dtype=torch.int32), "top-k value": torch.ones(1)},
        {"top-k index": torch.tensor([0], dtype=torch.int32)},
    ],
)
def test_forged_indices_are_refused(forged):
    passage = out_of_server([TopK(0.5)], Message(w={"a": torch.zeros(4)}), Context(0, 1))
    with pytest.raises(MessageError, match="part 'w' "):
        passage.back(Message(w=forged, n=1))


def test_mods_stand_in_order_at_both_ends():
    seen = []

    class Note(Mod):
        def __init__(self, name):
            self.name = name

        def at_server(self, message, context):
            seen.append(f"{self.name} out of the server")
            answer = yield message
            seen.append(f"{self.name} into the server")
            return answer

        def at_client(self, message, context):
            seen.append(f"{self.name} into the client")
            answer = yield message
            seen.append(f"{self.name} out of the client")
            return answer

    mods = [Note("a"), Note("b")]
    server = out_of_server(mods, Message(), Context(0, 1))
    client = into_client(mods, server.message, Context(0, 1))
    server.back(client.back(Message()))
    ends = ["out of the server", "into the client", "out of the client", "into the server"]
    assert seen == [
        f"{name} {end}" for end, order in zip(ends, ["ab", "ba", "ab", "ba"], strict=True) for name in order
    ]


def test_a_mod_that_yields_twice_is_told():
    def twice(message, context):
        yield message
        yield message

    with pytest.raises(MessageError, match="yielded twice"):
        Passage([twice], Message(), Context(0, 1)).back(Message())


def test_a_reply_that_breaks_a_mod_is_refused_and_the_round_goes_on():
    class Forging(SerialEngine):
        def run(self, jobs):
            for outcome in super().run(jobs):
                if outcome.up is not None and outcome.client == 1:
                    bad = {"top-k index": torch.tensor([10**6]), "top-k value": torch.ones(1)}
                    object.__setattr__(outcome, "up", Message(w=bad, n=7))
                yield outcome

    data = tiny_data()
    task = Task(tiny_model(), CLASSES, Recipe(**RECIPE), 3, len(data), 2, sample=torch.zeros(INPUTS), mods=[TopK()])
    method = make_method("fedavg")
    report = Federation(task, method, Forging(task, method, data), min_replies=3).step()
    assert [(f.client, f.cause) for f in report.failed] == [(1, "refused")]
    assert "index outside" in report.failed[0].reason
