"""CKKS: parameters that fit the federation, the key that all sites share, and contexts made of them.

The server's context is the parameters and nothing else: it needs no key of any kind to scale and to add.
"""

import hashlib
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from fedpac.errors import ConfigError
from fedpac.extras import library
from fedpac.files import explained

RING = 8192  # 218 bits of modulus are safe with it (128-bit security, the Homomorphic Encryption Standard of 2018)
FIRST = 60  # bits of the prime that holds the result
SCALES = range(40, 49)  # bits
GOAL = 1e-7  # the largest error that a sum may have
DEVIATIONS = 6  # standard deviations: one value in 5e8 is further off
UNLUCKY = 7  # one key in a thousand has a larger value at some slot than the bound reckons with
ONE_SUM = 1024  # clients that are summed at once; averages of more are averages of averages

KeySource: TypeAlias = bytes | Path  # a site's secret: as it is in the file, or the file


@dataclass(frozen=True)
class Parameters:
    """A ring of polynomials, one prime for the result, one for each multiplication and one that SEAL keeps."""

    clients: int
    scale_bits: int
    depth: int  # multiplications with plaintext coefficients, one after the other

    @classmethod
    def for_clients(cls, clients: int) -> "Parameters":
        """The least precision that keeps the error below 1e-7: what it does not need is left for large values."""
        depth = 1 if clients <= ONE_SUM else 2
        fitting = (cls(clients, bits, depth) for bits in SCALES)
        return next((p for p in fitting if p.error <= GOAL), cls(clients, SCALES[-1], depth))

    @property
    def bits(self) -> list[int]:
        return [FIRST, *[self.scale_bits] * self.depth, self.scale_bits]

    @property
    def slots(self) -> int:
        return RING // 2

    @cached_property
    def scale(self) -> float:
        """The very prime that a multiplication divides by: any other number near it would be an error of 1e-6."""
        moduli = library("tenseal.sealapi", "privacy").CoeffModulus.Create(RING, self.bits)
        return float(moduli[-2].value())

    @property
    def largest(self) -> float:
        """The largest value that may be encrypted; a sum of ones twice as large would still be right."""
        return 2.0 ** (FIRST - self.scale_bits - 2)

    @property
    def error(self) -> float:
        """What a value of a weighted average may be off by: encryption once, rounding after every product.

        Rounding is multiplied by the key's value at a slot: squares are exponentially distributed with mean 2/3 N,
        and the largest counts.
        """
        encryption = 3.2 * math.sqrt(RING) + math.sqrt(RING / 12)
        key = math.sqrt(2 * RING / 3 * (math.log(self.slots) + UNLUCKY))
        rounding = math.sqrt(RING / 24) * key
        return DEVIATIONS * (encryption + math.sqrt(self.clients * self.depth) * rounding) / 2.0**self.scale_bits

    def __str__(self) -> str:
        moduli = " + ".join(map(str, self.bits))
        return (
            f"CKKS, ring {RING}, moduli of {moduli} bits, scale 2^{self.scale_bits}, depth {self.depth}; "
            f"an average over {self.clients} clients is off by {self.error:.1e} at most, values may be up to "
            f"{self.largest:,.0f}"
        )

    def new_key(self) -> bytes:
        """A secret, and all that a site needs beside it."""
        made = _tenseal().context(
            _tenseal().SCHEME_TYPE.CKKS, RING, coeff_mod_bit_sizes=self.bits, n_threads=1,
            encryption_type=_tenseal().ENCRYPTION_TYPE.SYMMETRIC,
        )  # fmt: skip
        made.global_scale = self.scale
        return bytes(made.serialize(False, True, False, False))

    def server_context(self) -> Any:
        """What the server computes in: it can neither decrypt nor encrypt."""

        def make() -> Any:
            thrown_away = _tenseal().context_from(self.new_key(), 1)
            return _tenseal().context_from(thrown_away.serialize(False, False, False, False), 1)

        return _once((self.bits[1], self.depth, "server"), make)


@dataclass(frozen=True)
class SiteKey:
    """The secret that all sites share, and the name by which it is known."""

    secret: bytes
    parameters: Parameters

    @cached_property
    def name(self) -> str:
        return hashlib.blake2b(self.secret, digest_size=8, person=b"fedpac ckks").hexdigest()

    def context(self) -> Any:
        def make() -> Any:
            try:
                context = _tenseal().context_from(self.secret, 1)
                known = context.has_secret_key() and context.global_scale == self.parameters.scale
                ring = context.seal_context().data.key_context_data().parms().poly_modulus_degree()
            except (ValueError, RuntimeError, TypeError) as error:
                raise ConfigError(f"the CKKS key is damaged ({error}); create one with 'fedpac certs --ckks'") from None
            if not known or ring != RING:
                raise ConfigError(
                    f"the CKKS key was made for another number of sites than {self.parameters.clients}, whose "
                    f"parameters are {self.parameters}; make one with 'fedpac certs --ckks' that all sites get"
                )
            return context

        return _once((self.name, self.parameters), make)

    @classmethod
    def of(cls, source: KeySource, parameters: Parameters) -> "SiteKey":
        """The key in the file. If there is none yet, this is the first site, which makes it."""
        if isinstance(source, bytes):
            return cls(source, parameters)
        with explained(source):
            if not source.exists():
                write_key(source, parameters)
            if source.stat().st_mode & 0o077:
                raise ConfigError(f"others can read the CKKS key {source}: chmod 600 {source}")
            return cls(source.read_bytes(), parameters)


def write_key(path: Path, parameters: Parameters) -> bool:
    """Make a key, unless somebody else has; whether it was made. Nobody ever sees half of it."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(parameters.new_key())
            file.flush()
            os.fsync(file.fileno())
        try:
            with suppress(FileExistsError):
                os.link(mine, path)
                return True
        finally:
            mine.unlink(missing_ok=True)
    return False


_contexts: dict[tuple[int, object], Any] = {}


def _once(name: object, make: Callable[[], Any]) -> Any:
    """Contexts are made once in each process: one that was inherited counts on threads that were not."""
    place = os.getpid(), name
    if place not in _contexts:
        _contexts[place] = make()
    return _contexts[place]


def _tenseal() -> Any:
    return library("tenseal", "privacy")
