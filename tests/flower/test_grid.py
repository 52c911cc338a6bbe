"""How answers are fetched from SuperLink: without waiting for one, and without trusting what one says of itself."""

from types import SimpleNamespace

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fedpac.deploy import grid as grid_module
from fedpac.deploy.grid import CheckedGrid
from fedpac.deploy.persistent import _emptied


class Runtime:
    """SuperLink's end: answers, each told of once, and those of their parts that have come."""

    def __init__(self):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.answers, self.parts, self.told, self.lost = {}, {}, [], False

    def hold(self, asked, node, complete=True, **forged):
        """An answer of this node to this message; as `forged`, its letter head differs from its envelope."""
        message = Message(RecordDict({"it": ConfigRecord({"from": node})}), dst_node_id=1, message_type="train")
        about = message.metadata.__dict__
        about.update(_src_node_id=node, _reply_to_message_id=asked)
        about.update({f"_{name}": value for name, value in forged.items()})
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        about.update(_message_id=message.object_id, _src_node_id=node, _reply_to_message_id=asked)
        self.answers[asked] = message_to_proto(_emptied(message)), tree
        self.parts |= {name: part if complete else None for name, part in parts.items()}
        return parts

    def PullMessages(self, request):  # noqa: N802  (Flower's names)
        if self.lost:
            raise httpx.ConnectError("SuperLink is gone")
        new = [self.answers[name] for name in request.message_ids if name in self.answers]
        self.told += request.message_ids
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in new], message_object_trees=[tree for _, tree in new]
        )

    def PullObject(self, request):  # noqa: N802
        part = self.parts.get(request.object_id)
        return PullObjectResponse(
            object_found=request.object_id in self.parts, object_available=part is not None, object_content=part or b""
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        pass


@pytest.fixture
def runtime():
    return Runtime()


@pytest.fixture
def grid(runtime):
    return CheckedGrid(SimpleNamespace(_client=runtime, node=None))


def test_one_that_is_still_on_its_way_keeps_nobody_waiting(grid, runtime):
    runtime.hold("a", 7)
    late = runtime.hold("b", 8, complete=False)
    (first,) = grid.pull_messages(["a", "b"])
    assert first.content["it"]["from"] == 7
    assert grid.pull_messages(["b"]) == []
    assert runtime.told.count("b") == 1, "SuperLink tells of an answer once, and calls it unknown afterwards"
    runtime.parts |= late
    (second,) = grid.pull_messages(["b"])
    assert second.content["it"]["from"] == 8
    assert not grid.parcels


def test_one_that_never_comes_is_an_error_in_the_end(grid, runtime, monkeypatch):
    runtime.hold("b", 8, complete=False)
    assert grid.pull_messages(["b"]) == []
    monkeypatch.setattr(grid_module, "STALLED", 0.0)
    (reply,) = grid.pull_messages(["b"])
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (8, "b")
    assert "never sent completely" in reply.error.reason
    assert not grid.parcels


@pytest.mark.parametrize("forged", [{"src_node_id": 9}, {"reply_to_message_id": "a"}])
def test_an_answer_that_claims_to_be_anothers_is_an_error_of_its_sender(grid, runtime, forged):
    runtime.hold("b", 8, **forged)
    (reply,) = grid.pull_messages(["a", "b"])
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (8, "b")
    assert "claims to be another's answer" in reply.error.reason


def test_strange_bytes_cost_their_sender_its_answer_only(grid, runtime):
    runtime.hold("a", 7)
    spoilt = runtime.hold("b", 8)
    runtime.parts |= {name: part[:-1] + b"\x1b" for name, part in spoilt.items()}
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(["a", "b"])}
    assert replies["a"].content["it"]["from"] == 7
    assert "it cannot be read" in replies["b"].error.reason
    assert "\x1b" not in replies["b"].error.reason


def test_a_lost_superlink_is_no_fault_of_a_site(grid, runtime):
    runtime.lost = True
    with pytest.raises(httpx.ConnectError):
        grid.pull_messages(["a"])
