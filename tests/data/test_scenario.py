import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dealing import DEALT, same, small
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedpac.data import DataConfig, build, describe
from fedpac.data.scenario import repeated
from fedpac.data.scenarios import SCENARIOS
from fedpac.errors import DataError

REAL = os.environ.get("FEDPAC_DATA")


# ---------------------------------------------------------------- what holds for every scenario


@pytest.mark.parametrize("name", DEALT)
def test_a_scenario_is_a_function_of_config_and_seed(name):
    config = small(name)
    first = build(config, 1)
    assert same(first, build(config, 1))
    assert not same(first, build(config, 2))
    assert same(first, build(config.resolved(), 1))  # writing the defaults out changes nothing
    assert config.resolved().resolved() == config.resolved()
    assert len(first.clients) == 10
    assert first.classes == 10
    assert first.shape == (1, 28, 28)
    assert first.name == f"digits {name}"
    assert not first.note


@pytest.mark.parametrize("name", DEALT)
def test_train_and_test_come_from_different_images_and_have_one_distribution(name):
    scenario = build(small(name), 0)
    train, test = describe(scenario), describe(scenario, "test")
    assert (test.sum(1) == 40).all()
    shares = train / train.sum(1, keepdim=True)
    gap = (test - 40 * shares).abs().max()
    assert gap < 1 + 40 / train.sum(1).min()  # whole numbers on both sides
    assert scenario.clients[0].train.pool is scenario.clients[-1].train.pool
    assert scenario.clients[0].train.pool is not scenario.clients[0].test.pool


def test_client_data_hold_what_describe_says():
    scenario = build(small("concept-shift"), 0)
    for client, row in zip(scenario.clients, describe(scenario), strict=True):
        x, y = client.train.tensors()
        assert y.bincount(minlength=10).tolist() == row.tolist()
        assert x.shape == (len(y), 1, 28, 28)
        assert abs(x.mean()) < 0.3  # normalised


# ---------------------------------------------------------------- one by one


@settings(max_examples=20, deadline=None)
@given(
    s=st.sampled_from([0, 20, 33.3, 80, 100]),
    samples=st.integers(1, 120),
    clients=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_groups_have_the_papers_shares(s, samples, clients, seed):
    counts = describe(build(DataConfig(s=s, samples=samples, clients=clients), seed)).numpy()
    dominant = [{0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}, {8, 9, 0}]
    assert counts.shape == (clients, 10)
    assert (counts.sum(axis=1) == samples).all()
    for i, row in enumerate(counts):
        for k, count in enumerate(row):
            share = s / 1000 + (1 - s / 100) / 3 * (k in dominant[i % 5])
            assert abs(count - samples * share) < 1 + 1e-6
            assert s > 0 or count == 0 or k in dominant[i % 5]


def test_groups_are_numbered_round_robin():
    assert [c.group for c in build(small("groups"), 0).clients] == [0, 1, 2, 3, 4] * 2
    assert [c.group for c in build(small("iid"), 0).clients] == [None] * 10
    assert [c.group for c in build(small("iid", shift="labels", groups=2), 0).clients] == [0, 1] * 5


def test_own_dominant_classes():
    counts = describe(build(DataConfig(dominant=[[0], [8, 9]], s=0, clients=4, samples=20), 0))
    assert counts[0].tolist() == counts[2].tolist() == [20] + [0] * 9
    assert counts[1].tolist() == [0] * 8 + [10, 10]


def test_a_class_that_runs_out_is_shared(tmp_path, fashion):
    scenario = build(DataConfig(dataset="fashion-mnist", clients=5, s=0, samples=90), 0, tmp_path)  # 20 a class exist
    assert describe(scenario).sum(1).tolist() == [90] * 5
    assert scenario.note
    used = torch.cat([client.train.index for client in scenario.clients])
    assert len(used) == 450 > len(used.unique())
    within, between = repeated(scenario)
    assert within == 5  # 30 of a class that has 20
    assert 0 < between <= 200
    assert repeated(build(small("dirichlet"), 0)) == (0, 0)


def test_emnist_groups_are_digits_upper_and_lower_case(tmp_path, emnist):
    scenario = build(DataConfig(dataset="emnist", s=0, clients=6, samples=100), 0, tmp_path)
    has = describe(scenario).bool()
    for i, row in enumerate(has):
        assert row.nonzero().flatten().tolist() == list((range(10), range(10, 36), range(36, 62))[i % 3])
    assert scenario.classes == 62


def test_imbalanced_sizes():
    sizes = describe(build(small("imbalanced", clients=60), 0)).sum(1)
    assert set(sizes.tolist()) == {25, 50, 100}
    assert (sizes.bincount()[[25, 50, 100]] > 8).all()
    assert set(describe(build(small("imbalanced", sizes=[7, 9]), 0)).sum(1).tolist()) == {7, 9}


@pytest.mark.parametrize("allocation", ["random", "clustered"])
def test_pathological(allocation):
    scenario = build(small("pathological", clients=20, samples=120, allocation=allocation), 0)
    counts = describe(scenario)
    for i, row in enumerate(counts):
        held = row[row > 0]
        assert len(held) == (3, 3, 5, 5, 8)[i % 5]
        assert held.max() - held.min() <= (120 % len(held) > 0)
    alike = [torch.equal(counts[i].bool(), counts[i + 5].bool()) for i in range(15)]
    assert all(alike) if allocation == "clustered" else not all(alike)


def test_dirichlet_deals_the_whole_training_set():
    scenario = build(small("dirichlet", clients=20), 0)
    index = torch.cat([c.train.index for c in scenario.clients])
    assert sorted(index.tolist()) == list(range(1297))
    assert describe(scenario).sum(1).min() >= 10
    assert describe(build(small("dirichlet", samples=30), 0)).sum() == 300


def test_iid_is_the_sets_own_distribution():
    scenario = build(small("iid", samples=100), 0)
    pool = scenario.clients[0].train.pool
    exact = 100 * pool.y.bincount() / len(pool.y)
    assert ((describe(scenario) - exact).abs() < 1).all()


def test_scarce_is_many_clients_with_little():
    scenario = build(DataConfig(scenario="scarce"), 0)
    assert len(scenario.clients) == 1000
    assert (describe(scenario).sum(1) == 50).all()


def test_concept_shift_relabels_by_group_and_keeps_images():
    plain, shifted = build(small("groups"), 0), build(small("concept-shift"), 0)
    for a, b in zip(plain.clients, shifted.clients, strict=True):
        assert torch.equal(a.train.index, b.train.index)
        for part, other in ((a.train, b.train), (a.test, b.test)):  # test labels mean the same as training labels
            assert torch.equal(other.labels(), b.train.relabel[part.labels()])
    orders = [c.train.relabel.tolist() for c in shifted.clients]
    assert orders[:5] == orders[5:]
    assert len({tuple(o) for o in orders}) == 5


def test_feature_skew_turns_by_group():
    scenario = build(small("feature-skew"), 0)
    assert len({tuple(row) for row in describe(scenario).tolist()}) == 1  # only the features differ
    assert [c.test.rotate for c in scenario.clients] == [0, 72, 144, 216, 288] * 2
    scenario = build(small("feature-skew", angles=[0, 90, 180, 270, 360]), 0)
    plain = build(small("groups", s=100), 0)
    x, turned = plain.clients[1].train.tensors()[0], scenario.clients[1].train.tensors()[0]
    assert torch.equal(turned, torch.rot90(x, 1, (2, 3)))


def test_random_turns_are_of_each_image_up_to_the_groups_angle():
    scenario = build(small("random-turns"), 0)
    plain = build(small("groups"), 0)
    for i, (client, before) in enumerate(zip(scenario.clients, plain.clients, strict=True)):
        most = 18 * (i % 5 + 1)
        assert 0.8 * most < client.train.turns.abs().max() <= most
        assert torch.equal(client.train.index, before.train.index)  # labels as in the paper's groups
        assert not torch.equal(client.train.turns[:40], client.test.turns[:40])
    assert not torch.equal(scenario.clients[0].train.turns, scenario.clients[5].train.turns)
    part = scenario.clients[4].train
    x, alone = part.tensors()[0], part.only(torch.tensor([3]))
    assert torch.allclose(x[3:4], alone.tensors()[0], atol=1e-5)
    fixed = replace(alone, turns=None, rotate=float(part.turns[3]))
    assert torch.allclose(x[3:4], fixed.tensors()[0], atol=1e-4)  # turned as a whole group would be


def test_shifts_compose_with_any_partition():
    scenario = build(small("dirichlet", shift="rotation", groups=4), 0)
    assert [c.train.rotate for c in scenario.clients][:4] == [0, 90, 180, 270]
    plain = build(small("concept-shift", shift="none"), 0)
    assert plain.clients[3].train.relabel is None


def test_cinic_sep_gives_each_half_its_source(tmp_path, cinic):
    config = DataConfig(dataset="cinic10", scenario="cinic-sep", clients=5, samples=20, test_samples=20)
    scenario = build(config, 0, tmp_path)
    assert same(scenario, build(config, 0, tmp_path))
    for i, client in enumerate(scenario.clients):
        for part in (client.train, client.test):
            assert set((part.index % 4 >= 2).tolist()) == {i >= 3}  # the files alternate: two of each source per class
    assert describe(scenario).sum(1).tolist() == [20] * 5


def test_a_source_without_a_class_names_the_client(tmp_path, cinic):
    for file in (cinic / "train" / "airplane").glob("n0*"):
        file.unlink()
    with pytest.raises(DataError, match="client 4 should get 3 training samples of class 0"):
        build(DataConfig(dataset="cinic10", scenario="cinic-sep", clients=8, s=0, samples=9), 0, tmp_path)


def test_augmentation_is_the_papers_unless_said_otherwise(tmp_path, cifar):
    def augmented(**keys):
        return build(DataConfig(samples=10, clients=2, **keys), 0, tmp_path).clients[0].augment

    assert augmented(dataset="cifar10")
    assert not augmented(dataset="cifar10", augment=False)
    assert not augmented(dataset="digits")
    assert augmented(dataset="digits", augment=True)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("fashion-mnist", 600, 600), ("cifar10", 600, 300), ("emnist", 1000, 600), ("cinic10", 600, 300)],
)
def test_the_papers_sizes(name, train, test):
    config = DataConfig(dataset=name).resolved()
    assert (config.clients, config.samples, config.test_samples, config.s) == (20, train, test, 20)
    assert DataConfig(dataset=name, scenario="dirichlet").resolved().beta == 1.0
    assert DataConfig(dataset=name, scenario="pathological").resolved().classes_per_group == (3, 3, 5, 5, 8)
    if train == 600:
        assert DataConfig(dataset=name, scenario="imbalanced").resolved().sizes == (300, 600, 1200)


def test_ten_thousand_clients_cost_their_indices_only():
    scenario = build(DataConfig(clients=10_000, samples=60, test_samples=10), 0)
    assert len({id(c.train.pool) for c in scenario.clients}) == 1
    stored = sum(c.train.index.untyped_storage().nbytes() for c in scenario.clients)
    assert stored == 10_000 * 60 * 8


# ---------------------------------------------------------------- wrong configs


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"dataset": "cifar"}, ("dataset", "Did you mean 'cifar10'")),
        ({"scenario": "dirichle"}, ("scenario", "Did you mean 'dirichlet'")),
        ({"clients": 0}, ("clients", "greater than or equal to 1", "0")),
        ({"clients": -3}, ("clients", "greater than or equal to 1", "-3")),
        ({"samples": 0}, ("samples", "greater than or equal to 1")),
        ({"s": 101}, ("less than or equal to 100", "101")),
        ({"s": float("nan")}, ("s\n", "nan")),
        ({"scenario": "dirichlet", "beta": 0}, ("beta", "0.001")),
        ({"scenario": "dirichlet", "beta": float("inf")}, ("beta",)),
        ({"scenario": "natural", "path": "x", "test_share": 1.0}, ("test_share", "less than 1")),
        ({"shift": "colour"}, ("shift", "'labels', 'rotation'")),
        ({"sampels": 3}, ("sampels",)),
        ({"beta": 1.0}, ("beta has no effect in scenario 'groups'", "dirichlet")),
        ({"scenario": "dirichlet", "s": 20}, ("s has no effect in scenario 'dirichlet'",)),
        ({"scenario": "dirichlet", "groups": 4}, ("groups has no effect",)),
        ({"scenario": "pathological", "groups": 4}, ("groups is 4", "5 groups")),
        ({"scenario": "pathological", "classes_per_group": [3, 11]}, ("11", "1 to 10")),
        ({"scenario": "imbalanced", "sizes": []}, ("sizes", "at least 1")),
        ({"dominant": [[0, 10]]}, ("[0, 10]", "0 to 9")),
        ({"dominant": [[0, 0]]}, ("[0, 0]", "different")),
        ({"dominant": [[0], [1]], "groups": 3}, ("groups is 3", "2 groups")),
        ({"dominant": []}, ("dominant", "at least 1")),
        ({"angles": [1.0]}, ("angles", "rotation")),
        ({"scenario": "feature-skew", "angles": [1.0, 2.0]}, ("angles has 2", "5 groups")),
        ({"scenario": "cinic-sep"}, ("cinic10", "digits")),
        ({"scenario": "natural"}, ("path",)),
        ({"dataset": "own"}, ("your own data", "need `path`")),
        ({"scenario": "natural", "dataset": "cifar10"}, ("own data", "remove 'cifar10'")),
        ({"scenario": "iid", "path": "x", "dataset": "cifar10"}, ("path is for your own data", "'cifar10'")),
        ({"test_share": 0.3}, ("test_share", "'digits' is already split")),
        ({"path": "x", "scenario": "cinic-sep"}, ("'cinic10'", "not 'own'")),
        ({"path": "x", "scenario": "natural", "clients": 3}, ("clients has no effect",)),
        ({"path": "x", "dominant": [[0], [1]], "groups": 3}, ("groups is 3", "2 groups")),
        ({"path": "x", "clients": 1_000_000, "samples": 10_000_000}, ("at most",)),
        ({"clients": 1_000_000, "samples": 10_000_000}, ("10,000,000,000,000", "at most")),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_a_wrong_config_says_what_is_wrong(keys, words):
    with pytest.raises(ValidationError) as caught:
        DataConfig(**keys)
    for word in words:
        assert word in str(caught.value)


def test_dirichlet_with_too_many_clients():
    with pytest.raises(DataError, match="1297 samples cannot give 200 clients 10 each"):
        build(DataConfig(scenario="dirichlet", clients=200), 0)


def test_every_key_is_documented():
    assert all(field.description for field in DataConfig.model_fields.values())


# ---------------------------------------------------------------- the real sets


@pytest.mark.skipif(REAL is None, reason="FEDPAC_DATA does not point to the real data sets")
@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"natural"}))
def test_every_scenario_on_the_real_sets(name):
    for dataset in ["cinic10"] if name == "cinic-sep" else ["fashion-mnist", "cifar10", "emnist", "cinic10"]:
        if not Path(REAL, dataset).exists():
            continue
        scenario = build(DataConfig(dataset=dataset, scenario=name), 0, Path(REAL))
        assert describe(scenario).sum(1).min() >= 10
        assert describe(scenario, "test").sum(1).min() >= 300
