"""What a bundle says of its network and of how predictions come from it, and how both are made again.

A network is a tree of torch's layers, one of fedpac's own by name, or code of the user's, which is only named: it is
imported on the user's word alone. Most methods predict with one network; the others combine a few.
"""

import copy
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedpac.bundles.layers import NoTreeError, build, tree_of
from fedpac.errors import ConfigError
from fedpac.message import Weights
from fedpac.methods.fed_rod import HyperHead, TwoHeads
from fedpac.methods.fedcp import Divided, Policy
from fedpac.methods.feddbe import Shifted
from fedpac.methods.fedem import Mixture
from fedpac.methods.knn_per import WithNeighbours
from fedpac.models import Classifier, with_forward
from fedpac.native import plain
from fedpac.networks import NETWORKS, Tokens, build_model

Make: TypeAlias = Callable[[], nn.Module]
Count = Annotated[int, Field(ge=1, le=100_000)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Layers(Section):
    """A tree of torch's own layers."""

    kind: Literal["layers"] = "layers"
    tree: dict[str, Any]

    def make(self, shape: tuple[int, ...], outputs: int, trust: bool) -> nn.Module:
        return with_forward(build(self.tree))


class Named(Section):
    """One of fedpac's networks, made for the samples' shape and the number of outputs."""

    kind: Literal["named"] = "named"
    name: str
    vocabulary: Annotated[int, Field(ge=1, le=1 << 24)] | None = None  # of tokens

    def make(self, shape: tuple[int, ...], outputs: int, trust: bool) -> nn.Module:
        if self.name not in NETWORKS:
            raise ConfigError(
                f"the network '{self.name[:40]}' is not known to this version; known are: {', '.join(NETWORKS)}"
            )
        return build_model(self.name, shape, outputs, seed=0, vocabulary=self.vocabulary)


class Own(Section):
    """The user's code: 'module:function', called with shape and outputs, or the class of a module that was passed."""

    kind: Literal["own"] = "own"
    name: str
    why: str = ""  # no form as data
    called: bool = False  # with shape and outputs

    def make(self, shape: tuple[int, ...], outputs: int, trust: bool) -> nn.Module:
        if not trust or not self.called:
            consent = ", or pass --trust (trust=True)" if self.called else ""
            raise ConfigError(
                f"the network '{self.name[:80]}' is third-party code ({self.why[:200]}): loading it runs that "
                f"code. If you trust it, pass an instance (in Python, network=){consent}. model.onnx needs no code"
            )
        module, _, function = self.name.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)
        try:
            made = getattr(importlib.import_module(module), function)(shape, outputs)
        except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
            raise ConfigError(f"the network '{self.name}': {type(error).__name__}: {error}") from None
        if not isinstance(made, nn.Module):
            raise ConfigError(f"the network '{self.name}' made a {type(made).__name__}; expected a torch module")
        return with_forward(made)


Network: TypeAlias = Annotated[Layers | Named | Own, Field(discriminator="kind")]


def network_of(model: nn.Module, name: str | None) -> Layers | Named | Own:
    """What to say of this network. name: what the run's config calls it, if there is one."""
    try:
        return Layers(tree=tree_of(plain(model)))
    except NoTreeError as error:
        if name in NETWORKS:
            tokens = next((m.embedding.num_embeddings for m in model.modules() if isinstance(m, Tokens)), None)
            return Named(name=name, vocabulary=tokens)
        kind = type(model)
        return Own(name=name or f"{kind.__module__}:{kind.__qualname__}", why=str(error), called=name is not None)


# --- from networks to predictions ---------------------------------------------------------------------------------


class One(Section):
    """The network's own scores."""

    kind: Literal["network"] = "network"

    def make(self, network: Make) -> nn.Module:
        return network()


class Mixed(Section):
    """A mixture of several networks' probabilities (FedEM)."""

    kind: Literal["mixture"] = "mixture"
    components: Annotated[int, Field(ge=1, le=1000)]

    def make(self, network: Make) -> nn.Module:
        return Mixture([network() for _ in range(self.components)], torch.ones(self.components, dtype=torch.float64))


class Neighbours(Section):
    """A network's probabilities mixed with the labels of the training samples that are nearest to its features."""

    kind: Literal["neighbours"] = "neighbours"
    samples: Annotated[int, Field(ge=1, le=1 << 28)]
    features: Annotated[int, Field(ge=1, le=1 << 24)]
    classes: Count
    k: Count
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    lam: Annotated[float, Field(ge=0, le=1)]

    def make(self, network: Make) -> nn.Module:
        return Remembering(network(), self)


class Heads(Section):
    """One body under a common and a personal head, whose scores are added (Fed-RoD)."""

    kind: Literal["two-heads"] = "two-heads"

    def make(self, network: Make) -> nn.Module:
        made = network()
        body, head = cast(nn.Module, made.body), cast(nn.Module, made.head)
        return TwoHeads(body, head, copy.deepcopy(head))


class Dividing(Section):
    """A personal and a common head, between which a policy divides the features (FedCP)."""

    kind: Literal["divided"] = "divided"
    features: Annotated[int, Field(ge=1, le=1 << 20)]

    def make(self, network: Make) -> nn.Module:
        made = network()
        body, head = cast(nn.Module, made.body), cast(nn.Module, made.head)
        module = Divided(body, head, Policy(self.features), torch.zeros(self.features))
        module.register_buffer("context", module.context)  # kept with the weights
        return module


class Shifting(Section):
    """A vector of the client's own is added to the features (FedDBE)."""

    kind: Literal["shifted"] = "shifted"
    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...], Field(max_length=4)]

    def make(self, network: Make) -> nn.Module:
        return Shifted(network(), torch.zeros(self.shape))


class LinearHead(Section):
    """The network's body under a linear head in place of its own (pFedFDA)."""

    kind: Literal["linear-head"] = "linear-head"
    features: Annotated[int, Field(ge=1, le=1 << 20)]
    outputs: Count

    def make(self, network: Make) -> nn.Module:
        head = nn.Sequential(nn.Flatten(), nn.Linear(self.features, self.outputs))
        return Classifier(cast(nn.Module, network().body), head)


Way: TypeAlias = One | Mixed | Neighbours | Heads | Dividing | Shifting | LinearHead
Combination: TypeAlias = Annotated[Way, Field(discriminator="kind")]


class Remembering(nn.Module):
    """WithNeighbours with its memory among its weights: features, and the number of each one's class."""

    def __init__(self, model: nn.Module, about: Neighbours, keys: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        self.about = about
        self.keys: Tensor
        self.votes: Tensor
        dtype = next((p.dtype for p in model.parameters()), torch.float32)
        self.register_buffer("keys", torch.zeros(about.samples, about.features, dtype=dtype) if keys is None else keys)
        self.register_buffer("votes", torch.zeros(about.samples, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        about = self.about
        voting = WithNeighbours(self.model, self.keys, self.votes, about.classes, about.k, about.scale)
        voting.lam = about.lam
        return cast(Tensor, voting(x))


def combination_of(module: nn.Module, network: nn.Module, method: str) -> tuple[nn.Module, Way]:
    """A predictor as it is kept: a module whose weights are all there is to it, and how it is made of networks.

    network: a module of the kind that the method trains.
    """
    if isinstance(module, WithNeighbours):
        samples, features = module.keys.shape
        about = Neighbours(
            samples=samples, features=features, classes=module.votes.shape[1], k=module.k, scale=module.scale,
            lam=module.lam,
        )  # fmt: skip
        kept = Remembering(module.model, about, module.keys)
        kept.votes.copy_(module.votes.argmax(1))
        return kept, about
    if isinstance(module, Mixture):
        return module, Mixed(components=len(module.components))
    if isinstance(module, TwoHeads):
        if isinstance(module.personal, HyperHead):
            module = TwoHeads(module.body, module.head, module.personal.written())
        return module, Heads()
    if isinstance(module, Divided):
        module.register_buffer("context", module.context)
        return module, Dividing(features=module.policy.features)
    if isinstance(module, Shifted):
        return module, Shifting(shape=tuple(module.shift.shape))
    same = type(module) is type(network) and module.state_dict().keys() == network.state_dict().keys()
    if not same and (linear := _linear_head(module)) is not None:
        return module, LinearHead(features=linear.in_features, outputs=linear.out_features)
    if not same:
        raise ConfigError(
            f"{method} predicts with a {type(module).__name__}, which a bundle cannot hold: it is neither the "
            "network itself nor one of fedpac's combinations (Mixture, WithNeighbours, TwoHeads, ...). Use it through "
            "predict in this program"
        )
    return module, One()


def _linear_head(module: nn.Module) -> nn.Linear | None:
    """The linear layer that stands in for the network's own head, if one does."""
    head = module.head if type(module) is Classifier else None
    if not isinstance(head, nn.Sequential) or [type(part) for part in head] != [nn.Flatten, nn.Linear]:
        return None
    return cast(nn.Linear, head[1])


def tensors_of_predictor(module: nn.Module) -> Weights:
    """All that a predictor holds, by name."""
    return {name: tensor.detach().contiguous().clone() for name, tensor in sorted(module.state_dict().items())}
