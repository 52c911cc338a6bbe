"""Validation samples come out of a client's training part, and no test row is ever among them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpac.data.config import DataConfig
from fedpac.data.own import from_arrays
from fedpac.data.scenario import build
from fedpac.data.schema import read_schema
from fedpac.data.table_sites import TableSite
from fedpac.data.validation import held_out
from fedpac.errors import DataError

SCENARIOS = ["groups", "imbalanced", "pathological", "dirichlet", "iid", "concept-shift", "feature-skew"]


def rows(samples):
    return [] if samples is None else sorted(samples.index.tolist())


@settings(max_examples=25, deadline=None)
@given(
    scenario=st.sampled_from(SCENARIOS),
    share=st.floats(0.01, 0.95),
    seed=st.integers(0, 1000),
    clients=st.integers(1, 12),
)
def test_validation_never_sees_a_test_row(scenario, share, seed, clients):
    how = {"dataset": "digits", "scenario": scenario, "clients": clients}
    plain = build(DataConfig(**how), seed)
    split = build(DataConfig(**how, validation_share=share), seed)
    for before, after in zip(plain.clients, split.clients, strict=True):
        assert rows(after.test) == rows(before.test)
        assert rows(after.train) + rows(after.validation) != []
        assert sorted(rows(after.train) + rows(after.validation)) == rows(before.train)
        assert not set(rows(after.train)) & set(rows(after.validation))
        assert len(after.train) >= 1
        assert after.validation is not None
        assert len(after.validation) >= 1
        same_pool = after.validation.pool is after.test.pool
        assert not same_pool or not set(rows(after.validation)) & set(rows(after.test))
        assert after.validation.rotate == before.train.rotate
        assert torch.equal(after.validation.labels(), _labels(before, after))


def _labels(before, after):
    """What the client calls the held-out samples: its own names for classes."""
    called = dict(zip(before.train.index.tolist(), before.train.labels().tolist(), strict=True))
    return torch.tensor([called[i] for i in after.validation.index.tolist()])


def test_the_same_seed_holds_out_the_same_samples():
    config = DataConfig(dataset="digits", clients=5, validation_share=0.3)
    one, same, other = (build(config, seed).clients[2].validation for seed in (1, 1, 2))
    assert rows(one) == rows(same) != rows(other)


def test_a_client_with_one_sample_trains_on_it():
    x = torch.arange(6.0).view(3, 2)
    y = torch.tensor([0, 1, 0])
    scenario = held_out(from_arrays([(x[:1], y[:1], x, y), (x, y, x, y)]), 0.5, 0)
    assert scenario.clients[0].validation is None
    assert len(scenario.clients[1].validation) == 2


def test_validation_samples_of_ones_own():
    x, y = torch.arange(20.0).view(10, 2), torch.tensor([0, 1] * 5)
    scenario = from_arrays([(x[:5], y[:5], x[5:7], y[5:7], x[7:], y[7:])])
    client = held_out(scenario, 0.5, 0).clients[0]  # which has them already
    assert [part.tensors()[0].tolist() for part in (client.train, client.test, client.validation)] == [
        x[:5].tolist(),
        x[5:7].tolist(),
        x[7:].tolist(),
    ]
    with pytest.raises(DataError, match="5 arrays given, expected 4"):
        from_arrays([(x, y, x, y, x)])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0.1, 0.6))
def test_a_patient_is_in_one_part_only(tmp_path_factory, seed, share):
    """At all sites together, and without the test part being another one than it was."""
    folder = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(seed)
    for site in ("north", "south"):
        lines = [f"p{generator.integers(30)},{generator.normal():.3f},{'ill' if i % 2 else 'well'}" for i in range(60)]
        (folder / f"{site}.csv").write_text("\n".join(["patient,age,state", *lines]) + "\n")
    (folder / "schema.toml").write_text(
        'target = "state"\nclasses = ["ill", "well"]\nid = "patient"\n'
        '[sites]\nnorth = "north.csv"\nsouth = "south.csv"\n[features]\nage = "number"\n'
    )
    schema = read_schema(folder / "schema.toml")
    sites = [TableSite(name, i, schema, seed, 0.25, share) for i, name in enumerate(schema.sites)]
    train, test, validation = (
        {patient for site in sites for patient in getattr(site, part).texts("patient")}
        for part in ("train", "test", "validation")
    )
    assert not train & test
    assert not train & validation
    assert not test & validation
    plain = [TableSite(name, i, schema, seed, 0.25) for i, name in enumerate(schema.sites)]
    for before, after in zip(plain, sites, strict=True):
        assert before.test.texts("patient") == after.test.texts("patient")
        assert len(before.validation) == 0
        assert len(before) == len(after)


def test_tables_hold_out_their_own_rows(tmp_path):
    lines = [f"p{i},{i % 7},{'ill' if i % 2 else 'well'}" for i in range(80)]
    (tmp_path / "a.csv").write_text("\n".join(["patient,age,state", *lines]) + "\n")
    (tmp_path / "schema.toml").write_text(
        'target = "state"\nclasses = ["ill", "well"]\nid = "patient"\n'
        '[sites]\na = "a.csv"\n[features]\nage = "number"\n'
    )
    how = {"scenario": "natural", "path": tmp_path / "schema.toml"}
    plain, split = (build(DataConfig(**how, **more), 0) for more in ({}, {"validation_share": 0.25}))
    (before,), (after,) = plain.clients, split.clients
    assert before.validation is None
    assert len(after.train) + len(after.validation) == len(before.train)
    assert split.preprocessing != plain.preprocessing  # whose statistics are those of the training rows alone
