"""The paper's networks, and what is asked of a user's own."""

import pytest
import torch
from torch import nn

from fedpac.errors import ConfigError
from fedpac.model_check import check_model
from fedpac.models import (
    Classifier,
    copy_with,
    load_into,
    paper_cnn,
    section,
    weights_of,
    without,
)
from fedpac.networks import build_model


@pytest.mark.parametrize(
    ("shape", "classes", "numbers"),
    [((1, 28, 28), 10, 117_066), ((1, 28, 28), 62, 123_774), ((3, 32, 32), 10, 107_690)],
)
def test_the_papers_networks_have_the_papers_size(shape, classes, numbers):
    model = paper_cnn(shape, classes)
    assert sum(p.numel() for p in model.parameters()) == numbers
    features = model.body(torch.zeros(2, *shape))
    assert features.shape == (2, 128)
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_pooling_before_the_activation_changes_nothing():
    """The networks as they are usually written, conv - activation - pool, give the same numbers."""
    torch.manual_seed(0)
    model = paper_cnn((1, 28, 28), 10)
    usual = nn.Sequential(*[model.body[i] for i in (0, 2, 1, 3, 5, 4, 6, 7, 8)])
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(model.body(x), usual(x))


def test_initial_weights_come_from_the_runs_own_stream():
    torch.manual_seed(1)
    one = weights_of(build_model("paper", (1, 28, 28), 10, seed=5))
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # torch's own stream was not touched
    two = weights_of(build_model("paper", (1, 28, 28), 10, seed=5))
    other = weights_of(build_model("paper", (1, 28, 28), 10, seed=6))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_other_image_sizes_are_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"\(1, 28, 28\) or \(3, 32, 32\), not \(1, 8, 8\).*your own network"):
        paper_cnn((1, 8, 8), 10)


def test_a_module_without_body_and_head_is_refused():
    with pytest.raises(ConfigError, match=r"needs two sub-modules: `body`.*it has 0"):
        check_model(nn.Sequential(nn.Linear(2, 2)))


def test_weights_outside_body_and_head_are_refused():
    model = Classifier(nn.Linear(2, 2), nn.Linear(2, 2))
    model.extra = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"outside its body and its head: extra\.weight, extra\.bias"):
        check_model(model)


def test_body_and_head_are_the_whole():
    weights = weights_of(Classifier(nn.Linear(2, 3), nn.Linear(3, 4)))
    assert sorted(section(weights, "body")) == ["body.bias", "body.weight"]
    assert without(weights, "body").keys() == section(weights, "head").keys()
    assert section(weights, "none") == {}
    assert section(weights, "all").keys() == weights.keys()


def test_a_copy_shares_nothing_and_loading_is_in_place():
    model = Classifier(nn.Linear(2, 3), nn.Linear(3, 4))
    place = model.head.weight.data_ptr()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights_of(model).items()}
    copied = copy_with(model, zeros)
    assert model.head.weight.abs().sum() > 0
    assert copied.head.weight.abs().sum() == 0
    load_into(model, zeros)
    assert (model.head.weight.data_ptr(), float(model.head.weight.detach().abs().sum())) == (place, 0.0)
