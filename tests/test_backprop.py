"""The gradients written out, against autograd's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpac.backprop import Gradient, gradient_of
from fedpac.models import Classifier, Section, paper_cnn, weights_of
from fedpac.native import accelerate, available
from fedpac.training import Batch, _by_hand, _flat, aligned_cross_entropy, cross_entropy, head_cross_entropy

needs_native = pytest.mark.skipif(not available(), reason="no native library on this machine")


def two_conv() -> Classifier:
    body = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Sequential(nn.Flatten(), nn.Linear(8 * 4, 40)), nn.ReLU(), nn.Dropout(0.5), nn.Dropout(0.0),
    )  # fmt: skip
    return Classifier(body, nn.Sequential(nn.Linear(40, 7, bias=False), nn.LeakyReLU(0.2), nn.Linear(7, 4)))


NETWORKS: dict[str, tuple[Callable[[], Classifier], tuple[int, ...]]] = {
    "paper, grey": (lambda: paper_cnn((1, 28, 28), 4), (1, 28, 28)),
    "paper, colour": (lambda: paper_cnn((3, 32, 32), 4), (3, 32, 32)),
    "two convolutions": (two_conv, (3, 8, 8)),
    "logistic": (lambda: Classifier(nn.Flatten(), nn.Linear(27, 4)), (3, 3, 3)),
    "wide": (
        lambda: Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4100, 128), nn.ReLU()), nn.Linear(128, 4)),
        (1, 41, 100),
    ),
    "wide, no bias": (
        lambda: Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4100, 64, False), nn.ReLU()), nn.Linear(64, 4)),
        (1, 41, 100),
    ),
    "rows of vectors": (
        lambda: Classifier(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Flatten()), nn.Linear(21, 4)),
        (3, 5),
    ),
    "strided": (
        lambda: Classifier(nn.Sequential(nn.Conv2d(2, 4, 3, 2, groups=2), nn.Flatten()), nn.Linear(16, 4)),
        (2, 5, 5),
    ),
}


def loss_of(kind: str, features: int) -> Callable[[nn.Module, Batch], Tensor]:
    if kind == "cross-entropy":
        return cross_entropy
    targets = torch.randn(4, features, dtype=torch.float64)
    if kind == "aligned, one class unknown":
        targets[2, 0] = torch.nan
    return aligned_cross_entropy(0.7, targets)


def compare(model: nn.Module, part: Section, x: Tensor, loss: Callable[[nn.Module, Batch], Tensor]) -> None:
    y = torch.arange(len(x)) % 4
    with _flat(model, part, weights_of(model)) as (_, gradient):
        gradient.zero_()
        torch.manual_seed(1)
        loss(model.train(), Batch(x, y, y)).backward()
        expected = gradient.clone()
        gradient.fill_(torch.nan)  # whatever was there before is gone
        by_hand = _by_hand(model, loss)
        assert by_hand is not None
        torch.manual_seed(1)
        by_hand(x, y)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
        assert expected.abs().max() > 0


@needs_native
@pytest.mark.parametrize("kind", ["cross-entropy", "aligned", "aligned, one class unknown"])
@pytest.mark.parametrize("part", ["all", "body"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [1, 6, 16])
def test_gradients_are_those_of_autograd(name: str, part: Section, kind: str, batch: int) -> None:
    torch.manual_seed(3)
    make, shape = NETWORKS[name]
    model: Any = accelerate(make()).double()
    if part == "body" and name == "logistic":
        pytest.skip("its body has no weights")
    x = torch.randn(batch, *shape, dtype=torch.float64)
    features = model.body(x).shape[1]
    compare(model, part, x, loss_of(kind, features))


@needs_native
def test_a_frozen_head_need_not_lie_side_by_side() -> None:
    model: Any = Classifier(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 4)).double()
    model.head.weight = nn.Parameter(torch.randn(5, 4, dtype=torch.float64).t())
    assert not model.head.weight.is_contiguous()
    compare(model, "body", torch.randn(3, 6, dtype=torch.float64), cross_entropy)


@needs_native
def test_head_on_features() -> None:
    compare(accelerate(two_conv()).double(), "head", torch.randn(5, 40, dtype=torch.float64), head_cross_entropy)


def shared() -> Classifier:
    model: Any = Classifier(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(4, 4))
    model.body[2].weight = model.body[0].weight
    return model


def watched() -> Classifier:
    model: Any = Classifier(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    model.body[1].register_forward_hook(lambda *_: None)
    return model


def half_frozen() -> Classifier:
    model: Any = Classifier(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4))
    model.head.bias.requires_grad_(False)
    return model


class Own(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: Classifier(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 4)),
    "an own forward": lambda: Own(nn.Linear(4, 4), nn.Linear(4, 4)),
    "an own layer": lambda: Classifier(type("Mine", (nn.Linear,), {})(4, 4), nn.Linear(4, 4)),
    "another activation": lambda: Classifier(nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 4)),
    "a falling activation": lambda: Classifier(nn.Sequential(nn.Linear(4, 4), nn.LeakyReLU(-0.1)), nn.Linear(4, 4)),
    "padding by name": lambda: Classifier(nn.Conv2d(1, 1, 3, padding="same"), nn.Linear(4, 4)),
    "part of an input": lambda: Classifier(nn.Flatten(2), nn.Linear(4, 4)),
    "always dropped": lambda: accelerate(Classifier(nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0)), nn.Linear(4, 4))),
    "another dropout": lambda: Classifier(nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5)), nn.Linear(4, 4)),
    "shared weights": shared,
    "a hook": watched,
    "half a layer frozen": half_frozen,
    "half precision": lambda: Classifier(nn.Flatten(), nn.Linear(4, 4)).bfloat16(),
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_leaves_others_to_autograd(make: Callable[[], nn.Module]) -> None:
    model = make()
    with _flat(model, "all", weights_of(model)):
        assert gradient_of(model) is None


def test_leaves_other_losses_to_autograd() -> None:
    model = Classifier(nn.Flatten(), nn.Linear(4, 4))
    with _flat(model, "all", weights_of(model)):
        assert _by_hand(model, lambda model, batch: model(batch.x).sum()) is None


@needs_native
def test_operands_that_do_not_fit_are_refused() -> None:
    model = accelerate(paper_cnn((1, 28, 28), 4))
    with _flat(model, "all", weights_of(model)):
        gradient: Gradient | None = gradient_of(model)
        assert gradient is not None
        for x in (torch.randn(2, 3, 28, 28), torch.randn(2, 1, 5, 5), torch.randn(2, 1, 28, 28).double()):
            with pytest.raises(RuntimeError):
                gradient(x, torch.zeros(2, dtype=torch.int64))
