"""What sites answer, fetched so that one of them can neither stop the server nor keep it waiting.

Flower's own grid waits for every part of an answer before it looks at the next one, takes the sender from what the
sender wrote, and lets bytes that it cannot read end the run.
"""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from fedpac.engines.flower.wire import printable
from fedpac.errors import MessageError

STALLED = 180.0  # seconds without another part, after which no more is expected; Flower closes the upload then, too
AT_ONCE = 8  # parts of an answer that are fetched side by side


@dataclass
class Parcel:
    """An answer that SuperLink has heard of, and what has come of it."""

    about: Any  # as SuperLink vouches for it
    missing: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)
    progress: float = field(default_factory=time.monotonic)


class CheckedGrid(HttpGrid):
    """The same connection as the grid that it is made of."""

    def __init__(self, grid: HttpGrid) -> None:
        self.__dict__ = grid.__dict__
        self.parcels: dict[str, Parcel] = {}  # message that is answered -> what has come

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that are complete. One that cannot be read is an error in its sender's name."""
        wanted = set(message_ids)
        if unheard := wanted - self.parcels.keys():  # of the others, SuperLink has forgotten that there is an answer
            found = self._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=unheard))
            for answer, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                parts = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
                self.parcels[answer.metadata.reply_to_message_id] = Parcel(answer.metadata, parts)
        messages = [self._opened(self.parcels[name]) for name in wanted & self.parcels.keys()]
        complete = [message for message in messages if message is not None]
        done = {message.metadata.reply_to_message_id for message in complete}
        self.parcels = {
            name: parcel for name, parcel in self.parcels.items() if name not in done and not _stalled(parcel)
        }
        return complete

    def _opened(self, parcel: Parcel) -> Message | None:
        """None as long as parts are missing."""
        about = parcel.about
        try:
            self._fetch(parcel)
            if parcel.missing:
                return _error(about, "it was never sent completely") if _stalled(parcel) else None
            received = ConfirmMessageReceivedRequest(
                node=self.node, run_id=about.run_id, message_object_id=about.message_id
            )
            self._runtime_client.ConfirmMessageReceived(received)
            message: Any = inflate_object_from_contents(about.message_id, parcel.parts)
            _check(message, about)
        except httpx.HTTPError:
            raise  # of SuperLink, not of the site
        except Exception as error:  # whatever strange bytes do
            return _error(about, f"it cannot be read: {type(error).__name__}: {printable(str(error))[:200]}")
        return _named(message, about.message_id)

    def _fetch(self, parcel: Parcel) -> None:
        """As many of the missing parts as are there now. The first tells whether it is worth asking for the others."""
        pull = make_pull_object_fn_protobuf(self._runtime_client.PullObject, self.node, parcel.about.run_id)

        def part(name: str) -> bytes | None:
            try:
                return pull(name)
            except ObjectUnavailableError:
                return None

        first, rest = parcel.missing[:1], parcel.missing[1:]
        got = dict(zip(first, map(part, first), strict=True))
        if rest and all(content is not None for content in got.values()):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                got |= zip(rest, pool.map(part, rest), strict=True)
        new = {name: content for name, content in got.items() if content is not None}
        if new:
            parcel.progress = time.monotonic()
        parcel.parts |= new
        parcel.missing = [name for name in parcel.missing if name not in new]


def _check(message: Any, about: Any) -> None:
    """An error if it is not what its envelope says."""
    if not isinstance(message, Message) or not (message.has_error() or message.has_content()):
        raise MessageError("there is no message in it")
    claimed = message.metadata
    if (claimed.src_node_id, claimed.reply_to_message_id) != (about.src_node_id, about.reply_to_message_id):
        raise MessageError("it claims to be another's answer")


def _named(message: Message, name: str) -> Message:
    message.metadata.__dict__["_message_id"] = name
    return message


def _stalled(parcel: Parcel) -> bool:
    return time.monotonic() - parcel.progress > STALLED


def _error(about: Any, reason: str) -> Message:
    """In place of an answer."""
    metadata = Metadata(
        run_id=about.run_id, message_id="", src_node_id=about.src_node_id, dst_node_id=about.dst_node_id, group_id="",
        reply_to_message_id=about.reply_to_message_id, message_type=SYSTEM_MESSAGE_TYPE, ttl=0, created_at=time.time(),
    )  # fmt: skip
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))
