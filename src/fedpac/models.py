"""The paper's two networks, and the one thing a user's own module must have: a `body` and a `head`."""

import copy
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn

from fedpac.errors import ConfigError
from fedpac.message import Weights

Section: TypeAlias = Literal["all", "body", "head", "none"]


@runtime_checkable
class BodyAndHead(Protocol):
    """body: x -> features (n, d); head: features -> logits (n, K). Any torch module with the two works."""

    body: nn.Module
    head: nn.Module


class Classifier(nn.Module):
    """A body and a head, one after the other."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.body(x)))


def conv_block(inputs: int, outputs: int, kernel: int, padding: int) -> list[nn.Module]:
    # Pooling before the activation gives the same numbers (leaky ReLU is monotone) for a quarter of its work.
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding), nn.MaxPool2d(2), nn.LeakyReLU()]


def paper_cnn(shape: tuple[int, ...], classes: int) -> Classifier:
    """The CNN of the paper's appendix B for 28x28 grey or 32x32 colour images; features have d = 128.

    >>> sum(p.numel() for p in paper_cnn((1, 28, 28), 10).parameters())
    117066
    >>> sum(p.numel() for p in paper_cnn((3, 32, 32), 10).parameters())
    107690
    """
    if shape == (1, 28, 28):
        blocks = [*conv_block(1, 16, 5, 0), *conv_block(16, 32, 5, 1)]
        flat = 32 * 5 * 5
    elif shape == (3, 32, 32):
        blocks = [*conv_block(3, 16, 5, 0), *conv_block(16, 32, 5, 1), *conv_block(32, 64, 3, 1)]
        flat = 64 * 3 * 3
    else:
        raise ConfigError(
            f"the paper's networks take images of shape (1, 28, 28) or (3, 32, 32), not {shape}; choose --set "
            "model=cnn, or your own network (--model module:function)"
        )
    body = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(flat, 128), nn.LeakyReLU())
    return Classifier(body, nn.Linear(128, classes))


def logistic_regression(shape: tuple[int, ...], classes: int) -> Classifier:
    """A linear classifier on the raw input: the smallest model there is."""
    inputs = int(torch.Size(shape).numel())
    return Classifier(nn.Flatten(), nn.Linear(inputs, classes))


def mlp(shape: tuple[int, ...], classes: int) -> Classifier:
    """Two hidden layers on the flattened input, for tables; features have d = 32."""
    inputs = int(torch.Size(shape).numel())
    body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    return Classifier(body, nn.Linear(32, classes))


class Split(Classifier):
    """A usual module, parted into the layer of that name and all before it; see `split`."""

    def __init__(self, whole: nn.Module, body: nn.Module, head: nn.Module, name: str) -> None:
        super().__init__(body, head)
        self.whole = [whole]  # in a list, so that its weights are not counted twice
        self.name = name


def split(module: nn.Module, head: str) -> Classifier:
    """Split a module into body and head: the head is the layer of that name, the body everything before it.

        model = fedpac.split(torchvision.models.resnet18(num_classes=10), head="fc")

    The module is not changed; its weights are shared. Before the first round, fedpac checks that head(body(x)) equals
    the module's output: nothing may come after the head.
    """
    body = inside = _sharing(module)
    *path, last = head.split(".")
    for name in path:
        inside._modules[name] = _sharing(_layer(inside, name, head))
        inside = _layer(inside, name, head)
    layer = _layer(inside, last, head)
    inside._modules[last] = nn.Identity()
    return Split(module, body, layer, head)


def _layer(module: nn.Module, name: str, wanted: str) -> nn.Module:
    layer = module._modules.get(name)
    if layer is None:
        known = ", ".join(n for n, _ in module.named_children()) or "no layers"
        raise ConfigError(f"there is no layer '{wanted}': {type(module).__name__} has {known}")
    return layer


def _sharing(module: nn.Module) -> nn.Module:
    """The same module with a list of layers of its own."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


def with_forward(model: nn.Module) -> nn.Module:
    """The module; one without a forward of its own, such as nn.ModuleDict, gets the usual one."""
    if type(model).forward is nn.Module.forward:
        return Classifier(cast(nn.Module, model.body), cast(nn.Module, model.head))
    return model


def precision_of(model: nn.Module) -> torch.dtype:
    """The type that samples must have: that of the parameters, or torch's usual one where they have several."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return kinds.pop() if len(kinds) == 1 else torch.float32


def trainable(model: nn.Module, part: Section = "all") -> list[tuple[str, nn.Parameter]]:
    """The parameters that training moves, in the order of a flat vector; those that the user froze stay as they are."""
    return [
        (name, p)
        for name, p in model.named_parameters()
        if p.requires_grad and (part == "all" or name.startswith(f"{part}."))
    ]


def tensors_of(model: nn.Module) -> Weights:
    """The module's own parameters and buffers by name, each once: tied weights go by the first of their names.

    So nothing that is done to weights by name can pull tied ones apart.
    """
    named = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    for name, tensor in named.items():
        first.setdefault(id(tensor), name)
    return {name: named[name] for name in first.values()}


def weights_of(model: nn.Module) -> Weights:
    """A copy of all parameters and buffers, by name."""
    return {name: tensor.detach().clone() for name, tensor in tensors_of(model).items()}


def section(weights: Weights, part: Section) -> Weights:
    """The named part of a model's weights."""
    if part == "all":
        return dict(weights)
    return {name: tensor for name, tensor in weights.items() if name.startswith(f"{part}.")}


def without(weights: Weights, part: Section) -> Weights:
    """What is left of a model's weights when the named part is taken away."""
    taken = section(weights, part)
    return {name: tensor for name, tensor in weights.items() if name not in taken}


def load_into(model: nn.Module, weights: Weights) -> nn.Module:
    """Copy weights into a module, in place: its tensors stay where they are."""
    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(weights[name])
    return model


def copy_with(model: nn.Module, weights: Weights) -> nn.Module:
    """A copy of the module that holds these weights and shares nothing."""
    return load_into(copy.deepcopy(model), weights)


def reinitialised(model: nn.Module, seed: int) -> Weights:
    """Weights of another random initialisation: each layer draws its own, by its reset_parameters().

    What the user froze, such as a body that came trained, stays as it is.
    """
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in fresh.modules():
            if trainable(layer) and callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
    learning = {name for name, _ in trainable(model)}
    first, weights = weights_of(model), weights_of(fresh)
    weights |= {name: first[name] for name, _ in model.named_parameters() if name not in learning}
    if all(torch.equal(tensor, weights[name]) for name, tensor in first.items()):
        raise ConfigError(
            f"the model {type(model).__name__} cannot be re-initialised, which this method needs: "
            "give at least one of its layers a reset_parameters()"
        )
    return weights
