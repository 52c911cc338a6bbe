"""All that a run needs to go on, in one safetensors file: the server's state and every client's, as message bytes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedpac.errors import CheckpointError, MessageError
from fedpac.federation import of_method
from fedpac.files import explained, write_atomically
from fedpac.message import Message
from fedpac.mods.base import restored
from fedpac.runs.folder import once_more
from fedpac.server import Server
from fedpac.task import State, Task

FORMAT = 1
UNREADABLE = (  # what parsing bytes of a stranger's may raise
    SafetensorError, OSError, LookupError, ArithmeticError, ValueError, TypeError, AttributeError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    round: int
    server: State
    clients: dict[int, State]

    def revived(self, task: Task) -> Server:
        """The server as it was then."""
        server = Server(task, restored(task.mods, of_method(self.server)))
        server.round = self.round
        return server


def write_checkpoint(path: Path, fingerprint: str, round: int, server: State, clients: Mapping[int, State]) -> None:
    blobs = {"server": Message(**server).to_bytes()}
    blobs |= {f"client.{i}": Message(**state).to_bytes() for i, state in sorted(clients.items())}
    metadata = {"format": FORMAT, "fingerprint": fingerprint, "round": round}
    metadata["digest"] = _digest(metadata, blobs)
    tensors = {name: torch.from_numpy(np.frombuffer(blob, dtype=np.uint8).copy()) for name, blob in blobs.items()}
    with explained(path, f"continue with 'fedpac resume {path.parent}'"):
        write_atomically(path, save(tensors, {"fedpac": json.dumps(metadata)}))


def read_checkpoint(path: Path, fingerprint: str | Callable[[int], Iterable[str]]) -> Checkpoint:
    """The checkpoint, if it was made by the run of this fingerprint, or of one of those that fit its round."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {})["fedpac"])
            blobs = {name: file.get_tensor(name).numpy().tobytes() for name in sorted(file.keys())}
        if metadata["format"] != FORMAT:
            raise ValueError(f"it has format {metadata['format']}; this version reads {FORMAT}")
        if metadata.pop("digest") != _digest(metadata, blobs):
            raise ValueError("its contents do not match its checksum")
        states = {name: dict(Message.from_bytes(blob)) for name, blob in blobs.items()}
        server = states.pop("server")
        clients = {int(name.removeprefix("client.")): state for name, state in states.items()}
        round, made_with = int(metadata["round"]), metadata["fingerprint"]
    except (*UNREADABLE, MessageError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is damaged ({error}); restore it, or {once_more(path.parent)}"
        ) from None
    if made_with not in ([fingerprint] if isinstance(fingerprint, str) else fingerprint(round)):
        raise CheckpointError(
            f"the checkpoint {path} does not match the config.toml next to it, or was written by an older revision "
            f"of the method; restore the original files, or {once_more(path.parent)}"
        )
    return Checkpoint(round, server, clients)


def _digest(metadata: Mapping[str, object], blobs: Mapping[str, bytes]) -> str:
    digest = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16)
    for name, blob in sorted(blobs.items()):
        digest.update(f"{name}:{len(blob)}:".encode())
        digest.update(blob)
    return digest.hexdigest()
