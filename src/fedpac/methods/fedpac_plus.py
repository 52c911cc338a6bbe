"""FedPAC+: FedPAC in half the rounds."""

from typing import Annotated, ClassVar

from pydantic import Field

from fedpac.client import Client
from fedpac.methods.fedpac import FedPAC
from fedpac.optimizers import Optimizer


class FedPACPlus(FedPAC):
    """FedPAC with larger steps of the shared body, and statistics of the images that the body is trained on.

    server:  v <- momentum v + (sum_i n_i/n theta_i - theta)      theta <- theta + v       in place of eq. (f_agg)
    client:  the body trains at `rate` times the recipe's learning rate
             mu_i, V_i, c_i and the head see augmented images, where training does

    Averaging m clients divides the noise of their steps by m, so the body bears larger ones, and directions that rounds
    agree on add up. Features of images that the body knows by heart are too tidy to fit a head on. With momentum = 0,
    rate = 1 and augmented = false it is FedPAC, bit for bit. A `server.optimizer` takes the place of the momentum.
    """

    name: ClassVar[str] = "fedpac-plus"
    title: ClassVar[str] = "FedPAC+"

    momentum: Annotated[float, Field(ge=0, lt=1, description="server momentum of the body")] = 0.5
    rate: Annotated[
        float, Field(gt=0, le=100, description="learning rate of the body, as a multiple of training.lr")
    ] = 2.0
    augmented: Annotated[bool, Field(description="statistics, head and centroids from augmented images")] = True

    def optimizer(self) -> Optimizer | None:
        return Optimizer(kind="momentum", lr=1.0, momentum=self.momentum) if self.momentum else None

    def body_lr(self, client: Client) -> float:
        return self.rate * client.recipe.lr
