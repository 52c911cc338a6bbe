"""Who gets how much of which class, and then exactly which samples.

A partition is a table of class shares, one row per client, and a size per client. `apportion` turns shares into whole
numbers, `deal` turns numbers into samples. Test data follow the same shares as the training data.
"""

import heapq
from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from fedpac.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def apportion(shares: Floats, sizes: Ints, stream: np.random.Generator) -> Ints:
    """Whole numbers that add up to each row's size and differ from size * share by less than one.

    Largest remainders first; equal remainders are drawn by lot, so that no class is favoured in all clients.
    """
    exact = shares * (sizes / shares.sum(axis=1))[:, None]
    counts: Ints = np.floor(exact + 1e-9).astype(np.int64)
    missing = sizes - counts.sum(axis=1)
    remainder = np.round(exact - counts, 9)
    order = np.lexsort((stream.random(shares.shape), -remainder), axis=1)
    rank = np.argsort(order, axis=1)
    counts += rank < missing[:, None]
    return counts


def deal(
    y: Ints,
    counts: Ints,
    stream: np.random.Generator,
    what: str = "samples",
    allowed: Ints | None = None,
    first: int = 0,
) -> list[Ints]:
    """The samples of every client: counts[i, k] of class k to client i, each class from its own shuffled deck.

    A class that runs out is shuffled anew and dealt again, so clients may then share samples (as in the authors' code);
    one client never gets a sample twice unless it asks for more than the class has.
    allowed: deal only these samples. what, first: what they are and the number of the first client, for messages.
    """
    keys = []
    pool = np.arange(len(y)) if allowed is None else allowed
    for k in np.flatnonzero(counts.sum(axis=0)):
        deck = _decks(pool[y[pool] == k], counts[:, k], stream)
        if not len(deck):
            client = int(np.flatnonzero(counts[:, k])[0])
            share = f"client {first + client} should get {counts[client, k]} {what} of class {k}"
            raise DataError(f"{share}, but the data hold none of it.")
        keys.append(np.repeat(np.arange(len(counts)), counts[:, k]) * len(y) + deck)
    # client by client, and ascending within a client: kinder to a memory-mapped file
    picks = np.sort(np.concatenate(keys)) % len(y)
    return np.split(picks, np.cumsum(counts.sum(axis=1))[:-1])


def _decks(own: Ints, counts: Ints, stream: np.random.Generator) -> Ints:
    """As many shuffled decks of a class as its counts need, one after the other."""
    ends = np.cumsum(counts)
    size, need = len(own), int(ends[-1])
    dealt = np.empty(-(-need // max(size, 1)) * size, np.int64)
    for end in range(0, len(dealt), max(size, 1)):
        # the client at the seam holds cards of the old deck: the more often, the deeper they go into the new one
        client = np.searchsorted(ends, end, side="right")
        held = np.bincount(dealt[ends[client] - counts[client] : end], minlength=size)
        deck = stream.permutation(size)
        dealt[end : end + size] = deck[np.argsort(held[deck], kind="stable")]
    return own[dealt[:need]]


def dominant_sets(classes: int, groups: int) -> list[list[int]]:
    """Consecutive classes around the ring, evenly spaced, each set one class wider than the spacing.

    10 classes in 5 groups give the paper's {0,1,2}, {2,3,4}, {4,5,6}, {6,7,8}, {8,9,0}.
    """
    width = max(1, min(-(-classes // groups) + 1, classes - 1))
    return [[(g * classes // groups + j) % classes for j in range(width)] for g in range(groups)]


def group_shares(clients: int, classes: int, dominant: Sequence[Sequence[int]], s: float) -> Floats:
    """The paper's default: s percent uniform over all classes, the rest from the dominant classes of group i mod G."""
    table = np.full((len(dominant), classes), s / 100 / classes)
    for row, favoured in zip(table, dominant, strict=True):
        row[list(favoured)] += (1 - s / 100) / len(favoured)
    return table[np.arange(clients) % len(dominant)]


def pathological_shares(
    clients: int, classes: int, per_group: Sequence[int], clustered: bool, stream: np.random.Generator
) -> Floats:
    """A few classes per client, balanced among them; group i mod G says how many.

    random: every client draws its own set. clustered: a group shares one, see `_ring_sets`.
    """
    shares = np.zeros((clients, classes))
    ring = stream.permutation(classes).tolist()
    of_groups = _ring_sets(ring, per_group) if clustered else None
    for i in range(clients):
        group = i % len(per_group)
        size = per_group[group]
        shares[i, of_groups[group] if of_groups else stream.permutation(classes)[:size]] = 1 / size
    return shares


def _ring_sets(ring: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Sets cut one after the other from a ring of classes: none is left out once the ring has been gone round.

    A set that an earlier group has is cut further along the ring, or where that has no other either, chosen anywhere.
    So all differ, unless more groups want a size than there are sets of it.
    """
    sets: list[list[int]] = []
    taken: set[frozenset[int]] = set()
    start = 0
    for size in sizes:
        cuts = [[ring[(start + shift + j) % len(ring)] for j in range(size)] for shift in range(len(ring))]
        others = (list(chosen) for chosen in combinations(ring, size))
        sets.append(next((chosen for chosen in chain(cuts, others) if frozenset(chosen) not in taken), cuts[0]))
        taken.add(frozenset(sets[-1]))
        start += size
    return sets


def dirichlet_counts(totals: Ints, clients: int, beta: float, minimum: int, stream: np.random.Generator) -> Ints:
    """Class k's samples are split among the clients in proportions drawn from Dir(beta, ..., beta).

    Clients left with fewer than `minimum` are topped up from the richest, one sample at a time from the class the donor
    has most of: so it ends for every beta and every number of clients, where redrawing until all are full does not.
    """
    if clients * minimum > totals.sum():
        raise DataError(
            f"{totals.sum()} samples cannot give {clients} clients {minimum} each: "
            f"lower min_samples or clients, or set samples to at least {minimum}."
        )
    shares = stream.dirichlet(np.full(clients, beta), size=len(totals))
    counts = np.ascontiguousarray(apportion(shares, totals, stream).T)
    sizes = counts.sum(axis=1)
    richest = [(-int(size), i) for i, size in enumerate(sizes)]
    heapq.heapify(richest)
    for poor in np.flatnonzero(sizes < minimum):
        for _ in range(minimum - sizes[poor]):
            size, donor = heapq.heappop(richest)
            k = counts[donor].argmax()
            counts[donor, k] -= 1
            counts[poor, k] += 1
            heapq.heappush(richest, (size + 1, donor))
    return counts
