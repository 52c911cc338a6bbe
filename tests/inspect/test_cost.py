"""The measured cost of a method is the one that can be worked out on paper."""

import pytest

from fedpac.inspect.cost import measure_cost
from fedpac.methods import list_methods

NUMBERS = 117_066  # weights of the paper's network for 28 x 28 images
HEAD = 1_290


@pytest.mark.parametrize(
    ("name", "down", "up", "passes"),
    [
        ("fedavg", 4 * NUMBERS, 4 * NUMBERS + 8, {"full": 5}),
        ("fedper", 4 * (NUMBERS - HEAD), 4 * (NUMBERS - HEAD) + 8, {"full": 5}),
        ("local", 0, 8, {"full": 5}),
    ],
)
def test_the_measured_cost_is_the_one_on_paper(name, down, up, passes):
    cost = measure_cost(list_methods()[name]())
    assert (cost.bytes_down, cost.bytes_up, cost.training) == (down, up, passes)


def test_fedpac_is_measured_with_its_centroids():
    cost = measure_cost(list_methods()["fedpac"]())
    assert {"w", "head", "centroids"} <= cost.down.keys()
    assert cost.training == {"full": 5, "head": 1, "forward": 2}
    assert cost.on_client == {}
    assert "head.<i>" in cost.on_server
