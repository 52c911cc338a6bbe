"""Every random choice comes from a stream named by (seed, purpose, client, round).

So a run is a pure function of its config: the same numbers whatever the engine, the number of workers, the order in
which clients finish, or an interruption in the middle.
"""

import hashlib

import numpy as np
import torch


def stream_seed(seed: int, purpose: str, client: int | None = None, round: int | None = None) -> int:
    """A 63-bit seed that depends on all four parts of the name, and on nothing else."""
    name = f"{seed}/{purpose}/{client}/{round}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def torch_stream(seed: int, purpose: str, client: int | None = None, round: int | None = None) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, purpose, client, round))


def numpy_stream(seed: int, purpose: str, client: int | None = None, round: int | None = None) -> np.random.Generator:
    return np.random.default_rng(stream_seed(seed, purpose, client, round))
