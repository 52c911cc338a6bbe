"""A site as one process that stays, on Flower's Fleet protocol: no process per message, and no code from the server.

TLS, node keys and heartbeats are Flower's. The names used here are private to it, so the version is pinned; with
another one, a site is a stock SuperNode.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedpac.deploy.certs import read_private_key
from fedpac.deploy.desk import Desk
from fedpac.deploy.superlink import patient
from fedpac.engines.flower.engine import pause_after
from fedpac.engines.flower.wire import printable
from fedpac.errors import MessageError, RunError

HEARTBEAT = 10  # seconds, Flower's least: a site that was killed may come back after two of them
SOON = 0.05  # seconds between two looks for what has been announced
LINGER = 5.0  # seconds after the last answer: Flower drops the answer of a node that has gone before it is read
PAUSE = 2.0  # seconds before another try to connect
REFUSED = 90.0  # seconds of being refused: a site that was killed is let in again before that


@dataclass(frozen=True)
class Door:
    """Where the server is, and how it is known and this site is known to it."""

    address: str
    ca: Path | None  # None: plain text
    key: Path | None  # None: no key, which only a server without TLS accepts


class _RefusedError(Exception):
    """The server does not let this site in; it may yet."""


class _ForgottenError(Exception):
    """The server no longer knows the node that it let in: SuperLink was started again."""


def stay(door: Door, desk: Desk, say: Callable[[str], None], *, once: bool = True, patience: float = REFUSED) -> None:
    """Connect, answer, connect again when the server was away; with `once`, until a federation is finished."""
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT  # type: ignore[attr-defined]
    refused: float | None = None
    away = known = False
    while not (once and desk.finished):
        try:
            with connected(door) as fleet:
                say(f"connected to {door.address} as '{desk.name}'")
                refused, away, known = None, False, True
                fleet.serve(desk, once)
        except _ForgottenError:
            say(f"{door.address} was restarted; reconnecting")
        except _RefusedError as error:
            refused = refused or time.monotonic()
            if time.monotonic() - refused > patience:
                raise RunError(
                    f"the server at {door.address} refuses this site: {error}. Its key must be registered there, and "
                    "no other process may be using it"
                ) from None
            say(f"refused so far ({error}); retrying")
            time.sleep(PAUSE)
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if once and desk.finished:  # the server has ended first
                return
            _give_up_if_hopeless(door, error, known)
            if not away:
                say(f"no connection to {door.address} ({error}); retrying until there is one")
            away = True
            time.sleep(PAUSE)


def _give_up_if_hopeless(door: Door, error: httpx.HTTPError, known: bool) -> None:
    """known: it has let this site in before. One that is killed ends connections as if it did not speak TLS."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise RunError(
            f"the server at {door.address} has a certificate that is not signed by {door.ca} ({error}); take the "
            "ca.crt that came with this site's key, and the host name in the certificate"
        ) from None
    if (not known and isinstance(error, httpx.RemoteProtocolError)) or "WRONG_VERSION_NUMBER" in str(error):
        spoken = "plain text" if door.ca is None else "TLS"
        raise RunError(f"the server at {door.address} does not support {spoken} ({error})") from None
    if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403, 404):
        raise RunError(
            f"the server at {door.address} refuses this site: {_said(error.response) or error}. If the key is "
            "correct, compare the clocks of both machines"
        ) from None


@contextmanager
def connected(door: Door) -> Iterator["Fleet"]:
    private, public = generate_key_pairs() if door.key is None else read_private_key(door.key)
    version, identity = (
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, public),
    )
    ca = door.ca.read_bytes() if door.ca is not None else None
    with FleetHttpClient.from_server_address(door.address, door.ca is None, ca, [version, identity]) as client:
        name = public_key_to_bytes(public)
        try:
            if door.key is None:
                client.RegisterNode(RegisterNodeFleetRequest(public_key=name))
            activation = ActivateNodeRequest(public_key=name, heartbeat_interval=HEARTBEAT)
            node = Node(node_id=client.ActivateNode(activation).node_id)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (409, 412):
                raise _RefusedError(_said(error.response)) from None
            raise
        alive = heartbeat.HeartbeatSender(lambda: _beat(client, node))
        alive.start()
        try:
            yield Fleet(client, node)
        finally:
            alive.stop()
            with suppress(httpx.HTTPError, RuntimeError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _said(response: httpx.Response) -> str:
    """What the server said: SuperLink as JSON, the gate as text."""
    with suppress(ValueError, KeyError, TypeError):
        return printable(str(response.json()["detail"]))
    return printable(response.text.strip())


def _beat(client: FleetHttpClient, node: Node) -> bool:
    try:
        return bool(client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT)).success)
    except httpx.HTTPError:
        return False


@dataclass(frozen=True)
class Fleet:
    """A site's connection, while there is one."""

    client: FleetHttpClient
    node: Node

    def serve(self, desk: Desk, once: bool) -> None:
        heard = time.monotonic()
        while not (once and desk.finished and time.monotonic() - heard > LINGER):
            try:
                if self._answer_one(desk):
                    heard = time.monotonic()
                else:
                    time.sleep(pause_after(time.monotonic() - heard))
            except httpx.HTTPStatusError as error:
                if error.response.status_code == 401:
                    raise _ForgottenError from None
                raise

    def _answer_one(self, desk: Desk) -> bool:
        got = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not got.messages_list:
            return False
        try:
            message = self._fetch(message_from_proto(got.messages_list[0]), got.message_object_trees[0])
            start = time.monotonic()
            self._send(_reply(desk, message), time.monotonic() - start)
        except (ObjectPullError, ObjectPushError):
            pass  # the server no longer wants to know
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 401 or error.response.status_code >= 500:
                raise
            desk.say(f"the server did not accept a reply: {_said(error.response)}")
        return True

    def _fetch(self, envelope: Message, tree: Any) -> Message:
        run, name = envelope.metadata.run_id, envelope.metadata.message_id
        pull = make_pull_object_fn_protobuf(self._patient(self.client.PullObject), self.node, run)
        parts = [part.object_id for part in iterate_object_tree(tree)]
        contents = pull_objects(parts, pull_object_fn=pull, initial_backoff=SOON)
        make_confirm_message_received_fn_protobuf(self._patient(self.client.ConfirmMessageReceived), self.node, run)(
            name
        )
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = name
        return message

    def _send(self, reply: Message, seconds: float) -> None:
        run = reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
            pushed = self._patient(self.client.PushMessages)(
                PushMessagesRequest(
                    node=self.node,
                    messages_list=[message_to_proto(_emptied(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[seconds],
                )
            )
            push = make_push_object_fn_protobuf(
                self._patient(self.client.PushObject), self.node, run, pushed.session_id
            )
            push_objects(parts, push_object_fn=push, object_ids_to_push=set(pushed.objects_to_push))

    def _patient(self, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """An answer that took minutes must not be lost for a dropped packet."""
        return functools.partial(patient(60.0).invoke, call)


def _reply(desk: Desk, message: Message) -> Message:
    try:
        return Message(desk.answer(message.content), reply_to=message)
    except MessageError as error:  # what came is not ours
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)


def _emptied(message: Message) -> Message:
    from flwr.app.message import remove_content_from_message

    return remove_content_from_message(message)
