"""The engine, the messages and the desks, without a network: what is sent is what is understood, whoever misbehaves."""

import pytest
from memory_grid import MemoryGrid, desks_in, directory_of, over_the_wire, spec_of

from fedpac.config import make_config
from fedpac.data.scenario import build
from fedpac.engines.flower import engine
from fedpac.engines.flower.engine import FlowerEngine
from fedpac.engines.flower.wire import CHUNK, Answer, Request, pack, unpack
from fedpac.engines.serial import SerialEngine
from fedpac.engines.site import Job
from fedpac.errors import MessageError
from fedpac.message import Message
from fedpac.methods import list_methods
from fedpac.runs.execute import make_federation, make_task
from small_run import small


@pytest.fixture(scope="module")
def scenario():
    return build(small().data, 0)


def federation_of(tmp_path, config, scenario, deadline=None, said=None):
    grid = MemoryGrid(desks_in(tmp_path, scenario))
    task, method = make_task(config, scenario), config.make_method()
    directory = directory_of(grid, config, scenario, said)
    sites = FlowerEngine(task, method, directory, deadline, config.run.min_replies or 4, 0.0)
    return make_federation(config, task, method, sites), grid


def numbers(report):
    return (report.chosen, report.scores, report.bytes_up, report.bytes_down, report.peer_weights)


def serial_of(config, scenario):
    task = make_task(config, scenario)
    engine = SerialEngine(task, config.make_method(), scenario.clients)
    return make_federation(config, task, config.make_method(), engine)


@pytest.mark.parametrize("method", sorted(list_methods()))
def test_every_method_gives_the_serial_numbers_with_one_message_a_round(tmp_path, scenario, method):
    config = small(3, method, run__evaluate_every=1)
    federation, grid = federation_of(tmp_path, config, scenario)
    for ours, theirs in zip(federation.rounds(), serial_of(config, scenario).rounds(), strict=True):
        assert numbers(ours) == numbers(theirs)
    assert federation.server.round == 3
    hello, rounds, last = 4, 3 * 4, 4
    # one client after the other: only the first of a round is asked before the models of the last round have changed
    apart = 2 * 3 if len(federation.method.waves([0, 1, 2, 3])) == 4 else 0
    assert grid.sent == hello + rounds + last + apart


def test_whoever_stays_away_gets_one_message_a_round_too(tmp_path, scenario):
    config = small(4, "fedpac", run__evaluate_every=1, run__participation=0.5)
    federation, grid = federation_of(tmp_path, config, scenario)
    for ours, theirs in zip(federation.rounds(), serial_of(config, scenario).rounds(), strict=True):
        assert numbers(ours) == numbers(theirs)
    assert grid.sent == 4 + 4 * 4 + 4


def test_a_model_travels_once_to_be_scored_and_trained(tmp_path, scenario):
    federation, grid = federation_of(tmp_path, small(3, "fedpac", run__evaluate_every=1), scenario)
    requests = []
    push = grid.push_messages

    def noting(messages):
        requests.extend(unpack(message.content, Request) for message in messages)
        return push(messages)

    grid.push_messages = noting
    for _ in federation.rounds():
        pass
    both = [(request, body) for request, body in requests if request.received is not None]
    assert [(request.received, request.round) for request, _ in both] == [(1, 2)] * 4 + [(2, 3)] * 4
    alone = next(len(body) for request, body in requests if request.kind == "receive")
    assert {(request.own_bytes, len(body)) for request, body in both} == {(0, alone)}


def test_nobody_spends_privacy_on_a_round_that_may_not_come(tmp_path, scenario):
    config = small(2, "fedavg", run__evaluate_every=1)
    config = make_config(config.model_dump(exclude_none=True) | {"privacy": {"noise": 1.0, "clip": 1.0}})
    federation, grid = federation_of(tmp_path, config, scenario)
    federation.step()
    assert grid.sent == 4 + 2 * 4
    assert federation.ahead is None


@pytest.mark.parametrize("known", [1, 2])
@pytest.mark.parametrize("method", ["scaffold", "ditto", "fedpac"])
def test_a_server_killed_at_any_moment_goes_on_to_the_same_numbers(tmp_path, scenario, method, known):
    """With known = 1, it had neither written the round that it merged last, nor the one that it had begun."""
    config = small(4, method, run__evaluate_every=1)
    expected = [numbers(report) for report in serial_of(config, scenario).rounds()]
    federation, _ = federation_of(tmp_path, config, scenario)
    for _ in range(known):
        federation.step()
    saved = Message(**federation.snapshot()).to_bytes()
    answered = {client: dict(state) for client, state in federation.engine.snapshot().items()}
    if known == 1:
        federation.step()
    again, _ = federation_of(tmp_path, config, scenario)
    again.restore(known, dict(Message.from_bytes(saved)))
    again.engine.restore(answered)
    assert [numbers(report) for report in again.rounds()] == expected[known:]


def test_a_large_message_travels_in_parts(scenario):
    request = Request(kind="learn", client=0, round=1, spec=spec_of(small(), 4, scenario))
    body = bytes(range(256)) * (2 * CHUNK // 256) + b"end"
    content = over_the_wire(pack(request, body))
    assert len(content.config_records) == 3
    assert unpack(content, Request) == (request, body)


def test_a_round_goes_on_without_a_site_that_is_lost_or_silent(tmp_path, scenario):
    said = []
    config = small(2, "fedavg", run__min_replies=2, run__evaluate_every=1)
    federation, grid = federation_of(tmp_path, config, scenario, deadline=0.3, said=said)
    federation.engine.available()
    grid.faults = {101: "lost", 102: "silent"}
    report = federation.step()
    assert {(f.client, f.cause) for f in report.failed} == {(1, "lost"), (2, "deadline"), (1, "absent"), (2, "absent")}
    assert {s.client for s in report.scores} == {0, 3}
    assert "site 'client-2' did not reply within 0.3 s" in said


def test_a_site_that_was_lost_counts_again_when_it_answers(tmp_path, scenario):
    config = small(3, "fedavg", run__min_replies=2)
    federation, grid = federation_of(tmp_path, config, scenario)
    federation.engine.available()
    grid.faults = {101: "lost"}
    assert 1 in {f.client for f in federation.step().failed}
    grid.faults = {}
    directory = federation.engine.directory
    directory.look()  # hears that the hello was lost, too
    assert list(federation.engine.available()) == [0, 2, 3]
    directory.later, directory.looked = {}, 0.0  # ten seconds later
    directory.look()
    assert list(federation.engine.available()) == [0, 1, 2, 3]
    assert not federation.step().failed


def much_later(directory):
    """Who was asked in vain has been asked again."""
    for _ in range(3):
        directory.later, directory.looked = {}, 0.0
        directory.look()


@pytest.mark.parametrize("method", ["scaffold", "ditto", "fedrep"])
def test_what_was_learned_for_an_answer_that_got_lost_does_not_count(tmp_path, scenario, method):
    """A site that trained and was not heard goes on as one that was never asked; and so it does once more."""
    config = small(6, method, run__min_replies=2, run__evaluate_every=1)
    runs = {}
    for fault in ("lost", "swallowed"):
        federation, grid = federation_of(tmp_path / fault, config, scenario)
        runs[fault] = []
        for report in federation.rounds():
            runs[fault].append(numbers(report))
            grid.faults = {101: fault} if report.round in (2, 4) else {}
            much_later(federation.engine.directory)
    assert runs["lost"] == runs["swallowed"]
    assert all(1 in chosen for chosen, *_ in runs["lost"])


def test_a_round_that_does_not_count_is_taken_back_at_the_sites(tmp_path, scenario):
    config = small(3, "scaffold", run__min_replies=4, run__evaluate_every=1)
    undisturbed, _ = federation_of(tmp_path / "undisturbed", config, scenario)
    disturbed, grid = federation_of(tmp_path / "disturbed", config, scenario)
    disturbed.step()
    grid.faults = {101: "lost"}
    directory = disturbed.engine.directory

    def available():
        grid.faults = {} if directory.here.keys() != {0, 1, 2, 3} else grid.faults
        much_later(directory)
        return [0, 1, 2, 3]

    disturbed.engine.available = available
    undisturbed.step()
    assert numbers(disturbed.step()) == numbers(undisturbed.step())
    assert numbers(disturbed.step()) == numbers(undisturbed.step())


def test_a_server_that_was_started_again_knows_which_answers_counted(tmp_path, scenario):
    federation, _ = federation_of(tmp_path, small(3, "scaffold"), scenario)
    federation.step()
    states = federation.engine.snapshot()
    federation.step()  # is scored with the messages of the third round
    assert {state["counted"] for state in federation.engine.snapshot().values()} == {2.0}
    assert federation.engine.request("learn", 1, 4).since == 3
    federation.engine.forget(3)
    federation.engine.forget(2)
    assert federation.engine.snapshot() == states
    federation.engine.restore({})
    federation.engine.restore(states)
    assert federation.engine.request("learn", 1, 2).since == 1


def test_a_server_that_is_too_far_behind_is_told_so(tmp_path, scenario):
    federation, _ = federation_of(tmp_path, small(4, "scaffold"), scenario)
    for _ in federation.rounds():
        pass
    federation.engine.answered = {}  # as if its checkpoint were of the beginning
    report = federation.engine.map([Job("learn", 0, 1, federation.method.send(federation.server, 0))])
    assert "must go on from a later checkpoint" in report[0].error.reason
    assert len(list(tmp_path.glob("client-0/*/client-0-round-*"))) == 3, "nothing was forgotten"


def test_a_site_whose_hello_got_lost_is_asked_again(tmp_path, scenario, monkeypatch):
    monkeypatch.setattr(engine, "ASKED", 0.0)
    federation, grid = federation_of(tmp_path, small(2, "fedavg", run__min_replies=3), scenario)
    grid.faults = {102: "silent"}
    assert list(federation.engine.available()) == [0, 1, 3]
    grid.faults = {}
    directory = federation.engine.directory
    for _ in range(2):
        directory.looked = 0.0
        directory.look()
    assert list(federation.engine.available()) == [0, 1, 2, 3]


def test_a_message_that_a_site_lost_is_sent_once_more(tmp_path, scenario, monkeypatch):
    """There is no deadline: the site took the request, was started again, and knows nothing of it."""
    monkeypatch.setattr(engine, "PRESENCE", 0.05)
    config = small(3, "scaffold", run__min_replies=4, run__evaluate_every=1)
    federation, grid = federation_of(tmp_path, config, scenario)
    assert list(federation.engine.available()) == [0, 1, 2, 3]
    sent, pull, misses = grid.sent, grid.pull_messages, []

    def forgetful(names):
        if "message 6" in names and not misses:
            misses.append(grid.replies.pop("message 6"))
            grid.connected[101] = "2026-11-18T08:00"
        return pull(names)

    grid.pull_messages = forgetful
    for ours, theirs in zip(federation.rounds(), serial_of(config, scenario).rounds(), strict=True):
        assert numbers(ours) == numbers(theirs)
    assert len(misses) == 1
    assert grid.sent == sent + 3 * 4 + 4 + 1


def test_a_site_that_keeps_losing_what_it_is_asked_is_lost(tmp_path, scenario, monkeypatch):
    monkeypatch.setattr(engine, "PRESENCE", 0.05)
    federation, grid = federation_of(tmp_path, small(2, "fedavg", run__min_replies=3), scenario)
    federation.engine.available()
    grid.faults = {101: "silent"}
    nodes, looks = grid.get_nodes, []

    def restarting():
        looks.append(1)
        grid.connected[101] = f"{len(looks):09}"
        return nodes()

    grid.get_nodes = restarting
    (failure,) = federation.step().failed
    assert (failure.client, failure.cause) == (1, "lost")
    assert "lost its connection twice" in failure.reason


def test_a_second_answer_is_not_counted(tmp_path, scenario):
    config = small(2, "fedavg", run__evaluate_every=1)
    once, _ = federation_of(tmp_path / "once", config, scenario)
    twice, grid = federation_of(tmp_path / "twice", config, scenario)
    grid.faults = {101: "twice"}
    for ours, theirs in zip(once.rounds(), twice.rounds(), strict=True):
        assert numbers(ours) == numbers(theirs)


@pytest.mark.parametrize("change", [{"client": 2}, {"site": "client-2"}, {"round": 7}, {"kind": "receive"}])
def test_an_answer_in_anothers_name_is_refused(tmp_path, scenario, change):
    config = small(2, "fedavg", run__min_replies=1, run__evaluate_every=2)
    federation, grid = federation_of(tmp_path, config, scenario)
    federation.engine.available()

    def forged(content):
        answer, body = unpack(content, Answer)
        return pack(answer.model_copy(update=change), body)

    grid.faults = {101: forged}
    report = federation.step()
    assert [(f.client, f.cause) for f in report.failed] == [(1, "refused")]


def test_a_node_with_anothers_name_does_not_count(tmp_path, scenario):
    said = []
    config = small(2, "fedavg", run__min_replies=1)
    federation, grid = federation_of(tmp_path, config, scenario, said=said)
    grid.desks[101].name = "client-2"  # its key is that of client-1
    assert list(federation.engine.available()) == [0, 2, 3]
    assert "node 101 is refused: its key does not belong to 'client-2'" in said


def test_a_site_says_what_is_wrong_with_its_data(tmp_path, scenario):
    said = []
    config = small(2, "fedavg", run__min_replies=3)
    federation, grid = federation_of(tmp_path, config, scenario, said=said)

    def broken(spec, config, client):
        raise OSError(28, "No space left on device")

    grid.desks[103].data = broken
    assert list(federation.engine.available()) == [0, 1, 2]
    assert any("No space left" in line for line in said)


def test_a_site_imports_no_method_that_the_server_names(tmp_path, scenario):
    config = small(2, "fedavg")
    spec = spec_of(config, 4, scenario)
    spec = spec.model_copy(update={"config": spec.config.replace('name = "fedavg"', 'name = "antigravity:Method"')})
    desk = desks_in(tmp_path, scenario)[100]
    answer, _ = unpack(desk.answer(pack(Request(kind="hello", client=-1, round=0, spec=spec))), Answer)
    assert answer.problem is not None
    assert "antigravity:Method" in answer.problem.reason


def test_what_is_not_ours_is_an_error(scenario):
    from flwr.app import ConfigRecord, RecordDict

    for content in (RecordDict(), RecordDict({"fedpac": ConfigRecord({"header": "{}", "bytes": b""})})):
        with pytest.raises(MessageError, match="Flower message"):
            unpack(content, Answer)
