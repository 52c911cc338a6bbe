"""accelerate(): what it fuses, what it leaves alone, and that nobody can tell from the outside."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpac.native import FusedConvPool, accelerate, build, ops


def fused(module: nn.Module) -> int:
    return sum(isinstance(m, FusedConvPool) for m in module.modules())


def conv(ci: int = 3, co: int = 5, k: int = 3, **options: object) -> nn.Conv2d:
    return nn.Conv2d(ci, co, k, **options)  # type: ignore[arg-type]


class Residual(nn.Module):
    """A network that is no nn.Sequential itself, with one inside another inside."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Sequential(conv(padding=1), nn.ReLU(), nn.MaxPool2d(2)), nn.Dropout(0.0))
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


MATCHING = {
    "act first": (lambda: nn.Sequential(conv(), nn.LeakyReLU(0.2), nn.MaxPool2d(2)), 1),
    "pool first": (lambda: nn.Sequential(conv(), nn.MaxPool2d((2, 2), stride=2), nn.ReLU(inplace=True)), 1),
    "two in a row": (
        lambda: nn.Sequential(
            conv(3, 8, 5, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            conv(8, 4),
            nn.MaxPool2d(2),
            nn.LeakyReLU(),
            nn.Flatten(),
        ),
        2,
    ),
    "nested": (Residual, 1),
    "one among others": (
        lambda: nn.Sequential(conv(3, 3, 7, padding=3), nn.ReLU(), nn.MaxPool2d(2), conv(), nn.ReLU(), nn.MaxPool2d(2)),
        1,
    ),
}

DIFFERENT = {
    "stride": lambda: [conv(stride=2), nn.ReLU(), nn.MaxPool2d(2)],
    "dilation": lambda: [conv(dilation=2), nn.ReLU(), nn.MaxPool2d(2)],
    "groups": lambda: [conv(3, 6, groups=3), nn.ReLU(), nn.MaxPool2d(2)],
    "padding mode": lambda: [conv(padding=1, padding_mode="reflect"), nn.ReLU(), nn.MaxPool2d(2)],
    "padding by name": lambda: [conv(padding="same"), nn.ReLU(), nn.MaxPool2d(2)],
    "uneven padding": lambda: [conv(padding=(1, 0)), nn.ReLU(), nn.MaxPool2d(2)],
    "uneven kernel": lambda: [nn.Conv2d(3, 5, (3, 5)), nn.ReLU(), nn.MaxPool2d(2)],
    "even kernel": lambda: [conv(k=4), nn.ReLU(), nn.MaxPool2d(2)],
    "pool of 3": lambda: [conv(), nn.ReLU(), nn.MaxPool2d(3)],
    "overlapping pool": lambda: [conv(), nn.ReLU(), nn.MaxPool2d(2, stride=1)],
    "padded pool": lambda: [conv(), nn.ReLU(), nn.MaxPool2d(2, padding=1)],
    "ceil mode": lambda: [conv(), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)],
    "average pool": lambda: [conv(), nn.ReLU(), nn.AvgPool2d(2)],
    "no activation": lambda: [conv(), nn.MaxPool2d(2), nn.Flatten()],
    "activation not monotone": lambda: [conv(), nn.LeakyReLU(-0.1), nn.MaxPool2d(2)],
    "another activation": lambda: [conv(), nn.GELU(), nn.MaxPool2d(2)],
    "norm between": lambda: [conv(), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2)],
    "two pools": lambda: [conv(), nn.MaxPool2d(2), nn.MaxPool2d(2)],
    "subclass": lambda: [type("Own", (nn.Conv2d,), {})(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2)],
}


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize(("make", "count"), MATCHING.values(), ids=MATCHING.keys())
def test_same_outside(make: object, count: int, available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available:
        monkeypatch.setattr(ops, "library", lambda: None)
    plain = make().double()  # type: ignore[operator]
    module = accelerate(copy.deepcopy(plain))
    assert fused(module) == count
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in plain.named_parameters()]
    x = torch.randn(2, 3, 21, 20, dtype=torch.float64)
    torch.testing.assert_close(module(x), plain(x))
    for network in (module, plain):
        network(x).square().sum().backward()
    for mine, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    # it trains, loads, copies and pickles like the original
    for parameter in plain.parameters():
        parameter.data.mul_(0.5)
    module.load_state_dict(plain.state_dict())
    for network in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(network(x), plain(x))


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_leaves_others_alone(make: object) -> None:
    parts = make()  # type: ignore[operator]
    module = nn.Sequential(*parts)
    assert accelerate(module) is module
    assert fused(module) == 0
    assert all(mine is other for mine, other in zip(module, parts, strict=True))


def test_leaves_watched_parts_alone() -> None:
    module = nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2))
    seen: list[Tensor] = []
    module[1].register_forward_hook(lambda *_: seen.append(_[2]))
    accelerate(module)(torch.randn(1, 3, 8, 8))
    assert fused(module) == 0
    assert seen[0].shape == (1, 5, 6, 6)


def test_leaves_an_own_forward_alone() -> None:
    class Own(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](self[0](x))

    assert fused(accelerate(Own(conv(), nn.ReLU(), nn.MaxPool2d(2)))) == 0


def test_in_place_and_keeps_the_parameters() -> None:
    module: Any = nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2)).eval()
    weight = module[0].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    accelerated = accelerate(module)
    assert id(accelerated) == id(module)
    assert module[0].weight is weight
    assert not module[0].training
    before = weight.detach().clone()
    module(torch.randn(4, 3, 8, 8)).sum().backward()
    optimizer.step()
    assert not torch.equal(module[0].weight, before)
    assert fused(accelerate(module)) == 1


def test_fused_block_alone() -> None:
    torch.manual_seed(0)
    block = FusedConvPool(3, 4, 5, padding=2, negative_slope=0.1)
    assert list(block.state_dict()) == ["weight", "bias"]
    assert "negative_slope=0.1" in repr(block)
    plain = nn.Sequential(conv(3, 4, 5, padding=2), nn.LeakyReLU(0.1), nn.MaxPool2d(2))
    plain[0].load_state_dict(block.state_dict())
    for size in ((2, 3, 8, 8), (3, 8, 8), (0, 3, 8, 8)):  # a single image without a batch, too
        x = torch.randn(size)
        torch.testing.assert_close(block(x), plain(x))
    half = torch.randn(2, 3, 8, 8, dtype=torch.bfloat16)
    torch.testing.assert_close(block.bfloat16()(half), plain.bfloat16()(half))
    with pytest.raises(ValueError, match="fused"):
        FusedConvPool(3, 4, 5, stride=2)
    with pytest.raises(RuntimeError, match="size"):
        FusedConvPool(3, 4, 5)(torch.randn(1, 3, 5, 5))


def test_transforms_of_torch_func_work() -> None:
    x, weight = torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)

    def loss(w: Tensor) -> Tensor:
        return ops.conv_pool_act(x, w, None, 1, 0.1).square().sum()

    leaf = weight.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(weight), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(weight[None])[0], expected)


@pytest.mark.skipif(not build.available(), reason="torch's own operators differentiate twice")
def test_second_derivatives_are_refused() -> None:
    x, weight = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.conv_pool_act(x, weight, None, 1, 0.1).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
