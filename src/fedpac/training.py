"""The one SGD loop that all methods share, and the two ways of looking at a model without training it.

A method says *what* to train (body, head, all, a module of its own) on *which* loss, with which correction of the
gradient. How it is done fast is decided here, once.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac.backprop import Gradient, backward, forward, gradient_of
from fedpac.client import Client
from fedpac.criterion import Criterion
from fedpac.data.augment import crop_and_flip
from fedpac.errors import TrainingError
from fedpac.message import Weights
from fedpac.metrics import in_own_units, measure, validated
from fedpac.models import Section, load_into, tensors_of, trainable, weights_of
from fedpac.native.vectors import sgd_step
from fedpac.randomness import stream_seed
from fedpac.recipe import Recipe
from fedpac.timing import span

CROSS_ENTROPY = Criterion()
EVALUATION_BATCH = 256  # small enough for the activations to stay in cache


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor
    index: Tensor  # positions in the client's training set, for what is kept per sample
    criterion: Criterion = CROSS_ENTROPY

    def loss(self, outputs: Tensor, reduction: str = "mean") -> Tensor:
        """What the recipe says the network's outputs are worth beside the targets."""
        return self.criterion(outputs, self.y, reduction)


Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]
Correction: TypeAlias = Callable[[Tensor, Tensor], None]  # (parameters, gradient): changes the gradient in place


# --- losses ------------------------------------------------------------------------------------------------------


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return batch.loss(model(batch.x))


def head_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """For training the head alone on features that were computed once."""
    return batch.loss(cast(nn.Module, model.head)(batch.x))


class aligned_cross_entropy:  # noqa: N801  (used like a function)
    """Cross-entropy + strength * mean over batch and dimensions of (f(x) - target_y)^2: eq. (local_reg_f) of FedPAC.

    A row of `targets` that is not finite stands for "no target": that class is not aligned.
    """

    def __init__(self, strength: float, targets: Tensor) -> None:
        known = targets.isfinite().all(dim=1)
        self.strength = strength
        self.targets = torch.where(known[:, None], targets, torch.zeros_like(targets))
        self.known = None if bool(known.all()) else known

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        z = cast(nn.Module, model.body)(batch.x)
        classification = batch.loss(cast(nn.Module, model.head)(z))
        return classification + self.strength * self.gap(z, batch.y).square().mean()

    def gap(self, z: Tensor, y: Tensor) -> Tensor:
        gap = z.flatten(1) - self.targets.index_select(0, y)
        return gap if self.known is None else gap * self.known[y, None]

    def pull(self, z: Tensor, y: Tensor, gradient: Tensor) -> None:
        """Adds the gradient of the second term by the features."""
        gradient.add_(self.gap(z, y).view_as(gradient), alpha=2 * self.strength / z.numel())


def weighted_cross_entropy(weights: Tensor) -> Loss:
    """mean_s weight_s * l(x_s, y_s), with one weight for each training sample."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return (batch.loss(model(batch.x), reduction="none") * weights[batch.index]).mean()

    return loss


# --- corrections of the gradient ---------------------------------------------------------------------------------


def flatten(weights: Weights, model: nn.Module, part: Section = "all") -> Tensor:
    """The weights that correspond to the trained parameters of `model`, in the order train() holds them."""
    return torch.cat([weights[name].reshape(-1) for name, _ in trainable(model, part)])


def unflatten(vector: Tensor, weights: Weights, model: nn.Module, part: Section = "all") -> Weights:
    """`weights` with what flatten() takes of them from the vector. Buffers and frozen parameters stay as they are."""
    result, at = dict(weights), 0
    for name, p in trainable(model, part):
        result[name] = vector[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
    return result


def proximal(strength: float, anchor: Tensor) -> Correction:
    """Gradient of strength/2 * ||w - anchor||^2."""

    def correct(parameters: Tensor, gradient: Tensor) -> None:
        gradient.add_(parameters, alpha=strength).sub_(anchor, alpha=strength)

    return correct


class controlled:  # noqa: N801  (used like a function)
    """Adds c - c_i to every gradient (SCAFFOLD); `mean` is that of the gradients before it: the next c_i."""

    def __init__(self, shift: Tensor) -> None:
        self.shift, self.total, self.steps = shift, torch.zeros_like(shift), 0

    def __call__(self, parameters: Tensor, gradient: Tensor) -> None:
        self.total.add_(gradient)
        self.steps += 1
        gradient.add_(self.shift)

    @property
    def mean(self) -> Tensor:
        return self.total / max(1, self.steps)


# --- the loop ----------------------------------------------------------------------------------------------------


def train(
    client: Client,
    weights: Weights,
    *,
    model: nn.Module | None = None,
    part: Section = "all",
    loss: Loss = cross_entropy,
    correction: Correction | None = None,
    inputs: Tensor | None = None,
    batches: Iterable[Tensor] | None = None,
    after_step: Callable[[nn.Module], None] | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    purpose: str = "train",
) -> Weights:
    """The recipe's optimizer from `weights`, by mini-batches; returns all weights of the model, the named part trained.

    model         the client's network, or any module whose weights these are; what it holds afterwards is undefined
    part          which parameters move; the others are frozen, so neither decay nor momentum touches them
    inputs        stands in for the client's images (features computed once, for a head)
    batches       index tensors to use instead of `epochs` shuffled passes
    purpose       names the random stream: equal purposes see equal batches
    lr, epochs    default to the client's recipe; its schedule over the rounds holds for any rate
    """
    recipe, criterion = client.recipe, client.criterion
    lr = client.rate(lr)
    model = client.model if model is None else model
    if not trainable(model, part):
        return weights_of(load_into(model, weights))  # a body or a head without weights has nothing to learn
    x, y = client.train_set
    augment = augmentation(client, purpose) if inputs is None else None
    x = x if inputs is None else inputs
    if batches is None:
        epochs = recipe.epochs if epochs is None else epochs
        batches = shuffled_batches(len(y), recipe.batch, epochs, client.stream(purpose), client.device)

    with (
        span(f"{'model' if part == 'all' else part} epochs"),
        _flat(model, part, weights) as (parameters, gradient),
        # torch's global stream feeds dropout; naming it makes such models reproducible too
        forked_rng(client.device, stream_seed(client.task.seed, f"{purpose}/torch", client.id, client.round)),
        torch.no_grad(),
    ):
        model.train()
        for name, section in model.named_children():
            section.train(part in ("all", name))  # frozen is also what is no parameter: running statistics, dropout
        norms = [m for m in model.modules() if m.training and isinstance(m, nn.modules.batchnorm._BatchNorm)]
        by_hand = _by_hand(model, loss, criterion)
        step = optimizer_step(recipe, parameters, gradient, lr)
        for index in batches:
            for norm in norms:
                norm.train(len(index) > 1)  # one sample has no variance: the running statistics stand in
            xb = x.index_select(0, index) if augment is None else augment(x, index=index)
            yb = y.index_select(0, index)
            if by_hand is not None:
                by_hand(xb, yb)
            else:
                gradient.zero_()
                _by_autograd(model, loss, Batch(xb, yb, index, criterion))
            with update:
                if correction is not None:
                    correction(parameters, gradient)
                if recipe.clip is not None:
                    gradient.mul_((recipe.clip / gradient.norm().clamp(min=1e-30)).clamp(max=1))
                step()
                if after_step is not None:
                    after_step(model)
        if not math.isfinite(parameters.sum()):  # one pass; numbers whose sum is too large have diverged as well
            raise TrainingError(
                f"client {client.id}, round {client.round}: training diverged and the weights are no longer finite "
                f"(learning rate {lr}); try a smaller learning rate"
            )
        return {name: tensor.to(weights[name].dtype) for name, tensor in weights_of(model).items()}


update = span("update")


def optimizer_step(recipe: Recipe, parameters: Tensor, gradient: Tensor, lr: float) -> Callable[[], None]:
    """A function that moves the parameters by what the gradient holds then, with moments that begin here."""
    if recipe.optimizer == "sgd":
        velocity = torch.zeros_like(parameters) if recipe.momentum else None
        return lambda: sgd_step(parameters, gradient, velocity, lr, recipe.momentum, recipe.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[recipe.optimizer]
    vector = nn.Parameter(parameters)
    vector.grad = gradient
    optimizer = kind([vector], lr=lr, weight_decay=recipe.weight_decay)
    return lambda: cast(None, optimizer.step())


@contextmanager
def forked_rng(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """What is drawn inside from torch's global streams, anew from the seed if there is one, is not missed outside."""
    elsewhere = device.type != "cpu"
    kind = {"device_type": device.type} if elsewhere else {}
    with torch.random.fork_rng(devices=[device.index] if elsewhere else [], **kind):
        if seed is not None:
            # the generator's own method: torch.manual_seed() formats a traceback for all kinds of devices, and is slow
            torch.default_generator.manual_seed(seed)
            if elsewhere:
                torch.get_device_module(device).manual_seed(seed)
        yield


def augmentation(client: Client, purpose: str) -> Callable[..., Tensor] | None:
    """What makes the client's images random in training: (images, index=which) -> images; None where nothing does."""
    if not client.data.augment:
        return None
    black = client.data.train.black().to(client.device)
    return partial(crop_and_flip, generator=client.stream(f"{purpose}/augment"), fill=black)


def _by_hand(model: nn.Module, loss: Loss, criterion: Criterion = CROSS_ENTROPY) -> Gradient | None:
    """The gradient of this loss without autograd, where it is known."""
    slope = None if criterion.plain else criterion.slope
    if isinstance(loss, aligned_cross_entropy):
        return gradient_of(model, pull=loss.pull, slope=slope)
    if loss is cross_entropy or loss is head_cross_entropy:
        return gradient_of(model, on_features=loss is head_cross_entropy, slope=slope)
    return None


def _by_autograd(model: nn.Module, loss: Loss, batch: Batch) -> None:
    """For any model and any loss: adds to the parameters' gradients."""
    with torch.enable_grad():
        with forward:
            value = loss(model, batch)
        with backward:
            value.backward()  # type: ignore[no-untyped-call]


def shuffled_batches(
    n: int, batch: int, epochs: int, order: torch.Generator, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """`epochs` passes over n samples in a new order each; the last, smaller batch is kept.

    A pass goes to the device as a whole: a step sends nothing.
    """
    for _ in range(epochs):
        yield from torch.split(torch.randperm(n, generator=order).to(device), batch)


def steps_per_epoch(n: int, batch: int) -> int:
    return -(-n // batch)


# --- looking without training ------------------------------------------------------------------------------------


@torch.no_grad()
def in_batches(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([function(part) for part in torch.split(x, EVALUATION_BATCH)])


@span("features")
def features(client: Client, weights: Weights, augmented: str | None = None) -> Tensor:
    """f(x) of all training samples of the client, with the body in evaluation mode.

    augmented   the purpose of a random stream: every image is augmented once; if not given, they are as they are
    """
    model = client.with_weights(weights).eval()
    augment = None if augmented is None else augmentation(client, augmented)
    x = client.train_set[0]
    return in_batches(cast(nn.Module, model.body), x if augment is None else augment(x))


def logits(model: nn.Module, x: Tensor) -> Tensor:
    return in_batches(model.eval(), x)


@span("evaluation")
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """(accuracy, mean cross-entropy) of a module that gives logits or log-probabilities."""
    return accuracy_and_loss(logits(model, x), y)


@span("evaluation")
def assess(client: Client, model: nn.Module) -> tuple[tuple[float, float], dict[str, float]]:
    """(accuracy, loss) on the client's test data, and what else is to be measured, on its validation data too."""
    task, unit, (x, y) = client.task, client.data.unit, client.test_set
    y, outputs = in_own_units(unit, y, logits(model, x))
    score, measured = accuracy_and_loss(outputs, y), measure(task.metrics, "test", y, outputs)
    if client.validation_set is not None:
        x, y = client.validation_set
        y, outputs = in_own_units(unit, y, logits(model, x))
        measured |= measure(validated(task.metrics, task.classes), "validation", y, outputs)
    return score, measured


def accuracy_and_loss(scores: Tensor, y: Tensor) -> tuple[float, float]:
    """Share of right classes and mean cross-entropy; of numbers, R^2 and the mean squared error.

    R^2 of targets that are all the same is 1 if they are met, else 0.
    """
    if y.is_floating_point():
        error = (scores.double().squeeze(1) - y.double()).square().mean()
        variance = y.double().var(correction=0)
        r2 = 1 - float(error / variance) if variance > 0 else float(error == 0)
        return r2, float(error)
    correct = scores.argmax(dim=1).eq(y).double().mean()
    return float(correct), float(F.cross_entropy(scores.double(), y))


# --- one buffer for all parameters -------------------------------------------------------------------------------


class _flat:  # noqa: N801  (used like a function)
    """Lay the trained parameters and their gradients out as two vectors, so that a step is a handful of operations.

    The module holds `weights` meanwhile, and the parameters that are not trained are frozen. Afterwards all parameters
    are the tensors that they were: kernels round by the alignment of their operands, so a parameter left in a vector of
    the last training would make the next one depend on it.
    """

    def __init__(self, model: nn.Module, part: Section, weights: Weights) -> None:
        self.model, self.weights = model, weights
        self.named = dict(trainable(model, part))
        self.trained = list(self.named.values())
        chosen = {id(p) for p in self.trained}
        self.frozen = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]

    def __enter__(self) -> tuple[Tensor, Tensor]:
        self.homes = [p.data for p in self.trained]
        sizes = [home.numel() for home in self.homes]
        dtype = functools.reduce(torch.promote_types, (home.dtype for home in self.homes))
        parameters = self.homes[0].new_empty(sum(sizes), dtype=dtype)
        gradient = torch.empty_like(parameters)  # every step fills all of it
        with torch.no_grad():  # whatever does not fit is found before the module is touched
            for place, name in zip(torch.split(parameters, sizes), self.named, strict=True):
                place.view_as(self.named[name]).copy_(self.weights[name])
            for name, tensor in tensors_of(self.model).items():
                if name not in self.named:
                    tensor.copy_(self.weights[name])
        for p, place, slope in zip(
            self.trained, torch.split(parameters, sizes), torch.split(gradient, sizes), strict=True
        ):
            p.data, p.grad = place.view_as(p), slope.view_as(p)
        for p in self.frozen:
            p.requires_grad_(False)
        return parameters, gradient

    def __exit__(self, *error: object) -> None:
        for p, home in zip(self.trained, self.homes, strict=True):
            p.data = home
            p.grad = None
        for p in self.frozen:
            p.requires_grad_(True)
