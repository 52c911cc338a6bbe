"""Folders of runs with a damaged or forged file: they are read, or refused with a FedpacError."""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from fedpac.message import Message
from fedpac.report import comparison
from fedpac.runs.checkpoint import _digest, read_checkpoint, write_checkpoint
from fedpac.runs.folder import RunStore
from fedpac.runs.read import read_run
from fedpac.task import State
from fuzzing import budget, damaged, fuzz
from small_run import tiny

MARK = "the config's fingerprint"


@cache
def checkpoint() -> bytes:
    server: State = {"w": {"head.bias": torch.zeros(3)}, "round": 2.0}
    clients: dict[int, State] = {
        i: {"own": {"head.weight": torch.ones(3, 2)}, "seen": torch.arange(4)} for i in range(3)
    }
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "c.safetensors", MARK, 2, server, clients)
        return (Path(folder) / "c.safetensors").read_bytes()


def read(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "c.safetensors").write_bytes(data)
        read_checkpoint(Path(folder) / "c.safetensors", MARK)


def read_damaged_checkpoint(rng: np.random.Generator) -> None:
    read(damaged(checkpoint(), rng))


def read_forged_checkpoint(rng: np.random.Generator) -> None:
    """One whose checksum is right: by somebody who knows how it is made."""

    def one(values: list[Any]) -> Any:
        return values[rng.integers(len(values))]

    def of_bytes(blob: bytes) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(blob, dtype=np.uint8).copy())

    odd: list[Any] = [None, True, "x", [], {}, -1, 10**400, float("inf"), float("nan"), {"a": 1}, "9" * 5000, "\ud800"]
    names = ["client.0", "client.-1", "client.x", "client.", "client", "", "0", "client." + "9" * 5000, "server.x", "é"]
    states = [Message(w=torch.ones(2)).to_bytes(), Message().to_bytes(), b"", b"no message"]
    blobs = {"server": one(states)} if rng.random() < 0.9 else {}
    blobs |= {str(one(names)): one(states) for _ in range(rng.integers(3))}
    metadata: dict[str, Any] = {"format": 1, "fingerprint": MARK, "round": 2}
    if rng.random() < 0.5:
        metadata[str(one(list(metadata)))] = one(odd)
    metadata["digest"] = _digest(metadata, blobs)
    tensors = {name: of_bytes(blob) for name, blob in blobs.items()}
    if rng.random() < 0.2:
        tensors[str(one(names))] = one([torch.ones(2, dtype=torch.bfloat16), torch.tensor(10**12), torch.ones(2, 2)])
    read(save(tensors, {"fedpac": json.dumps(metadata if rng.random() < 0.9 else one(odd))}))


@cache
def run_folder() -> Path:
    folder = Path(tempfile.mkdtemp()) / "run"
    tiny(folder, method="fedpac")
    return folder


FILES = ["config.toml", "clients.csv", "metrics.csv", "weights.csv", "rounds.csv", "environment.json", ".data-dir"]


def look_at_damaged_run(rng: np.random.Generator) -> None:
    """As `fedpac compare` does, and `fedpac resume` before it begins."""
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(run_folder(), Path(name) / "run")
        path = folder / FILES[rng.integers(len(FILES))]
        path.write_bytes(damaged(path.read_bytes() if path.exists() else b"data\n", rng))
        run = read_run(folder)
        comparison.exact_rows([run])
        comparison.compare([run])
        for matrix in run.peer_weights.values():
            assert matrix.shape == (4, 4)
        RunStore(folder).data_dir()
        RunStore(folder).config()


@budget(short=1_000, long=50_000)
def test_damaged_checkpoints(cases):
    assert fuzz(read_damaged_checkpoint, cases).refused > 0.9 * cases


@budget(short=1_000, long=50_000)
def test_forged_checkpoints(cases):
    tally = fuzz(read_forged_checkpoint, cases)
    assert tally.refused > cases / 2
    assert tally.accepted > cases / 50


@budget(short=300, long=20_000)
def test_damaged_runs(cases):
    tally = fuzz(look_at_damaged_run, cases)
    assert tally.refused > cases / 4
    assert tally.accepted > cases / 50
