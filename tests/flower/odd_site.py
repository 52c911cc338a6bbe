"""A site that misbehaves, as a process: python odd_site.py BEHAVIOUR ADDRESS CERTS KEY-NAME STATE CONFIG."""

import hashlib
import os
import pickle
import sys
import time
from functools import cache, partial
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest

from fedpac.deploy import persistent
from fedpac.deploy.desk import Desk, simulated_data
from fedpac.engines.flower.wire import CHUNK, Answer, Request, pack, unpack


class Silent(Desk):
    """Says hello, then never answers."""

    def answer(self, content):
        request, _ = unpack(content, Request)
        if request.kind != "hello":
            print("silent", flush=True)
            time.sleep(3600)
        return super().answer(content)


class Odd(persistent.Fleet):
    """Knows what it was asked."""

    def _fetch(self, envelope, tree):
        message = super()._fetch(envelope, tree)
        object.__setattr__(self, "asked", message)
        return message


class Twin(Odd):
    """Answers twice: first as it should, then with another model's numbers."""

    def _send(self, reply, seconds):
        super()._send(reply, seconds)
        answer, body = unpack(reply.content, Answer)
        again = Message(pack(answer.model_copy(update={"score": (1.0, 0.0)}), body), reply_to=self.asked)
        super()._send(again, seconds)
        print("sent twice", flush=True)


def stored(kind, body, children=()):
    """The bytes that Flower stores of an object."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def name_of(stored):
    return hashlib.sha256(stored).hexdigest()


@cache
def two_gigabytes():
    """In parts as an honest answer has them."""
    numbered = [partial(stored, "RecordDict", n.to_bytes(4, "big") + bytes(CHUNK)) for n in range(512)]
    return [(name_of(make()), make) for make in numbered]


class Vandal(Odd):
    """Says hello as it should, and sends whatever it likes in place of answers. It has a key, and uses it."""

    attack = ""

    def _send(self, reply, seconds):
        answer, _ = unpack(reply.content, Answer)
        if answer.kind == "hello":
            return super()._send(reply, seconds)
        outcome = getattr(self, self.attack)(reply, answer)
        print(f"{self.attack}: {outcome}", flush=True)
        return None

    def push(self, reply, parts, sent=True, **forged):
        """An answer of these parts, with a letter head that may differ from its envelope; gives the refused parts."""
        about = message_to_proto(persistent._emptied(reply)).metadata
        about.message_id = ""
        for name, value in forged.items():
            setattr(about, name, value)
        names = [name for name, _ in parts]
        root = stored("Message", ProtoMessage(metadata=about).SerializeToString(), names)
        reply.metadata.__dict__["_message_id"] = name_of(root)
        tree = ObjectTree(object_id=name_of(root), children=[ObjectTree(object_id=name) for name in names])
        envelope = message_to_proto(persistent._emptied(reply))
        order = PushMessagesRequest(
            node=self.node, messages_list=[envelope], message_object_trees=[tree], clientapp_runtime_list=[0.1]
        )
        session = self.client.PushMessages(order).session_id
        refused = 0
        for name, make in [(name_of(root), lambda: root), *parts] if sent else []:
            try:
                about = {"run_id": reply.metadata.run_id, "session_id": session}
                self.client.PushObject(
                    PushObjectRequest(node=self.node, object_id=name, object_content=make(), **about)
                )
            except httpx.HTTPStatusError:
                refused += 1
        return refused

    def garbage(self, reply, answer):
        part = stored("RecordDict", b"\xff\xfe\x00 garbage \x1b[2J")
        return self.push(reply, [(name_of(part), lambda: part)])

    def stranger(self, reply, answer):
        part = stored("CustomDataClass", b"")
        return self.push(reply, [(name_of(part), lambda: part)])

    def forged(self, reply, answer):
        part = stored("RecordDict", b"{}")
        return self.push(reply, [(name_of(part), lambda: part)], src_node_id=7)

    def withheld(self, reply, answer):
        return self.push(reply, [], sent=False)

    def giant(self, reply, answer):
        return self.push(reply, two_gigabytes())

    def pickled(self, reply, answer):
        class Payload:
            def __reduce__(self):
                return os.mkdir, (os.environ["PICKLE_WOULD_MAKE"],)

        answer = answer.model_copy(update={"learned": True, "problem": None})
        super()._send(Message(pack(answer, pickle.dumps(Payload())), reply_to=self.asked), 0.1)


def main(behaviour, address, certs, key, state, config):
    kind = Silent if behaviour == "silent" else Desk
    name = "client-1" if behaviour == "crook" else key  # with a key of its own
    if behaviour == "twin":
        persistent.Fleet = Twin
    elif hasattr(Vandal, behaviour):
        persistent.Fleet, Vandal.attack = Vandal, behaviour
        if behaviour == "giant":
            two_gigabytes()  # takes seconds: before it is asked
    certs = Path(certs)
    door = persistent.Door(address, certs / "ca.crt", certs / "sites" / f"{key}.key")
    desk = kind(name, Path(state), simulated_data(Path(config), None))
    persistent.stay(door, desk, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
