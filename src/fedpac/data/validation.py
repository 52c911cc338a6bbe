"""Validation data: a share of every client's training samples, held out to choose rounds and settings by."""

from dataclasses import replace

import torch

from fedpac.data.clients import ClientData, Scenario
from fedpac.randomness import torch_stream


def held_out(scenario: Scenario, share: float, seed: int) -> Scenario:
    """The scenario with a random share of each client's training samples held out; test samples are not touched.

    A client that has its validation samples already, or one training sample only, stays as it is.
    """
    return replace(scenario, clients=[hold_out(c, i, share, seed) for i, c in enumerate(scenario.clients)])


def hold_out(client: ClientData, number: int, share: float, seed: int) -> ClientData:
    """The same of one client, whose number names the random stream."""
    train = client.train
    own = torch.unique(train.index)  # a sample that a client holds twice is on one side
    if client.validation is not None or len(own) < 2:
        return client
    size = min(max(1, round(share * len(own))), len(own) - 1)
    order = torch.randperm(len(own), generator=torch_stream(seed, "validation split", number))
    chosen = torch.isin(train.index, own[order[:size]])
    kept, held = (train.only(mask) for mask in (~chosen, chosen))
    return replace(client, train=kept, validation=held)
