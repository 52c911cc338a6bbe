"""The one SGD loop that all methods share, and the two ways of looking at a model without training it.

A method says *what* to train (body, head, all, a module of its own) on *which* loss, with which correction of the
gradient. How it is done fast is decided here, once.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpac.client import Client
from fedpac.data.augment import crop_and_flip
from fedpac.errors import TrainingError
from fedpac.message import Weights
from fedpac.models import Classifier, Section, load_into, weights_of
from fedpac.randomness import stream_seed
from fedpac.timing import span

EVALUATION_BATCH = 256  # small enough for the activations to stay in cache


@dataclass(frozen=True)
class Batch:
    x: Tensor
    y: Tensor
    index: Tensor  # positions in the client's training set, for what is kept per sample


Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]
Correction: TypeAlias = Callable[[Tensor, Tensor], None]  # (parameters, gradient): changes the gradient in place


# --- losses ------------------------------------------------------------------------------------------------------


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.x), batch.y)


def head_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """For training the head alone on features that were computed once."""
    return F.cross_entropy(cast(nn.Module, model.head)(batch.x), batch.y)


def aligned_cross_entropy(strength: float, targets: Tensor) -> Loss:
    """Cross-entropy + strength * mean over batch and dimensions of (f(x) - target_y)^2: eq. (local_reg_f) of FedPAC.

    A row of `targets` that is not finite stands for "no target": that class is not aligned.
    """
    known = targets.isfinite().all(dim=1)
    targets = torch.where(known[:, None], targets, torch.zeros_like(targets))
    everything_known = bool(known.all())

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        z = cast(nn.Module, model.body)(batch.x)
        classification = F.cross_entropy(cast(nn.Module, model.head)(z), batch.y)
        gap = (z - targets[batch.y]).square()
        if not everything_known:
            gap = gap * known[batch.y, None]
        return cast(Tensor, classification + strength * gap.mean())

    return loss


def weighted_cross_entropy(weights: Tensor) -> Loss:
    """mean_s weight_s * l(x_s, y_s), with one weight for each training sample."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        each = F.cross_entropy(model(batch.x), batch.y, reduction="none")
        return (each * weights[batch.index]).mean()

    return loss


# --- corrections of the gradient ---------------------------------------------------------------------------------


def flatten(weights: Weights, model: nn.Module, part: Section = "all") -> Tensor:
    """The weights that correspond to the trained parameters of `model`, in the order train() holds them."""
    return torch.cat([weights[name].reshape(-1) for name, _ in _trained(model, part)])


def unflatten(vector: Tensor, weights: Weights, model: nn.Module) -> Weights:
    """`weights` with all parameters of `model` taken from the vector: flatten() backwards. Buffers stay as they are."""
    result, at = dict(weights), 0
    for name, p in model.named_parameters():
        result[name] = vector[at : at + p.numel()].view_as(p).clone()
        at += p.numel()
    return result


def proximal(strength: float, anchor: Tensor) -> Correction:
    """Gradient of strength/2 * ||w - anchor||^2."""

    def correct(parameters: Tensor, gradient: Tensor) -> None:
        gradient.add_(parameters, alpha=strength).sub_(anchor, alpha=strength)

    return correct


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
    momentum: float | None = None,
    weight_decay: float | None = None,
    purpose: str = "train",
) -> Weights:
    """Mini-batch SGD with momentum from `weights`; returns all weights of the model, the named part trained.

    model         the client's network, or any module whose weights these are
    part          which parameters move; the others are frozen, so neither decay nor momentum touches them
    inputs        stands in for the client's images (features computed once, for a head)
    batches       index tensors to use instead of `epochs` shuffled passes
    purpose       names the random stream: equal purposes see equal batches
    lr, epochs, momentum, weight_decay default to the client's recipe
    """
    recipe = client.recipe
    lr = recipe.lr if lr is None else lr
    momentum = recipe.momentum if momentum is None else momentum
    weight_decay = recipe.weight_decay if weight_decay is None else weight_decay
    model = load_into(client.model if model is None else model, weights)
    trained = [p for _, p in _trained(model, part)]
    if not trained:
        return weights_of(model)  # a body or a head without weights has nothing to learn
    x, y = client.train_set
    augment = None
    if inputs is not None:
        x = inputs
    elif client.data.augment:
        noise, border = client.stream(f"{purpose}/augment"), client.data.train.black()
        augment = partial(crop_and_flip, generator=noise, fill=border)
    if batches is None:
        epochs = recipe.epochs if epochs is None else epochs
        batches = shuffled_batches(len(y), recipe.batch, epochs, client.stream(purpose))

    with (
        span(f"{'model' if part == 'all' else part} epochs"),
        _flat(model, trained) as (parameters, gradient),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
    ):
        # torch's global stream feeds dropout; naming it makes such models reproducible too
        # (the generator's own method: torch.manual_seed() formats a traceback for every kind of device, which is slow)
        torch.default_generator.manual_seed(stream_seed(client.task.seed, f"{purpose}/torch", client.id, client.round))
        differentiate = None if augment else _by_formula(model, part, loss, x, y)
        differentiate = differentiate or _by_autograd(model, loss, x, y, augment, gradient)
        velocity = torch.zeros_like(parameters) if momentum else gradient
        for index in batches:
            differentiate(index)
            with update:
                if correction is not None:
                    correction(parameters, gradient)
                if weight_decay:
                    gradient.add_(parameters, alpha=weight_decay)
                if momentum:
                    velocity.mul_(momentum).add_(gradient)
                parameters.sub_(velocity, alpha=lr)
                if after_step is not None:
                    after_step(model)
        if not math.isfinite(parameters.abs().max()):  # a NaN is the largest of all
            raise TrainingError(
                f"client {client.id}, round {client.round}: training diverged, the weights are no longer finite "
                f"(learning rate {lr}); try a smaller learning rate"
            )
    return weights_of(model)


def shuffled_batches(n: int, batch: int, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    """`epochs` passes over n samples in a new order each; the last, smaller batch is kept."""
    for _ in range(epochs):
        yield from torch.split(torch.randperm(n, generator=order), batch)


def steps_per_epoch(n: int, batch: int) -> int:
    return -(-n // batch)


# --- looking without training ------------------------------------------------------------------------------------


@torch.no_grad()
def in_batches(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([function(part) for part in torch.split(x, EVALUATION_BATCH)])


@span("features")
def features(client: Client, weights: Weights) -> Tensor:
    """f(x) of all training samples of the client, not augmented, with the body in evaluation mode."""
    model = client.with_weights(weights).eval()
    return in_batches(cast(nn.Module, model.body), client.train_set[0])


def logits(model: nn.Module, x: Tensor) -> Tensor:
    return in_batches(model.eval(), x)


@span("evaluation")
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """(accuracy, mean cross-entropy) of a module that gives logits or log-probabilities."""
    scores = logits(model, x)
    correct = scores.argmax(dim=1).eq(y).double().mean()
    return float(correct), float(F.cross_entropy(scores.double(), y))


# --- the gradient of one batch, in two ways ----------------------------------------------------------------------

forward, backward, both, update = (span(name) for name in ("forward", "backward", "forward and backward", "update"))

Differentiate: TypeAlias = Callable[[Tensor], None]  # the batch's indices: fills the trained parameters' gradients


def _by_autograd(
    model: nn.Module, loss: Loss, x: Tensor, y: Tensor, augment: Callable[[Tensor], Tensor] | None, gradient: Tensor
) -> Differentiate:
    """For any model and any loss. `gradient` is all the parameters' gradients, as one vector."""
    model.train()
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def differentiate(index: Tensor) -> None:
        for norm in norms:
            norm.train(len(index) > 1)  # one sample has no variance: the running statistics stand in
        xb = x[index] if augment is None else augment(x[index])
        gradient.zero_()
        with torch.enable_grad():
            with forward:
                value = loss(model, Batch(xb, y[index], index))
            with backward:
                value.backward()  # type: ignore[no-untyped-call]

    return differentiate


def _by_formula(model: nn.Module, part: Section, loss: Loss, x: Tensor, y: Tensor) -> Differentiate | None:
    """(softmax - one-hot)' x / B, where one linear layer is trained on x itself by plain cross-entropy; None elsewhere.

    These are the kernels that autograd would call, so the numbers are the same to the last bit; what is saved is the
    graph, most of the time of so small a step.
    """
    if part == "head" and loss is head_cross_entropy:
        layer = model.head
    elif loss is cross_entropy and type(model) is Classifier and type(model.body) in (nn.Flatten, nn.Identity):
        layer, x = model.head, model.body(x)
    else:
        return None
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        return None  # something of the user's own, or somebody watches
    weight, bias = layer.weight, layer.bias
    if not all(p.requires_grad for p in layer.parameters()):
        return None  # the user has frozen a part of it

    @cache
    def likelihood_gradient(size: int) -> Tensor:
        """-1/B at every sample's class: what cross-entropy's mean over a batch sends back to the log-softmax."""
        return weight.new_zeros(len(y), layer.out_features).scatter_(1, y[:, None], -1 / size)

    def differentiate(index: Tensor) -> None:
        xb = x.index_select(0, index)
        with both:
            log_softmax = F.linear(xb, weight, bias).log_softmax(1)
            wanted = likelihood_gradient(len(index)).index_select(0, index)
            error = torch._log_softmax_backward_data(wanted, log_softmax, 1, weight.dtype)
            torch.mm(error.t(), xb, out=weight.grad)
            if bias is not None:
                torch.sum(error, 0, out=bias.grad)

    return differentiate


# --- one buffer for all parameters -------------------------------------------------------------------------------


def _trained(model: nn.Module, part: Section) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in model.named_parameters() if part == "all" or n.startswith(f"{part}.")]


class _flat:  # noqa: N801  (used like a function)
    """Lay the trained parameters and their gradients out as two vectors, so that a step is a handful of operations.

    Freezes the other parameters meanwhile and leaves the module as it was found: the values go home to the tensors they
    came from. Kernels round by the alignment of their operands, so a parameter left in a vector of the last training
    would make the next one depend on it.
    """

    def __init__(self, model: nn.Module, trained: list[nn.Parameter]) -> None:
        self.trained = trained
        chosen = {id(p) for p in trained}
        self.frozen = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]

    def __enter__(self) -> tuple[Tensor, Tensor]:
        parameters = torch.cat([p.detach().reshape(-1) for p in self.trained])
        gradient = torch.zeros_like(parameters)
        self.homes = [p.data for p in self.trained]
        at = 0
        for p in self.trained:
            n = p.numel()
            p.data = parameters[at : at + n].view_as(p)
            p.grad = gradient[at : at + n].view_as(p)
            at += n
        for p in self.frozen:
            p.requires_grad_(False)
        return parameters, gradient

    def __exit__(self, *error: object) -> None:
        for p, home in zip(self.trained, self.homes, strict=True):
            p.data = home.copy_(p.data)
            p.grad = None
        for p in self.frozen:
            p.requires_grad_(True)
