"""FedPer (Arivazhagan et al., 2019)."""

from typing import ClassVar

from fedpac.methods.fedavg import FedAvg
from fedpac.models import Section


class FedPer(FedAvg):
    """A shared body under a head of one's own, trained together.

    (theta_i, phi_i) <- E epochs of SGD on F_i from (theta, phi_i)          theta <- sum_i n_i / n  theta_i
    """

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    family: ClassVar[str] = "decoupling"
    shared: ClassVar[Section] = "body"
