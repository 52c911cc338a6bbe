"""Small scenarios, and whether two are the same."""

import torch

from fedpac.data import DataConfig, Scenario
from fedpac.data.scenarios import SCENARIOS

DEALT = sorted(set(SCENARIOS) - {"natural", "cinic-sep"})


def same(a: Scenario, b: Scenario) -> bool:
    def parts(scenario):
        return [part for client in scenario.clients for part in (client.train, client.test)]

    return all(
        torch.equal(p.index, q.index)
        and p.rotate == q.rotate
        and equal(p.relabel, q.relabel)
        and equal(p.turns, q.turns)
        for p, q in zip(parts(a), parts(b), strict=True)
    )


def equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def small(scenario: str, **keys) -> DataConfig:
    return DataConfig(scenario=scenario, **({"clients": 10} | keys))
