"""Passes over all weights or all pixels, against torch."""

import pytest
import torch
from torch.nn import functional as F

from fedpac.native import available, vectors


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
        monkeypatch.setattr(vectors, "library", lambda: None)
    ours = torch.randn(1003, dtype=dtype)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=weight_decay)
    velocity = torch.zeros_like(ours) if momentum else None
    for _ in range(3):
        gradient = torch.randn_like(ours)
        theirs.grad = gradient.clone()
        optimizer.step()
        vectors.sgd_step(ours, gradient, velocity, 0.1, momentum, weight_decay)
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("start", range(9))
def test_bits_do_not_depend_on_alignment(start: int) -> None:
    memory = torch.randn(3, 200)
    aligned = [row[:150].clone() for row in memory]
    shifted = [row[start : start + 150] for row in torch.randn(3, 200)]
    for to, value in zip(shifted, aligned, strict=True):
        to.copy_(value)
    for parameters, gradient, velocity in (aligned, shifted):
        vectors.sgd_step(parameters, gradient, velocity, 0.1, 0.5, 0.01)
    assert all(torch.equal(a, b) for a, b in zip(aligned[::2], shifted[::2], strict=True))


def test_a_number_that_is_none_stays_visible() -> None:
    parameters, gradient = torch.ones(20), torch.zeros(20)
    gradient[3], gradient[17] = torch.nan, torch.inf
    vectors.sgd_step(parameters, gradient, None, 0.1, 0.0, 0.0)
    assert parameters.isfinite().sum() == 18


def test_vectors_in_pieces_are_served_by_torch() -> None:
    parameters, gradient = torch.ones(20)[::2], torch.full((10,), 2.0)
    vectors.sgd_step(parameters, gradient, torch.zeros(10), 0.25, 0.5, 0.0)
    assert torch.equal(parameters, torch.full((10,), 0.5))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(7, 13), (3, 5000), (0,), ()])
def test_sums_with_weights(
    native: bool, dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(vectors, "library", lambda: None)
    tensors, shares = [torch.randn(shape, dtype=dtype) for _ in range(4)], [0.3, 0.1, -2.0, 1e-3]
    expected = sum(share * x.double() for share, x in zip(shares, tensors, strict=True))
    found = vectors.weighted_sum(tensors, shares)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=1e-15 if dtype == torch.float64 else 1e-7, atol=1e-14)
    if len(shape) == 2:
        turned = [x.t().contiguous().t() for x in tensors]  # not side by side
        torch.testing.assert_close(vectors.weighted_sum(turned, shares), found, rtol=1e-7, atol=1e-14)


def test_moves_any_distance() -> None:
    if not available():
        pytest.skip("no native library on this machine")
    x, fill = torch.arange(1.0, 41.0).view(1, 2, 4, 5), torch.tensor([-1.0, -2.0])
    for down in range(-6, 7):
        for right in range(-6, 7):
            for mirrored in (0, 1):
                wide = fill.view(1, 2, 1, 1).expand(1, 2, 16, 17).clone()
                wide[:, :, 6:10, 6:11] = x
                expected = wide[:, :, 6 - down : 10 - down, 6 - right : 11 - right]
                index, *place = (torch.tensor([t]) for t in (0, down, right, mirrored))
                moved = vectors.move(x, index, place[0], place[1], place[2], fill)
                assert moved is not None
                assert torch.equal(moved, expected.flip(-1) if mirrored else expected)


def test_moves_only_what_it_can() -> None:
    at = torch.zeros(2, dtype=torch.int64)  # the index, and where to
    assert vectors.move(torch.zeros(2, 3, 4, 4, dtype=torch.float16), at, at, at, at, torch.zeros(3)) is None
    assert vectors.move(torch.zeros(2, 3, 4, 8)[..., ::2], at, at, at, at, torch.zeros(3)) is None
    assert vectors.move(torch.zeros(3, 3, 4, 4), at, at, at, torch.zeros(1), torch.zeros(3)) is None
    for outside in (-1, 3):
        if available():
            with pytest.raises(IndexError, match="not among the images"):
                vectors.move(torch.zeros(3, 3, 4, 4), torch.tensor([0, outside]), at, at, at, torch.zeros(3))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 3e-6)])
@pytest.mark.parametrize("size", [(50, 128, 10), (1, 3, 3), (4, 17, 1), (7, 784, 62), (0, 5, 2)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_head_gradient(size: tuple[int, int, int], with_bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    if not available():
        pytest.skip("no native library on this machine")
    rows, features, classes = size
    z, bias = 3 * torch.randn(rows, features, dtype=dtype), torch.randn(classes, dtype=dtype)
    weight = torch.randn(classes, features, dtype=dtype) / features**0.5
    labels = torch.arange(rows) % classes
    operands = [t.requires_grad_() for t in ([z, weight, bias] if with_bias else [z, weight])]
    found = [torch.full_like(t, torch.nan) for t in operands]
    given = [t.detach() for t in operands]
    dz, dw, db = (*found, None)[:3]
    vectors.head_gradient(given[0], labels, given[1], given[2] if with_bias else None, dz, dw, db)
    vectors.head_gradient(given[0], labels, given[1], None, None, None, None)  # nothing wanted, nothing written
    if rows:
        expected = torch.autograd.grad(F.cross_entropy(F.linear(*operands), labels), operands)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_head_gradient_shows_what_is_wrong() -> None:
    if not available():
        pytest.skip("no native library on this machine")
    z, labels, weight, dz = torch.ones(2, 3), torch.tensor([0, 3]), torch.ones(4, 3), torch.empty(2, 3)
    rest = (weight, None, dz, None, None)
    for bad in (torch.nan, torch.inf):
        z[0, 2] = bad
        vectors.head_gradient(z, labels, *rest)
        assert dz.isnan().any(1).tolist() == [True, False]
    for wrong in (-1, 4):
        with pytest.raises(IndexError):
            vectors.head_gradient(z, torch.tensor([0, wrong]), *rest)
    for unfit in (labels.float(), torch.tensor([0, 9, 3])[::2]):
        with pytest.raises(TypeError):
            vectors.head_gradient(z, unfit, *rest)
    with pytest.raises(TypeError):
        vectors.head_gradient(z.double(), labels, *rest)
    with pytest.raises(ValueError, match="rows"):
        vectors.head_gradient(z, labels[:1], *rest)
