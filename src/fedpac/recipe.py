"""How every client trains locally: optimizer, rates over the rounds, and what the loss counts."""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Recipe(BaseModel):
    """How every client trains locally; the defaults are the paper's for Fashion-MNIST."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: Annotated[float, Field(gt=0, le=100, description="learning rate of local SGD")] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, description="heavy-ball momentum, reset every round")] = 0.5
    weight_decay: Annotated[float, Field(ge=0, le=1, description="L2 decay of all trained weights")] = 5e-4
    batch: Annotated[int, Field(ge=1, le=100_000, description="mini-batch size; the last, smaller batch is used")] = 50
    epochs: Annotated[int, Field(ge=1, le=10_000, description="E, local epochs per round")] = 5
    optimizer: Annotated[
        Literal["sgd", "adam", "adamw"],
        Field(description="optimizer of local training, reset every round; momentum applies to sgd only"),
    ] = "sgd"
    schedule: Annotated[
        Literal["constant", "cosine", "step"],
        Field(description="learning-rate schedule over the rounds: constant, cosine to zero, or in steps"),
    ] = "constant"
    warmup: Annotated[int, Field(ge=0, le=1_000_000, description="rounds of linear learning-rate warm-up")] = 0
    step_every: Annotated[int, Field(ge=1, description="schedule 'step': rounds between steps")] = 50
    step_factor: Annotated[float, Field(gt=0, le=1, description="schedule 'step': factor per step")] = 0.1
    clip: Annotated[
        float | None, Field(gt=0, description="maximum gradient norm per mini-batch; default: no limit")
    ] = None
    class_weights: Annotated[
        Literal["balanced"] | tuple[Annotated[float, Field(ge=0)], ...] | None,
        Field(
            description="class weights of the loss: one number per class, or 'balanced' by each client's class counts"
        ),
    ] = None
    label_smoothing: Annotated[
        float, Field(ge=0, lt=1, description="share of each label that is spread over all classes")
    ] = 0.0

    @model_validator(mode="after")
    def _heeded(self) -> Self:
        """A key that would be ignored is refused, so that nobody believes it did something."""
        said = self.model_fields_set
        if self.optimizer != "sgd" and "momentum" in said and self.momentum != Recipe.model_fields["momentum"].default:
            raise ValueError(f"momentum is for optimizer 'sgd'; '{self.optimizer}' has its own moments")
        for key in ("step_every", "step_factor"):
            if self.schedule != "step" and getattr(self, key) != Recipe.model_fields[key].default:
                raise ValueError(f"{key} is for schedule 'step', but the schedule is '{self.schedule}'")
        return self

    def factor(self, round: int, rounds: int) -> float:
        """What the learning rates of this round are multiplied by; 1 unless a schedule or a warm-up says otherwise.

        What comes after the last round, such as a model that is made to predict with, is trained as in the last.
        """
        t = min(round, rounds) - 1  # rounds before this one
        rise = (t + 1) / self.warmup if t < self.warmup else 1.0
        if self.schedule == "cosine":
            return rise * 0.5 * (1 + math.cos(math.pi * t / rounds))
        return rise * self.step_factor ** (t // self.step_every) if self.schedule == "step" else rise
