"""The door that sites come through.

SuperLink serves everything on one port, and its control API lets whoever reaches it register nodes and submit code. So
it listens on this machine only, and this gate passes on nothing but what a site needs.
"""

import asyncio
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from google.protobuf.message import DecodeError

from fedpac.errors import RunError

PASSED = {
    f"/v1/fleet/{call}"
    for call in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run",
        "get-fab", "push-object", "pull-object", "confirm-message-received",
    )
}  # fmt: skip
KEY = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
PUSH, PULL = "/v1/fleet/push-messages", "/v1/fleet/pull-messages"
PUSH_PART, PULL_PART = "/v1/fleet/push-object", "/v1/fleet/pull-object"
REGISTRATION = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}  # of nodes without a key
HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"host"}
LARGEST = 16 * 2**20  # bytes of one request: a message's parts are smaller
AT_ONCE = 16  # requests of one site that are in memory
LEAST, TIMES = 64 * 2**20, 32  # bytes that an answer may have, and more for each byte of what is answered: encrypted
# weights take ten times the room

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guest:
    """What the gate knows of one site: how much it may still send. That is so much for each message it gets, and more
    for a long one; a site that sends without end must not fill the server's memory."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(AT_ONCE)
        self.left = LEAST
        self.pulled: set[str] = set()  # parts of the message that it got last

    def may(self, path: str, body: bytes) -> bool:
        return path != PUSH_PART or len(body) <= self.left

    def account(self, path: str, body: bytes, given: bytes) -> None:
        """Only for what SuperLink took: the site has signed it."""
        if path == PUSH_PART:
            self.left -= len(body)
        elif path == PULL and PullMessagesResponse.FromString(given).messages_list:
            self.left, self.pulled = LEAST, set()
        elif path == PULL_PART and (part := PullObjectRequest.FromString(body).object_id) not in self.pulled:
            self.pulled.add(part)
            self.left += TIMES * len(given)


class Filter:
    """An ASGI application: requests to a few paths go on to SuperLink, all others are refused.

    keys   of the sites: whoever names no other is not heard. That the key is really theirs, SuperLink checks.
    """

    def __init__(self, upstream: str, ca: Path | None, keys: Iterable[bytes] = ()) -> None:
        self.keys = {b64encode(key) for key in keys}
        self.guests: dict[bytes, Guest] = {key: Guest() for key in self.keys}
        self.passed = PASSED if ca is not None else PASSED | REGISTRATION
        verify = ssl.create_default_context(cafile=str(ca)) if ca is not None else False
        # a connection that SuperLink is about to close for want of use, after 5 s, must not be used
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0)
        self.client = httpx.AsyncClient(base_url=upstream, verify=verify, timeout=120.0, limits=limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "POST" or scope["path"] not in self.passed:
            await _respond(send, 403, [], b"not for sites\n")
            return
        guest = self.guests.get(dict(scope["headers"]).get(KEY, b"")) if self.keys else Guest()
        if guest is None:
            await _respond(send, 401, [], b"no key of a site\n")
            return
        async with guest.turn:
            await self._pass_on(guest, scope, receive, send)

    async def _pass_on(self, guest: Guest, scope: Scope, receive: Receive, send: Send) -> None:
        body = bytearray()
        while True:
            event = await receive()
            body += event.get("body", b"")
            if len(body) > LARGEST:
                await _respond(send, 413, [], b"too large\n")
                return
            if not event.get("more_body"):
                break
        if scope["path"] == PUSH and not _in_its_own_name(bytes(body)):
            await _respond(send, 403, [], b"an answer in another's name\n")
            return
        if not guest.may(scope["path"], bytes(body)):
            await _respond(send, 413, [], b"the answer is too large\n")
            return
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in HOP_BY_HOP]
        try:
            response = await self.client.post(scope["path"], content=bytes(body), headers=headers)
        except httpx.HTTPError:
            await _respond(send, 503, [], b"the server is not there\n")
            return
        if response.is_success:
            guest.account(scope["path"], bytes(body), response.content)
        kept = [(k, v) for k, v in response.headers.raw if k.lower() in (b"content-type",)]
        await _respond(send, response.status_code, kept, response.content)


def _in_its_own_name(body: bytes) -> bool:
    """Whether a site's messages are answers of its own. SuperLink checks that the request is signed by the key of its
    node, but would take messages inside it from any other node, and instructions to other sites."""
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    about = [message.metadata for message in request.messages_list]
    return bool(about) and all(one.src_node_id == request.node.node_id and one.reply_to_message_id for one in about)


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Gate:
    """Serves the filter in a thread, on the address that sites know."""

    def __init__(self, host: str, port: int, passing: Filter, certificate: Path | None) -> None:
        """certificate: the folder with server.crt and server.key; None for plain text."""
        self.address = f"{host}:{port}"
        config = uvicorn.Config(
            passing, host=host, port=port, log_level="error", lifespan="off",
            ssl_certfile=certificate / "server.crt" if certificate is not None else None,
            ssl_keyfile=certificate / "server.key" if certificate is not None else None,
            timeout_graceful_shutdown=1, timeout_keep_alive=60,
        )  # fmt: skip
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with suppress(SystemExit):  # uvicorn's way to say that the address is taken
            asyncio.run(self.server.serve())

    def start(self) -> None:
        self.thread.start()
        while not self.server.started:
            if not self.thread.is_alive():
                raise RunError(f"cannot listen on {self.address}: is another program using it?")
            time.sleep(0.02)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=5)
