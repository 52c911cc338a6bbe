"""Times the fused convolution block and whole training steps on one thread: torch against the native kernels.

    python benchmarks/kernels.py [rounds]

All variants take turns within a round, so that a change of clock or of other load meets them alike. Times are CPU time
of the one thread; printed are the median over the rounds and the range. Rates count the dense operations (what torch
does) and the pool-sparse ones (what is needed: forward dense, a quarter of each convolution gradient, no input gradient
in the first layer, fully connected layers dense); "of sgemm" is the pool-sparse rate over that of a 1024^3 matrix
product in the same run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpac.backprop import gradient_of
from fedpac.models import Classifier
from fedpac.native import FusedConvPool, accelerate, available, reason
from fedpac.native.ops import _composed, instruction_set

BATCH = 50
SLOPE = 0.01
# (in, out, kernel, padding, image size) of each convolution, then the width of the flattened features
NETWORKS = {
    "a (1x28x28)": ([(1, 16, 5, 0, 28), (16, 32, 5, 1, 12)], 800),
    "b (3x32x32)": ([(3, 16, 5, 0, 32), (16, 32, 5, 1, 14), (32, 64, 3, 1, 6)], 576),
}


@dataclass
class Case:
    """One thing to time, and how many operations it stands for."""

    name: str
    run: Callable[[], object]
    dense: float
    sparse: float
    repeats: int = 5
    seconds: list[float] = field(default_factory=list)

    def measure(self) -> None:
        start = time.thread_time()
        for _ in range(self.repeats):
            self.run()
        self.seconds.append((time.thread_time() - start) / self.repeats)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class PoolFirst(nn.Conv2d):
    """The better order in plain torch: the pool leaves a quarter of the values to activate."""

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(F.max_pool2d(super().forward(x), 2), SLOPE)


class Fallback(nn.Conv2d):
    """What a FusedConvPool does without the native library: pool first and channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        return _composed(x, self.weight, self.bias, int(self.padding[0]), SLOPE)


def usual(ci: int, co: int, k: int, p: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(ci, co, k, padding=p), nn.LeakyReLU(SLOPE), nn.MaxPool2d(2))


def pool_first(ci: int, co: int, k: int, p: int) -> nn.Module:
    return PoolFirst(ci, co, k, padding=p)


def fallback(ci: int, co: int, k: int, p: int) -> nn.Module:
    return Fallback(ci, co, k, padding=p)


def native(ci: int, co: int, k: int, p: int) -> nn.Module:
    fused = accelerate(usual(ci, co, k, p))
    assert isinstance(fused, nn.Sequential)
    assert isinstance(fused[0], FusedConvPool)
    return fused


VARIANTS = {
    "torch, usual order": usual,
    "torch, pool first": pool_first,
    "torch, pool first, channels last": fallback,
    "native": native,
}


def conv_operations(ci: int, co: int, k: int, p: int, size: int) -> float:
    """Of one forward pass over a batch, where the pool needs its output."""
    used = (size + 2 * p - k + 1) // 2 * 2
    return 2.0 * BATCH * used * used * co * ci * k * k


def layer_cases(ci: int, co: int, k: int, p: int, size: int) -> list[Case]:
    first = ci <= 3
    x = torch.randn(BATCH, ci, size, size)
    forward = conv_operations(ci, co, k, p, size)
    gradients = forward * (1 if first else 2)
    cases = []
    for name, build in VARIANTS.items():
        block = build(ci, co, k, p)
        # each block gets its input in the layout that the block before it would give
        given = (
            x.contiguous(memory_format=torch.channels_last) if build in (fallback, native) and not first else x.clone()
        )
        given.requires_grad_(not first)
        y = block(given)
        inputs = [t for t in (given, *block.parameters()) if t.requires_grad]
        back = partial(torch.autograd.grad, y, inputs, torch.randn_like(y), retain_graph=True)
        cases.append(Case(f"{name}: forward", partial(block, given), forward, forward))
        cases.append(Case(f"{name}: backward", back, gradients, gradients / 4))
    return cases


def training_step(network: nn.Module, x: Tensor, label: Tensor) -> None:
    for parameter in network.parameters():
        parameter.grad = None
    F.cross_entropy(network(x), label).backward()


def step_cases(layers: list[tuple[int, int, int, int, int]], features: int) -> list[Case]:
    linear = 3 * 2.0 * BATCH * (features * 128 + 128 * 10)
    dense = sparse = linear
    for i, layer in enumerate(layers):
        forward = conv_operations(*layer)
        dense += forward * (2 if i == 0 else 3)
        sparse += forward * (1.25 if i == 0 else 1.5)
    channels, size = layers[0][0], layers[0][4]
    x, label = torch.randn(BATCH, channels, size, size), torch.randint(10, (BATCH,))
    cases = []
    for name, build in VARIANTS.items():
        blocks = [build(*layer[:4]) for layer in layers]
        head = [nn.Flatten(), nn.Linear(features, 128), nn.LeakyReLU(SLOPE), nn.Linear(128, 10)]
        cases.append(Case(name, partial(training_step, nn.Sequential(*blocks, *head), x, label), dense, sparse))
    body = [nn.Flatten(), nn.Linear(features, 128), nn.LeakyReLU(SLOPE)]
    model = Classifier(nn.Sequential(*(native(*layer[:4]) for layer in layers), *body), nn.Linear(128, 10))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradient = gradient_of(model)
    assert gradient is not None
    cases.append(Case("native, gradients written out", partial(gradient, x, label), dense, sparse))
    return cases


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not available():
        sys.exit(f"no native kernels to time: {reason()}")
    square = torch.randn(1024, 1024)
    sgemm = Case("sgemm 1024^3", lambda: square @ square, 2.0 * 1024**3, 2.0 * 1024**3)
    groups: dict[str, list[Case]] = {}
    for name, (layers, features) in NETWORKS.items():
        for ci, co, k, p, size in layers:
            groups[f"{name}: conv {ci}->{co}, {k}x{k}"] = layer_cases(ci, co, k, p, size)
        groups[f"{name}: training step"] = step_cases(layers, features)
    cases = [sgemm, *(case for group in groups.values() for case in group)]
    for case in cases:  # builds, allocates and warms up
        case.run()
    for _ in range(rounds):
        for case in cases:
            case.measure()

    peak = sgemm.dense / sgemm.median
    print(f"batch {BATCH}, one thread, {rounds} rounds, native kernels for {instruction_set()}")
    print(f"sgemm 1024^3: {peak / 1e9:.1f} GFLOP/s")
    for title, group in groups.items():
        print(f"\n{title:46} {'ms':>7} {'range':>15} {'dense':>7} {'sparse':>7} {'of sgemm':>9}")
        for case in group:
            low, high = min(case.seconds) * 1e3, max(case.seconds) * 1e3
            print(
                f"  {case.name:44} {case.median * 1e3:7.2f} {f'{low:.2f}..{high:.2f}':>15} "
                f"{case.dense / case.median / 1e9:7.1f} {case.sparse / case.median / 1e9:7.1f} "
                f"{case.sparse / case.median / peak:9.0%}"
            )
        if "step" in title:
            *others, ours = (case.median for case in group)
            print("  the last is faster than these by factors of", ", ".join(f"{other / ours:.2f}" for other in others))


if __name__ == "__main__":
    main(max(3, int(sys.argv[1])) if len(sys.argv) > 1 else 15)
