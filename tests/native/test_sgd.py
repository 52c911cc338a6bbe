"""The SGD step in one pass, against torch's optimiser."""

import pytest
import torch

from fedpac.native import available, ops


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_steps_like_torch(
    native: bool, momentum: float, weight_decay: float, dtype: torch.dtype, tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if native and not available():
        pytest.skip("no native library on this machine")
    if not native:
        monkeypatch.setattr(ops, "library", lambda: None)
    ours = torch.randn(1003, dtype=dtype)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    velocity = torch.zeros_like(ours) if momentum else None
    for _ in range(3):
        gradient = torch.randn_like(ours)
        theirs.grad = gradient.clone()
        optimizer.step()
        ops.sgd_step(ours, gradient, velocity, 0.1, momentum, weight_decay)
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("start", range(9))
def test_bits_do_not_depend_on_alignment(start: int) -> None:
    memory = torch.randn(3, 200)
    aligned = [row[:150].clone() for row in memory]
    shifted = [row[start : start + 150] for row in torch.randn(3, 200)]
    for to, value in zip(shifted, aligned, strict=True):
        to.copy_(value)
    ops.sgd_step(*aligned, 0.1, 0.5, 0.01)
    ops.sgd_step(*shifted, 0.1, 0.5, 0.01)
    assert all(torch.equal(a, b) for a, b in zip(aligned[::2], shifted[::2], strict=True))


def test_a_number_that_is_none_stays_visible() -> None:
    parameters, gradient = torch.ones(20), torch.zeros(20)
    gradient[3], gradient[17] = torch.nan, torch.inf
    ops.sgd_step(parameters, gradient, None, 0.1, 0.0, 0.0)
    assert parameters.isfinite().sum() == 18


def test_vectors_in_pieces_are_served_by_torch() -> None:
    parameters, gradient = torch.ones(20)[::2], torch.full((10,), 2.0)
    ops.sgd_step(parameters, gradient, torch.zeros(10), 0.25, 0.5, 0.0)
    assert torch.equal(parameters, torch.full((10,), 0.5))
