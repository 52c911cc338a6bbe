"""A Flower grid without a network: the sites' desks in this process, every message as the bytes that would travel."""

from dataclasses import dataclass

from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedpac.deploy.desk import Desk
from fedpac.engines.flower.engine import SiteDirectory
from fedpac.engines.flower.wire import Spec


@dataclass
class Node:
    node_id: int
    public_key: bytes
    last_activated_at: str = ""


def over_the_wire(content):
    """The content, once it has been cut into objects, sent and put together again."""
    contents = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
    return inflate_object_from_contents(content.object_id, contents)


class MemoryGrid:
    """Answers at once. `faults` maps a node to what becomes of its answers: 'silent', 'lost' (never asked), 'swallowed'
    (given, but never heard), 'twice' or a function."""

    def __init__(self, desks):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # as Flower sets them in a ServerApp
        self.desks = desks  # node -> Desk
        self.keys = {node: f"key {node}".encode() for node in desks}
        self.connected = {}  # node -> since when
        self.faults = {}
        self.replies = {}
        self.sent = 0

    def get_nodes(self):
        return [Node(node, self.keys[node], self.connected.get(node, "")) for node in self.desks]

    def push_messages(self, messages):
        names = []
        for message in messages:
            self.sent += 1
            name = f"message {self.sent}"
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            names.append(name)
            if self.faults.get(node) != "silent":
                self.replies[name] = self._answers(node, message, name)
        return names

    def _answers(self, node, message, name):
        fault = self.faults.get(node)
        if fault == "swallowed":
            self.desks[node].answer(over_the_wire(message.content))
        if fault in ("lost", "swallowed"):
            reply = Message(Error(5, "Node Unavailable"), reply_to=message)
        else:
            content = over_the_wire(self.desks[node].answer(over_the_wire(message.content)))
            reply = Message(fault(content) if callable(fault) else content, reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = node
        reply.metadata.__dict__["_reply_to_message_id"] = name
        return [reply, reply] if fault == "twice" else [reply]

    def pull_messages(self, names):
        return [reply for name in names for reply in self.replies.pop(name, [])]


def spec_of(config, clients, scenario):
    return Spec(
        federation="0" * 32,
        config=config.to_toml(),
        sites=tuple(f"client-{i}" for i in range(clients)),
        classes=scenario.classes,
        shape=scenario.shape,
    )


def desks_in(folder, scenario):
    """A desk for every client of the scenario, at nodes 100, 101, ..."""
    return {
        100 + i: Desk(f"client-{i}", folder / f"client-{i}", lambda spec, config, client: scenario.clients[client])
        for i in range(len(scenario.clients))
    }


def directory_of(grid, config, scenario, said=None):
    keys = {grid.keys[100 + i]: f"client-{i}" for i in range(len(scenario.clients))}
    return SiteDirectory(
        grid, spec_of(config, len(scenario.clients), scenario), keys, ([] if said is None else said).append
    )
