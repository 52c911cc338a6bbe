"""Fuzzing: whatever is wrong with an input, it ends in a FedpacError, soon, and without filling the memory.

    def read_one(rng):                                # one case: make an input, read it
        Message.from_bytes(damaged(VALID, rng))

    @budget(short=500, long=50_000)                   # cases in `make test` and in `make test-slow`
    def test_damaged_messages(cases):
        tally = fuzz(read_one, cases)
        assert tally.refused > cases / 2              # a fuzzer whose inputs are all fine tests nothing

Cases run in a process of their own, so that a crash, a hang and a full memory are seen from outside and end the test
only. Case i is a function of (seed, i): a failure names both, and `replay(read_one, seed, i)` does it again, here.
"""

import multiprocessing
import resource
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from fedpac.errors import FedpacError

Case = Callable[[np.random.Generator], object]

SECONDS = 5.0  # of the processor, for one case; it hangs if it takes PATIENCE times as long, on a busy machine too
PATIENCE = 6
MEMORY = 1 << 30  # bytes beyond what the process had before the first case
STARTING = 120.0  # seconds for a new process to import everything, on a busy machine

# A server that has imported the package and done nothing else: forks of it are cheap, and inherit no threads.
FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["fedpac.api", "fuzzing"])


@dataclass(frozen=True)
class Tally:
    """How many cases were read without complaint, and how many were refused with a FedpacError."""

    accepted: int
    refused: int


def budget(short: int, long: int) -> pytest.MarkDecorator:
    """Gives a test its number of `cases`: a short run always, a long one that is marked slow."""
    return pytest.mark.parametrize("cases", [short, pytest.param(long, marks=pytest.mark.slow)])


def fuzz(case: Case, cases: int, seed: int = 0, seconds: float = SECONDS, memory: int = MEMORY) -> Tally:
    """Run cases 0, 1, ... and fail on the first that crashes, hangs or raises anything but a FedpacError.

    case: a function at module level (or a partial of one), since it is sent to the other process.
    """
    receiver, sender = FRESH.Pipe(duplex=False)
    child = FRESH.Process(target=_run, args=(sender, case, cases, seed, memory), daemon=True)
    child.start()
    sender.close()
    i, refused, patience = -1, 0, STARTING
    try:
        while receiver.poll(patience):
            outcome, used = receiver.recv()
            if isinstance(outcome, str):
                pytest.fail(f"case {i} of seed {seed}:\n{outcome}", pytrace=False)
            if used > seconds:
                pytest.fail(f"case {i} of seed {seed} took {used:.1f} s; allowed are {seconds:g}", pytrace=False)
            refused += outcome
            i, patience = i + 1, PATIENCE * seconds
            if i == cases:
                return Tally(cases - refused, refused)
        pytest.fail(f"case {i} of seed {seed} hangs, after {patience:g} s", pytrace=False)
    except EOFError:
        child.join()
        pytest.fail(f"case {i} of seed {seed} ended the process (exit code {child.exitcode})", pytrace=False)
    finally:
        child.kill()
        child.join()


def replay(case: Case, seed: int, i: int) -> object:
    """Case i once more, in this process, for the debugger."""
    return case(np.random.default_rng([seed, i]))


def _run(sender: Connection, case: Case, cases: int, seed: int, memory: int) -> None:
    """Tells (False, 0) as it begins, then of every case whether it was refused, or the traceback; and its seconds."""
    import torch

    torch.set_num_threads(1)
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    sender.send((False, 0.0))
    for i in range(cases):
        outcome: bool | str = False
        start = time.process_time()
        try:
            replay(case, seed, i)
        except FedpacError:
            outcome = True
        except BaseException:
            outcome = traceback.format_exc()
        sender.send((outcome, time.process_time() - start))


# ---------------------------------------------------------------- damage


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with one to four things wrong with them."""
    for _ in range(rng.integers(1, 5)):
        data = DAMAGE[rng.integers(len(DAMAGE))](data, rng)
    return data


def _somewhere(data: bytes, rng: np.random.Generator) -> slice:
    """A place of up to 64 bytes. Half of all places are near the ends, where formats keep their headers."""
    start = int(rng.integers(len(data) + 1))
    if rng.random() < 0.5:
        start = min(start, int(rng.integers(64))) if rng.random() < 0.5 else max(start, len(data) - 64)
    return slice(start, start + int(rng.integers(1, 65)))


def _flip_a_bit(data: bytes, rng: np.random.Generator) -> bytes:
    return _replace(data, rng, lambda old: bytes([old[0] ^ 1 << int(rng.integers(8))]) + old[1:] if old else b"")


def _overwrite(data: bytes, rng: np.random.Generator) -> bytes:
    return _replace(data, rng, lambda old: rng.bytes(len(old)))


def _remove(data: bytes, rng: np.random.Generator) -> bytes:
    return _replace(data, rng, lambda old: b"")


def _insert(data: bytes, rng: np.random.Generator) -> bytes:
    return _replace(data, rng, lambda old: rng.bytes(8) + old)


def _copy(data: bytes, rng: np.random.Generator) -> bytes:
    return _replace(data, rng, lambda old: data[_somewhere(data, rng)])


def _set_a_number(data: bytes, rng: np.random.Generator) -> bytes:
    """What a length or an offset may be at its worst."""
    extreme = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1, 10**12]
    value = extreme[rng.integers(len(extreme))]
    width, order = 1 << int(rng.integers(4)), ("little", "big")[rng.integers(2)]
    number = (value % 256**width).to_bytes(width, order)
    return _replace(data, rng, lambda old: number + old[width:])


def _set_a_digit(data: bytes, rng: np.random.Generator) -> bytes:
    """Another number where one is written in text."""
    at = [i for i, byte in enumerate(data[:4096]) if chr(byte).isdigit()]
    if not at:
        return data
    where = at[rng.integers(len(at))]
    digits = (b"0", b"-1", b"9", b"99999999", b"1e999", b"9" * 400)[rng.integers(6)]
    return data[:where] + digits + data[where + 1 :]


def _truncate(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: rng.integers(len(data) + 1)]


def _replace(data: bytes, rng: np.random.Generator, change: Callable[[bytes], bytes]) -> bytes:
    place = _somewhere(data, rng)
    return data[: place.start] + change(data[place]) + data[place.stop :]


DAMAGE = (_flip_a_bit, _overwrite, _remove, _insert, _copy, _set_a_number, _set_a_digit, _truncate)
