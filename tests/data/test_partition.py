from math import comb

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fedpac.data.partition import (
    apportion,
    deal,
    dirichlet_counts,
    dominant_sets,
    group_shares,
    pathological_shares,
)
from fedpac.errors import DataError

seeds = st.integers(0, 2**32)
calm = settings(max_examples=50, deadline=None)  # a busy machine is no failure


def stream(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---------------------------------------------------------------- shares to numbers


@calm
@given(seed=seeds, clients=st.integers(1, 6), classes=st.integers(1, 12), size=st.integers(0, 1000))
def test_apportion_is_exact_up_to_rounding(seed, clients, classes, size):
    shares = stream(seed).dirichlet(np.ones(classes), size=clients)
    sizes = np.full(clients, size)
    counts = apportion(shares, sizes, stream(seed))
    assert (counts.sum(axis=1) == size).all()
    assert (abs(counts - size * shares) < 1 + 1e-6).all()


def test_equal_remainders_favour_no_class():
    counts = apportion(np.full((2000, 10), 0.1), np.full(2000, 5), stream())
    assert counts.max() == 1
    assert (abs(counts.mean(axis=0) - 0.5) < 0.05).all()


# ---------------------------------------------------------------- numbers to samples


@calm
@given(seed=seeds, clients=st.integers(1, 8), classes=st.integers(1, 5), per_class=st.integers(1, 30))
def test_deal_gives_what_was_asked_and_reuses_only_when_it_must(seed, clients, classes, per_class):
    y = stream(seed).permutation(np.repeat(np.arange(classes), per_class))
    counts = stream(seed + 1).integers(0, 2 * per_class, size=(clients, classes))
    assume(counts.sum() > 0)
    dealt = deal(y, counts, stream(seed))
    for own, want in zip(dealt, counts, strict=True):
        assert (np.bincount(y[own], minlength=classes) == want).all()
        for k in range(classes):  # within a client, nothing twice before everything once
            times = np.bincount(own, minlength=len(y))[y == k]
            assert times.max(initial=0) <= -(-want[k] // per_class)
    times = np.bincount(np.concatenate(dealt), minlength=len(y))
    for k in range(classes):  # among clients, samples are used equally often, up to one
        assert np.ptp(times[y == k]) <= 1
    again = deal(y, counts, stream(seed))
    assert all((a == b).all() for a, b in zip(dealt, again, strict=True))


def test_a_class_without_samples_names_the_client():
    with pytest.raises(DataError, match="client 7 should get 3 samples of class 2"):
        deal(np.array([0, 1]), np.array([[1, 1, 0], [1, 1, 3]]), stream(), first=6)


def test_deal_stays_within_what_is_allowed():
    dealt = deal(np.zeros(100, np.int64), np.array([[30], [30]]), stream(), allowed=np.arange(50, 90))
    assert np.concatenate(dealt).min() >= 50
    assert np.concatenate(dealt).max() < 90


# ---------------------------------------------------------------- the partitions


def test_the_papers_dominant_classes():
    assert dominant_sets(10, 5) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]


@calm
@given(classes=st.integers(1, 200), data=st.data())
def test_dominant_sets_cover_all_classes_and_none_is_everything(classes, data):
    groups = data.draw(st.integers(1, classes))
    sets = dominant_sets(classes, groups)
    assert len(sets) == groups
    assert all(len(set(s)) == len(s) for s in sets)
    assert all(len(s) < classes for s in sets) or classes == 1
    assert set().union(*sets) == set(range(classes)) or groups == 1


@calm
@given(clients=st.integers(1, 30), s=st.floats(0, 100), classes=st.integers(2, 30), groups=st.integers(1, 5))
def test_group_shares(clients, s, classes, groups):
    dominant = dominant_sets(classes, min(groups, classes))
    shares = group_shares(clients, classes, dominant, s)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    for i, row in enumerate(shares):
        favoured = np.isin(np.arange(classes), dominant[i % len(dominant)])
        np.testing.assert_allclose(row[~favoured], s / 100 / classes)
        np.testing.assert_allclose(row[favoured], s / 100 / classes + (1 - s / 100) / favoured.sum())


@calm
@given(seed=seeds, clustered=st.booleans(), clients=st.integers(5, 40))
def test_pathological_class_sets(seed, clustered, clients):
    per_group = (3, 3, 5, 5, 8)
    shares = pathological_shares(clients, 10, per_group, clustered, stream(seed))
    for i, row in enumerate(shares):
        assert (row > 0).sum() == per_group[i % 5]
        np.testing.assert_allclose(row[row > 0], 1 / per_group[i % 5])
    if clustered:
        assert len(np.unique(shares, axis=0)) == 5  # one set per group, all different
        assert (shares.sum(axis=0) > 0).all()


@calm
@given(seed=seeds, classes=st.just(7), per_group=st.lists(st.integers(1, 7), min_size=1, max_size=25))
@example(seed=0, classes=10, per_group=[5, 5, 5])
@example(seed=0, classes=4, per_group=[2] * 6)  # more than the ring has: {0, 2} and {1, 3} are no neighbours
@example(seed=0, classes=4, per_group=[2] * 7)  # more than there are
def test_clustered_class_sets_differ_if_they_can(seed, classes, per_group):
    shares = pathological_shares(len(per_group), classes, per_group, True, stream(seed))
    held = [frozenset(np.flatnonzero(row)) for row in shares]
    assert [len(own) for own in held] == per_group
    for size in set(per_group):  # as many different sets as were asked for, or as there are
        assert len({own for own in held if len(own) == size}) == min(per_group.count(size), comb(classes, size))
    assert len(set().union(*held)) == classes or sum(per_group) < classes


def test_clustered_class_sets_are_cut_one_after_the_other():
    ring = stream().permutation(10)
    shares = pathological_shares(3, 10, (5, 5, 5), True, stream())
    want = [ring[:5], ring[5:], ring[1:6]]  # the third would be the first again: it is moved on by one
    assert [np.flatnonzero(row).tolist() for row in shares] == [sorted(cut) for cut in want]


@calm
@given(
    seed=seeds,
    beta=st.sampled_from([0.001, 0.01, 0.1, 1.0, 1000.0]),
    clients=st.integers(1, 200),
    minimum=st.integers(1, 10),
)
def test_dirichlet_deals_everything_and_starves_nobody(seed, beta, clients, minimum):
    totals = stream(seed).integers(0, 600, size=10)
    assume(totals.sum() >= clients * minimum)
    counts = dirichlet_counts(totals, clients, beta, minimum, stream(seed))
    assert (counts >= 0).all()
    assert (counts.sum(axis=0) == totals).all()
    assert (counts.sum(axis=1) >= minimum).all()


def test_dirichlet_follows_beta():
    spread = [dirichlet_counts(np.full(10, 5000), 100, b, 10, stream()).std() for b in (0.1, 1.0, 10.0)]
    assert spread[0] > 2 * spread[1] > 4 * spread[2]
    # Dir(1) on 100 clients: proportions have mean 1/100 and standard deviation about 1/100
    assert abs(spread[1] - 50) < 10


def test_dirichlet_ends_with_very_many_clients():
    counts = dirichlet_counts(np.full(10, 5000), 5000, 0.01, 10, stream())
    assert (counts.sum(axis=1) == 10).all()


def test_dirichlet_refuses_what_cannot_be():
    with pytest.raises(DataError, match="100 samples cannot give 20 clients 10 each"):
        dirichlet_counts(np.full(10, 10), 20, 1.0, 10, stream())
