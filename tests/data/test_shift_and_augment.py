import numpy as np
import pytest
import torch
from PIL import Image

from fedpac.data import Pool, Samples, crop_and_flip
from fedpac.data.shift import relabelling, rotate
from fedpac.native import vectors


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- parts


@pytest.fixture
def pool():
    x = torch.randint(256, (20, 3, 8, 8), dtype=torch.uint8, generator=generator())
    return Pool(x, torch.arange(20) % 4, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


def test_part_normalises_its_images(pool):
    x, y = Samples(pool, torch.tensor([3, 7])).tensors()
    mean, std = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    torch.testing.assert_close(x, (pool.x[[3, 7]].float() / 255 - mean) / std)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    assert y.tolist() == [3, 3]


def test_part_gives_a_copy(pool):
    part = Samples(pool, torch.arange(20))
    before = part.tensors()[0]
    part.tensors()[0].zero_()
    assert torch.equal(part.tensors()[0], before)
    floats = Samples(Pool(torch.ones(5, 2), torch.zeros(5, dtype=torch.long)), torch.arange(5))
    floats.tensors()[0].zero_()
    assert floats.tensors()[0].all()


def test_part_relabels_and_counts(pool):
    part = Samples(pool, torch.arange(10), relabel=torch.tensor([2, 0, 3, 1]))
    assert part.labels().tolist() == [2, 0, 3, 1] * 2 + [2, 0]
    assert torch.equal(part.tensors()[1], part.labels())
    assert part.class_counts(5).tolist() == [3, 2, 3, 2, 0]
    assert len(part) == 10


def test_corners_of_turned_images_are_black(pool):
    part = Samples(pool, torch.arange(4), rotate=45.0)
    torch.testing.assert_close(part.tensors()[0][:, :, 0, 0], part.black().expand(4, 3))


# ---------------------------------------------------------------- shifts


@pytest.mark.parametrize("degrees", [0, 90, 180, 270, 360, -90, 450])
def test_quarter_turns_are_exact(degrees):
    x = torch.rand(2, 3, 9, 9)
    assert torch.equal(rotate(x, degrees), torch.rot90(x, degrees // 90, dims=(2, 3)))


@pytest.mark.parametrize("shape", [(28, 28), (20, 32)])
@pytest.mark.parametrize("degrees", [30, 72, 135, 288])
def test_rotation_agrees_with_pillow(degrees, shape):
    """Inside the picture; at the border Pillow and torch blend with the outside differently."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    image = (100 + 60 * np.sin(rows / 4) + 60 * np.cos(columns / 5)).astype(np.float32)
    want = np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR))
    got = rotate(torch.from_numpy(image)[None, None], degrees)[0, 0].numpy()
    middle = (slice(6, -6), slice(12, -12) if shape[0] < shape[1] else slice(6, -6))
    np.testing.assert_allclose(got[middle], want[middle], atol=0.1)


def test_relabelling_is_the_groups_own_permutation():
    orders = [relabelling(0, g, 10) for g in range(5)]
    assert all(order.sort().values.tolist() == list(range(10)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 5
    assert torch.equal(relabelling(0, 3, 10), orders[3])
    assert not torch.equal(relabelling(1, 3, 10), orders[3])


# ---------------------------------------------------------------- augmentation


def crop_and_flip_slowly(x: torch.Tensor, generator: torch.Generator, fill: torch.Tensor) -> torch.Tensor:
    top, left = torch.randint(9, (2, len(x), 1), generator=generator)
    mirrored = torch.randint(2, (len(x), 1), generator=generator)
    out = []
    for image, t, l, flip in zip(x, top, left, mirrored, strict=True):  # noqa: E741
        c, h, w = image.shape
        padded = fill.view(c, 1, 1).expand(c, h + 8, w + 8).clone()
        padded[:, 4:-4, 4:-4] = image
        cropped = padded[:, int(t) : int(t) + h, int(l) : int(l) + w]
        out.append(cropped.flip(-1) if flip else cropped)
    return torch.stack(out)


@pytest.mark.parametrize("shape", [(50, 3, 32, 32), (1, 1, 28, 28), (7, 3, 12, 20)])
@pytest.mark.parametrize("native", [True, False])
def test_crop_and_flip_is_the_slow_one_made_fast(shape, native, monkeypatch):
    if not native:
        monkeypatch.setattr(vectors, "library", lambda: None)
    x, fill = torch.randn(shape), torch.randn(shape[1])
    assert torch.equal(crop_and_flip(x, generator(), fill), crop_and_flip_slowly(x, generator(), fill))
    some = torch.tensor([len(x) - 1, 0, 0])
    assert torch.equal(crop_and_flip(x, generator(), fill, some), crop_and_flip_slowly(x[some], generator(), fill))
    zero = torch.zeros(shape[1])
    assert torch.equal(crop_and_flip(x, generator()), crop_and_flip_slowly(x, generator(), zero))


def test_crop_and_flip_depends_on_the_generator_alone():
    x = torch.randn(20, 3, 32, 32)
    assert torch.equal(crop_and_flip(x, generator(1)), crop_and_flip(x, generator(1)))
    assert not torch.equal(crop_and_flip(x, generator(1)), crop_and_flip(x, generator(2)))


def test_every_shift_and_flip_occurs_about_equally_often():
    n = 9 * 9 * 2 * 100
    x = torch.arange(12.0 * 12).view(1, 1, 12, 12).expand(n, -1, -1, -1)
    seen, times = crop_and_flip(x, generator()).flatten(1)[:, [65, 66]].unique(dim=0, return_counts=True)
    assert len(seen) == 9 * 9 * 2
    assert (times - 100).abs().max() < 50  # five standard deviations
