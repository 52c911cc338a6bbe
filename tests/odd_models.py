"""Models unlike the usual one, each with a plain twin that computes the same; and models that cannot be used."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac.data.clients import ClientData, Pool, Samples
from fedpac.models import Classifier
from helpers import CLASSES, FEATURES, INPUTS, tiny_data

TOKENS, LENGTH = 8, 5


class Twice(nn.Module):
    """Two layers with one weight between them: what tied layers compute, from one parameter with one name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.first, self.second = (nn.Parameter(torch.empty(s)) for s in ((size, size), size, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        one, two = (nn.Linear(*self.weight.shape) for _ in range(2))  # the random numbers that tied layers draw
        with torch.no_grad():
            for p, drawn in ((self.weight, two.weight), (self.first, one.bias), (self.second, two.bias)):
                p.copy_(drawn)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.weight, self.first).tanh(), self.weight, self.second)


def tied(size: int) -> nn.Sequential:
    one, two = nn.Linear(size, size), nn.Linear(size, size)
    one.weight = two.weight
    return nn.Sequential(one, nn.Tanh(), two)


class Constant(nn.Module):
    """A layer whose weights are no parameters at all."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(INPUTS, INPUTS)
        self.weights = layer.weight.detach(), layer.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.weights)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


class DrawnInSingle(nn.Linear):
    """A layer of any precision that begins with the numbers of single precision."""

    def reset_parameters(self) -> None:
        plain = nn.Linear(self.in_features, self.out_features)
        with torch.no_grad():
            self.weight.copy_(plain.weight)
            self.bias.copy_(plain.bias)


class HalfFrozen(nn.Linear):
    """A layer whose bias is 1 for ever."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.bias.requires_grad_(False)

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        nn.init.ones_(self.bias)


class PlusOne(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Shares(nn.Module):
    """What nn.Embedding and a mean over the sequence compute, from the tokens' frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(TOKENS, FEATURES))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def head(inputs: int = FEATURES) -> nn.Linear:
    return nn.Linear(inputs, CLASSES)


def body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh())


def token_data() -> list[ClientData]:
    """Sequences of tokens, in which those of the class are frequent."""
    random = torch.Generator().manual_seed(0)
    clients = []
    for size in (7, 12, 9):
        y = torch.arange(size + 8) % 3
        own = 2 * y[:, None] + torch.randint(2, (len(y), LENGTH), generator=random)
        noise = torch.randint(TOKENS, own.shape, generator=random)
        pool = Pool(torch.where(torch.rand(own.shape, generator=random) < 0.7, own, noise), y)
        clients.append(ClientData(Samples(pool, torch.arange(size)), Samples(pool, torch.arange(size, size + 8))))
    return clients


def frequency_data() -> list[ClientData]:
    """The same, as frequencies of the tokens."""

    def counted(part: Samples) -> Samples:
        return Samples(Pool(F.one_hot(part.pool.x, TOKENS).float().mean(1), part.pool.y), part.index)

    return [ClientData(counted(own.train), counted(own.test)) for own in token_data()]


@dataclass(frozen=True)
class Odd:
    make: Callable[[], nn.Module]
    twin: Callable[[], nn.Module]
    data: Callable[[], Sequence[ClientData]] = tiny_data
    twin_data: Callable[[], Sequence[ClientData]] = tiny_data


ODD = {
    "tied in the body": Odd(
        lambda: Classifier(nn.Sequential(*tied(INPUTS), nn.Tanh()), head(INPUTS)),
        lambda: Classifier(nn.Sequential(Twice(INPUTS), nn.Tanh()), head(INPUTS)),
    ),
    "tied in the head": Odd(
        lambda: Classifier(body(), nn.Sequential(*tied(FEATURES), nn.Tanh(), head())),
        lambda: Classifier(body(), nn.Sequential(Twice(FEATURES), nn.Tanh(), head())),
    ),
    "double precision": Odd(
        lambda: Classifier(
            nn.Sequential(DrawnInSingle(INPUTS, FEATURES), nn.Tanh()), DrawnInSingle(FEATURES, CLASSES)
        ).double(),
        lambda: Classifier(body(), head()),
    ),
    "a frozen layer": Odd(
        lambda: Classifier(nn.Sequential(frozen(nn.Linear(INPUTS, INPUTS)), nn.Tanh(), *body()), head()),
        lambda: Classifier(nn.Sequential(Constant(), nn.Tanh(), *body()), head()),
    ),
    "a frozen bias": Odd(
        lambda: Classifier(body(), HalfFrozen(FEATURES, CLASSES)),
        lambda: Classifier(body(), PlusOne(FEATURES, CLASSES)),
    ),
    "no forward": Odd(
        lambda: nn.ModuleDict({"body": body(), "head": head()}), lambda: Classifier(body(), head())
    ),
    "a sequence": Odd(
        lambda: nn.Sequential(OrderedDict(body=body(), head=head())), lambda: Classifier(body(), head())
    ),
    "features in a grid": Odd(
        lambda: Classifier(
            nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh(), nn.Unflatten(1, (2, 3))),
            nn.Sequential(nn.Flatten(), head(6)),
        ),
        lambda: Classifier(nn.Sequential(nn.Linear(INPUTS, 6), nn.Tanh()), head(6)),
    ),
    "tokens": Odd(
        lambda: Classifier(nn.Sequential(nn.Embedding(TOKENS, FEATURES), Mean(), nn.Tanh()), head()),
        lambda: Classifier(nn.Sequential(Shares(), nn.Tanh()), head()),
        token_data,
        frequency_data,
    ),
}  # fmt: skip


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    """The model as it is drawn from the same random numbers each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


# --- models that cannot be used ----------------------------------------------------------------------------------


class Between(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(-self.body(x).tanh())


class DropoutBetween(Classifier):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(x), 0.5, self.training))


class TwoInputs(Classifier):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x * mask)


class AlwaysRandom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5)


class Counting(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


class Forgetful(nn.Module):
    """Running statistics that are in no state dict."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return x


class WithoutGradient(nn.Module):
    """A body that somebody froze in its own way: no gradient comes, but the weights would decay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INPUTS, INPUTS)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class TwoThings(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class Sum(nn.Linear):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(pair[0] + pair[1])


class ExtraState(nn.Linear):
    def get_extra_state(self) -> str:
        return "more"


def tied_across() -> Classifier:
    model = Classifier(nn.Linear(INPUTS, CLASSES), nn.Linear(CLASSES, CLASSES))
    model.head.bias = model.body.bias
    return model


def old_weight_norm() -> Classifier:
    return Classifier(body(), nn.utils.weight_norm(head()))


def before(layer: nn.Module) -> Callable[[], Classifier]:
    return lambda: Classifier(nn.Sequential(layer, *body()), head())


UNUSABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "an operation between": (lambda: Between(body(), head()), r"Between does not give head\(body\(x\)\) when it"),
    "dropout between": (lambda: DropoutBetween(body(), head()), r"does not give head\(body\(x\)\) while it trains"),
    "another input": (lambda: TwoInputs(body(), head()), "forward does not accept a batch of samples"),
    "random predictions": (before(AlwaysRandom()), "gives other scores for the same samples"),
    "a memory of its own": (before(Counting()), "gives other scores for the same samples"),
    "input changed in place": (before(InPlace()), "modifies its input in place"),
    "a buffer that gets lost": (before(Forgetful()), r"in training, which are lost: body\.0\.seen"),
    "no gradient": (before(WithoutGradient()), r"get no gradient: body\.0\.layer\.weight, body\.0\.layer\.bias"),
    "features that are no tensor": (lambda: Classifier(TwoThings(), Sum(INPUTS, CLASSES)), "gives type tuple"),
    "a head for other features": (lambda: Classifier(body(), head(7)), "head does not accept the features"),
    "other classes": (lambda: Classifier(body(), nn.Linear(FEATURES, 9)), r"gives \(9,\) scores.*4 classes"),
    "tokens wanted": (
        lambda: Classifier(nn.Embedding(TOKENS, 3), nn.Linear(3, CLASSES)), r"shape \(6,\) and type torch.float32"
    ),
    "tied across": (tied_across, r"ties weights of its body.*\(body\.bias = head\.bias\)"),
    "weights without a shape": (lambda: Classifier(nn.LazyLinear(5), head()), r"without a shape yet \(body\.weight"),
    "half precision": (lambda: Classifier(body(), head()).bfloat16(), r"body\.0\.weight is torch\.bfloat16"),
    "complex numbers": (lambda: Classifier(body(), head()).to(torch.complex64), "is torch.complex64"),
    "all frozen": (lambda: Classifier(body(), head()).requires_grad_(False), "there is nothing to train"),
    "non-tensor state": (lambda: Classifier(ExtraState(INPUTS, 5), head()), r"body\._extra_state"),
    "weights that are computed": (old_weight_norm, "cannot be copied"),
    "a method called body": (
        lambda: type("Methods", (nn.Module,), {"body": lambda self, x: x, "head": lambda self, z: z})(),
        "needs two sub-modules",
    ),
}  # fmt: skip
