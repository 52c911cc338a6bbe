"""Weights that the server adds up without being able to read them (the paper, "Communication and Privacy Concerns").

    client:  [w_i] <- Enc(w_i)                        the parts that Method.sums() names; all else stays readable
    server:  [w]   <- sum_i c_i [w_i]                 plaintext coefficients c_i, no key
    client:  w     <- Dec([w])

All sites share one secret key. A site that gives it to the server lets the server read every site's weights; a key
that is shared out, so that only several sites together can decrypt, is what would prevent that.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedpac.errors import MessageError, TrainingError
from fedpac.extras import library
from fedpac.message import Message, Part, Payload, Weights
from fedpac.mods.base import Context, Mod, Way
from fedpac.mods.ckks_keys import KeySource, Parameters, SiteKey
from fedpac.timing import span

ABOUT, DATA = "ckks about", "ckks data"  # no parameter of a torch module has a space in its name
MOST = 2**31  # values that a stranger may claim to have encrypted
DTYPES = {
    str(kind).removeprefix("torch."): kind for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True)
class Layout:
    """Where each tensor's values are in the long vector that is encrypted: one after the other, by name."""

    entries: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, dtype, shape

    @classmethod
    def of(cls, weights: Weights) -> "Layout":
        floats = [(name, weights[name]) for name in sorted(weights) if weights[name].is_floating_point()]
        return cls(tuple((name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in floats))

    @classmethod
    def from_json(cls, values: Any) -> "Layout":
        return cls(tuple((str(name), str(kind), tuple(int(size) for size in shape)) for name, kind, shape in values))

    @property
    def size(self) -> int:
        return sum(torch.Size(shape).numel() for _, _, shape in self.entries)

    def form(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        return {name: (DTYPES[kind], shape) for name, kind, shape in self.entries}

    def split(self, values: Tensor) -> Weights:
        sizes = [torch.Size(shape).numel() for _, _, shape in self.entries]
        pieces = torch.split(values, sizes) if sizes else ()
        return {
            name: piece.to(DTYPES[kind]).view(shape).clone()
            for (name, kind, shape), piece in zip(self.entries, pieces, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Encrypted(Payload):
    """Ciphertexts of 4,096 values each. Whole numbers, such as a counter of batches, stay readable."""

    vectors: Sequence[Any]  # TenSEAL's
    layout: Layout
    readable: Weights
    key: str = ""

    def __mul__(self, factor: float) -> "Encrypted":
        return self._with(vector * float(factor) for vector in self.vectors)

    def __add__(self, other: Payload) -> "Encrypted":
        if not isinstance(other, Encrypted):
            return NotImplemented
        if (self.key, self.layout) != (other.key, other.layout):
            raise MessageError("weights encrypted with different keys or of different shapes cannot be added")
        return self._with(one + two for one, two in zip(self.vectors, other.vectors, strict=True))

    def _with(self, vectors: Iterator[Any]) -> "Encrypted":
        with span("ciphertexts"):
            return Encrypted(list(vectors), self.layout, self.readable, self.key)

    def form(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        whole = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in self.readable.items()}
        return self.layout.form() | whole

    def __deepcopy__(self, memo: dict[int, Any]) -> "Encrypted":
        return self  # nothing changes it

    def to_tensors(self) -> Weights:
        return self._tensors

    @cached_property
    def _tensors(self) -> Weights:
        pieces = [vector.serialize() for vector in self.vectors]
        about = {"key": self.key, "layout": self.layout.entries, "sizes": [len(piece) for piece in pieces]}
        return {ABOUT: _bytes(json.dumps(about).encode()), DATA: _bytes(b"".join(pieces)), **self.readable}


@dataclass(frozen=True)
class Ckks(Mod):
    """Encrypts what clients answer under these names. Only a site has a key; the server's end never looks at it."""

    parts: tuple[str, ...]
    parameters: Parameters
    site: KeySource | None = field(default=None, repr=False)
    secret_start: bool = False  # sites begin with the initial weights in an order that only they know

    def at_server(self, message: Message, context: Context) -> Way:
        answer = yield Message(**{name: _travelling(part) for name, part in message.items()})
        if readable := [name for name in self.parts if name in answer and not is_encrypted(answer[name])]:
            raise MessageError(f"the message part '{readable[0]}' is not encrypted, and must be")
        return Message(**{name: self.restored(part, fresh=True) for name, part in answer.items()})

    def at_client(self, message: Message, context: Context) -> Way:
        key = self._key()
        answer = yield Message(**{name: self._opened(name, part, key) for name, part in message.items()})
        kept = [name for name in self.parts if name in answer]  # a newcomer introduces itself with less
        sealed: dict[str, Part] = {name: self._sealed(name, answer.weights(name), key) for name in kept}
        return Message(**{**answer, **sealed})

    def _key(self) -> SiteKey:
        if self.site is None:
            raise MessageError(
                "this run is encrypted, but this site has no key: --ckks ckks.key, created by 'fedpac certs --ckks'"
            )
        return SiteKey.of(self.site, self.parameters)

    @span("encryption")
    def _sealed(self, name: str, weights: Weights, key: SiteKey) -> Weights:
        layout = Layout.of(weights)
        flat = [weights[each].detach().double().reshape(-1) for each, _, _ in layout.entries]
        values = torch.cat(flat).numpy() if flat else np.zeros(0)
        top = float(np.abs(values).max(initial=0.0))
        if not top <= self.parameters.largest:
            raise TrainingError(
                f"'{name}' cannot be encrypted: it has a value of {top:g}, and {self.parameters.largest:g} is the most"
            )
        context, vector = key.context(), library("tenseal", "privacy").ckks_vector
        slots = self.parameters.slots
        vectors = [vector(context, values[at : at + slots]) for at in range(0, len(values), slots)]
        whole = {each: tensor for each, tensor in weights.items() if not tensor.is_floating_point()}
        return Encrypted(vectors, layout, whole, key.name).to_tensors()

    @span("decryption")
    def _opened(self, name: str, part: Part, key: SiteKey) -> Part:
        if not is_encrypted(part):  # initial weights, or what is always readable
            hidden = self.secret_start and name in self.parts
            return shuffled(cast(Weights, part), key.secret) if hidden else part
        sealed = self._read(part, key.context)
        if sealed.key != key.name:
            raise MessageError(f"'{name}' was not encrypted with this site's key: all sites need the same one")
        values = np.concatenate([np.zeros(0), *(vector.decrypt() for vector in sealed.vectors)])
        if not np.abs(values).max(initial=0.0) <= 4 * self.parameters.largest:
            raise MessageError(f"'{name}' decrypts to garbage: a site has sent damaged ciphertexts")
        return {**sealed.layout.split(torch.from_numpy(values)), **sealed.readable}

    def restored(self, part: Part, fresh: bool = False) -> Part:
        return self._read(part, self.parameters.server_context, fresh) if is_encrypted(part) else part

    @span("ciphertexts")
    def _read(self, part: Part, context: Callable[[], Any], fresh: bool = False) -> Encrypted:
        """What a message holds, if it is what it says: so many ciphertexts of so many values under these parameters.

        fresh   nothing was done with it yet: there is room for all the multiplications to come
        """
        weights = dict(cast(Weights, part))
        try:
            about = json.loads(weights.pop(ABOUT).numpy().tobytes())
            data = weights.pop(DATA).numpy().tobytes()
            layout, key, sizes = Layout.from_json(about["layout"]), str(about["key"]), [int(n) for n in about["sizes"]]
            layout.form()
            if not 0 <= layout.size <= MOST or any(size < 0 for _, _, shape in layout.entries for size in shape):
                raise ValueError(f"{layout.size} values")
            counts = [
                min(self.parameters.slots, layout.size - at) for at in range(0, layout.size, self.parameters.slots)
            ]
            if len(sizes) != len(counts) or min(sizes, default=1) < 1 or sum(sizes) != len(data):
                raise ValueError(f"{len(sizes)} ciphertexts; expected {len(counts)}")
            ends = np.cumsum([0, *sizes])
            read = library("tenseal", "privacy").ckks_vector_from
            vectors = [read(context(), data[at:end]) for at, end in pairwise(ends)]
            for vector, count in zip(vectors, counts, strict=True):
                self._check(vector, count, fresh)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
            raise MessageError(f"ciphertexts do not match this run's parameters: {error}") from None
        return Encrypted(vectors, layout, weights, key)

    def _check(self, vector: Any, count: int, fresh: bool) -> None:
        (ciphertext,) = vector.ciphertext()
        left = ciphertext.coeff_modulus_size()
        if vector.size() != count or ciphertext.size() != 2 or ciphertext.is_transparent():
            raise ValueError(f"a ciphertext of {vector.size()} values; expected {count}")
        if not (1 <= left <= self.parameters.depth + 1) or (fresh and left <= self.parameters.depth):
            raise ValueError(f"a ciphertext with room for {left - 1} multiplications")
        if not 0.9 < ciphertext.scale / self.parameters.scale < 1.1 or (
            fresh and ciphertext.scale != self.parameters.scale
        ):
            raise ValueError(f"a ciphertext of scale {ciphertext.scale:g}, not {self.parameters.scale:g}")


def shuffled(weights: Weights, secret: bytes) -> Weights:
    """The same values in another order within each tensor, which follows from the secret on every machine.

    Initial values are drawn independently, so that any order is as good a start as any other.
    """

    def order(name: str, count: int) -> Tensor:
        keys = hashlib.shake_256(b"fedpac secret start" + secret + name.encode()).digest(8 * count)
        return torch.from_numpy(np.frombuffer(keys, "<u8").argsort(kind="stable"))

    return {
        name: t.reshape(-1)[order(name, t.numel())].view(t.shape) if t.is_floating_point() else t
        for name, t in weights.items()
    }


def is_encrypted(part: Part) -> bool:
    return isinstance(part, dict) and ABOUT in part


def _travelling(part: Part) -> Part:
    return part.to_tensors() if isinstance(part, Payload) else part


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
