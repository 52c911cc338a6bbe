"""A site that misbehaves, as a process: python odd_site.py BEHAVIOUR ADDRESS CERTS KEY-NAME STATE CONFIG."""

import sys
import time
from pathlib import Path

from flwr.app import Message

from fedpac.deploy import persistent
from fedpac.deploy.desk import Desk, simulated_data
from fedpac.engines.flower.wire import Answer, Request, pack, unpack


class Silent(Desk):
    """Says hello, then never answers."""

    def answer(self, content):
        request, _ = unpack(content, Request)
        if request.kind != "hello":
            print("silent", flush=True)
            time.sleep(3600)
        return super().answer(content)


class Twin(persistent.Fleet):
    """Answers twice: first as it should, then with another model's numbers."""

    def _send(self, reply, seconds):
        super()._send(reply, seconds)
        answer, body = unpack(reply.content, Answer)
        again = Message(pack(answer.model_copy(update={"score": (1.0, 0.0)}), body), reply_to=self.asked)
        super()._send(again, seconds)
        print("sent twice", flush=True)

    def _fetch(self, envelope, tree):
        message = super()._fetch(envelope, tree)
        object.__setattr__(self, "asked", message)
        return message


def main(behaviour, address, certs, key, state, config):
    kind = Silent if behaviour == "silent" else Desk
    name = "client-1" if behaviour == "crook" else key  # with a key of its own
    if behaviour == "twin":
        persistent.Fleet = Twin
    certs = Path(certs)
    door = persistent.Door(address, certs / "ca.crt", certs / "sites" / f"{key}.key")
    desk = kind(name, Path(state), simulated_data(Path(config), None))
    persistent.stay(door, desk, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
