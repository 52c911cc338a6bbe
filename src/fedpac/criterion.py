"""What a network's output is worth beside its target: the loss that every method trains on."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpac.errors import ConfigError
from fedpac.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Criterion:
    """Cross-entropy of logits, with weights of classes and smoothed labels where the recipe has them; of numbers, the
    squared error."""

    weights: Tensor | None = field(default=None, repr=False)
    smoothing: float = 0.0
    numbers: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is the cross-entropy and nothing else."""
        return self.weights is None and not self.smoothing and not self.numbers

    def __call__(self, outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        if self.numbers:
            return F.mse_loss(outputs.squeeze(1), y, reduction=reduction)
        return F.cross_entropy(outputs, y, self.weights, reduction=reduction, label_smoothing=self.smoothing)

    def slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The gradient of the mean by the outputs."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            return torch.autograd.grad(self(leaf, y), leaf)[0]


def check_criterion(recipe: Recipe, classes: int) -> None:
    """Whether the recipe's loss is one for so many classes (0: a number is predicted)."""
    weights = recipe.class_weights
    if not classes and (weights is not None or recipe.label_smoothing):
        raise ConfigError(
            "training.class_weights and training.label_smoothing need classes, but this task is regression"
        )
    if isinstance(weights, tuple) and len(weights) != classes:
        raise ConfigError(f"training.class_weights has {len(weights)} numbers, but there are {classes} classes")


def class_weights(recipe: Recipe, counts: Tensor) -> Tensor:
    """counts: how many training samples of each class the client has"""
    if isinstance(recipe.class_weights, tuple):
        return torch.tensor(recipe.class_weights, device=counts.device)
    present = counts > 0  # n / (K n_k), over the K classes that the client has
    return torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)
