"""What a network is to this project: its size, its features, and which of the fast paths it takes."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedpac import native
from fedpac.backprop import gradient_of
from fedpac.models import tensors_of
from fedpac.recipe import Recipe
from fedpac.task import Task


@dataclass(frozen=True)
class Facts:
    parameters: int
    features: int
    fused: int  # blocks of convolution, pooling and activation that run as one kernel
    written_out: bool  # gradients without autograd

    @property
    def speed(self) -> str:
        """In words."""
        kernels = f"{self.fused} fused {'block' if self.fused == 1 else 'blocks'}" if self.fused else "no fused blocks"
        return f"{kernels}; gradients {'written out' if self.written_out else 'by autograd'}"


def facts(model: nn.Module, sample: Tensor, classes: int) -> Facts:
    """Of the network as clients train it; an error that says why if they cannot."""
    from fedpac.native.fusion import FusedConvPool

    task = Task(model, classes, Recipe(), 0, 1, 1, sample=sample)
    used = task.model.train()
    for p in used.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    fused = sum(isinstance(m, FusedConvPool) for m in used.modules()) if native.available() else 0
    sizes = [t.numel() for t in tensors_of(used).values()]
    return Facts(sum(sizes), task.features or 0, fused, gradient_of(used) is not None)
