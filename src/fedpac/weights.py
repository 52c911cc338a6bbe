"""The one operation by which a server combines what clients sent: a weighted sum with coefficients it knows.

Averages, FedPAC's heads and clusters all go through it. It works on weights, and on any payload that can be scaled and
added, so that a method which needs nothing else runs on payloads that the server cannot read.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from fedpac import robust
from fedpac.message import Message, Payload, Weights
from fedpac.native.vectors import weighted_sum as sum_of_tensors


def weighted_sum(payloads: Sequence[Weights], coefficients: Sequence[float]) -> Weights:
    """sum_k coefficient_k payload_k, added up in this order.

    Integer buffers (a batch counter) have no mean: the first one's value is kept.
    """
    first = payloads[0]
    if any(isinstance(payload, Payload) for payload in payloads):
        return cast(Weights, _sum_of_payloads(payloads, coefficients))
    return {
        name: sum_of_tensors([weights[name] for weights in payloads], coefficients)
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in first.items()
    }


def _sum_of_payloads(payloads: Sequence[Weights | Payload], coefficients: Sequence[float]) -> Payload:
    """Open weights may be among them: they are summed up first, and added as they are."""
    # what counts nothing is left out: a ciphertext times zero would be no secret any more
    pairs = [(payload, share) for payload, share in zip(payloads, coefficients, strict=True) if share]
    total, *others = [payload * share for payload, share in pairs if isinstance(payload, Payload)]
    for other in others:
        total = total + other
    known = [(weights, share) for weights, share in pairs if not isinstance(weights, Payload)]
    return total.plus(weighted_sum(*map(list, zip(*known, strict=True)))) if known else total


def average(payloads: Mapping[int, Weights], shares: Mapping[int, float]) -> Weights:
    """sum_i share_i w_i / sum_i share_i, in client order; or what the server's robust rule puts in its place."""
    total = sum(shares.values())
    coefficients = [shares[i] / total for i in payloads]
    if (rule := robust.current()) is not None:
        return rule.average(list(payloads.values()), coefficients)
    return weighted_sum(list(payloads.values()), coefficients)


def combined(own: int, payloads: Mapping[int, Weights], coefficients: Mapping[int, float]) -> Weights:
    """sum_j coefficient_j w_j for client `own`; a robust rule cuts differences to its own to what is usual."""
    used = [payloads[j] for j in coefficients]
    if robust.current() is not None:
        return robust.nearer(payloads[own], list(payloads.values()), used, list(coefficients.values()))
    return weighted_sum(used, list(coefficients.values()))


def average_of(replies: Mapping[int, Message], name: str) -> Weights:
    """The clients' weights of that name, each counted by its number n of samples."""
    return average({i: up.weights(name) for i, up in replies.items()}, {i: up.number("n") for i, up in replies.items()})
