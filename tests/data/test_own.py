import os
from pathlib import Path

import numpy as np
import pytest
import torch
from formats import png

from fedpac.data import describe, from_arrays, from_folder, from_owners
from fedpac.data.own import pooled
from fedpac.errors import DataError
from fedpac.runs.origins import data_digest


def client(n=10, m=4, shape=(5,), classes=3, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)

    def x(k):
        return rng.integers(256, size=(k, *shape)).astype(dtype)

    return x(n), np.arange(n) % classes, x(m), np.arange(m) % classes


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_arrays_come_back_as_they_were(convert):
    given = [tuple(convert(a) for a in client(n, seed=n)) for n in (10, 7, 1)]
    scenario = from_arrays(given)
    assert scenario.classes == 3
    assert scenario.shape == (5,)
    assert [c.name for c in scenario.clients] == ["client 0", "client 1", "client 2"]
    for (x_train, y_train, x_test, y_test), own in zip(given, scenario.clients, strict=True):
        for x, y, part in ((x_train, y_train, own.train), (x_test, y_test, own.test)):
            got_x, got_y = part.tensors()
            assert got_x.dtype == torch.float64
            assert got_y.dtype == torch.int64
            np.testing.assert_array_equal(got_x.numpy(), np.asarray(x))
            np.testing.assert_array_equal(got_y.numpy(), np.asarray(y))
    assert describe(scenario).tolist() == [[4, 3, 3], [3, 2, 2], [1, 0, 0]]


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 3), (3, 8, 6), (1, 8, 6)])
def test_images_become_channels_first_from_minus_one_to_one(shape):
    given = client(shape=shape, dtype=np.uint8)
    scenario = from_arrays([given], classes=10)
    x = torch.as_tensor(given[0])
    want = x.unsqueeze(1) if len(shape) == 2 else x.permute(0, 3, 1, 2) if shape[0] == 8 else x
    torch.testing.assert_close(scenario.clients[0].train.tensors()[0], want.float() / 127.5 - 1)
    assert scenario.classes == 10
    assert scenario.shape == tuple(want.shape[1:])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.float16, torch.float16),
        (np.float32, torch.float32),
        (np.float64, torch.float64),
        *(
            (kind, torch.int64)
            for kind in (bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64)
        ),
    ],
)
def test_floats_keep_their_precision_and_whole_numbers_are_whole(given, kept):
    own = client(dtype=given)
    x = from_arrays([own]).clients[0].train.tensors()[0]
    assert x.dtype == kept
    np.testing.assert_array_equal(x.numpy(), own[0])


def test_numbers_of_different_types_may_meet():
    scenario = from_arrays([client(dtype=np.int32), client(dtype=np.float32), client(dtype=np.float64)])
    assert scenario.clients[0].train.pool.x.dtype == torch.float64


def test_what_names_the_data_does_not_depend_on_their_type():
    """It is compared with that of runs from before types were kept."""
    digests = {data_digest(from_arrays([client(dtype=kind)])) for kind in (np.float64, np.float32, np.int64, np.uint8)}
    assert len(digests) == 1


x, y, xt, yt = client()


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([], "no clients"),
        ([(x, y, xt)], "client 0: 3 arrays given, expected 4"),
        ([(x, y[:-1], xt, yt)], "client 0, train: x has shape (10, 5), expected 9 samples"),
        ([(x, y, xt[:0], yt[:0])], "client 0, test: there are no samples"),
        ([(x, y * 1.0, xt, yt)], "expected one whole number per sample"),
        ([(x, y - 1, xt, yt)], "the label -1; labels start at 0"),
        ([(x, y + 2, xt, yt)], "the label 4, allowed are 0 to 3"),
        ([(x, y + 10**10, xt, yt)], "expected classes numbered 0, 1, 2, ..."),
        ([(x * np.nan, y, xt, yt)], "infinite or NaN"),
        ([(x + 1e300, y, xt, yt)], "infinite or NaN"),
        ([(x[:, :0], y, xt, yt)], "client 0, train: the samples of x are empty"),
        ([(np.full((10, 5), 2**64 - 1, np.uint64), y, xt, yt)], "whole numbers beyond 2^63"),
        ([(x * 1j, y, xt, yt)], "x has complex numbers"),
        ([(x, y, xt[:, :3], yt)], "client 0: samples are torch.float64 of shape (3,)"),
        ([(x, y, xt, yt), client(shape=(6,))], "client 1: samples are torch.float64 of shape (6,), the previous ones"),
        ([client(shape=(4, 4), dtype=np.uint8), client(shape=(1, 4, 4))], "torch.uint8"),
        ([client(shape=(5, 4, 4), dtype=np.uint8)], "1 or 3 channels"),
    ],
)
def test_bad_arrays_say_whose_and_what(clients, words):
    with pytest.raises(DataError) as caught:
        from_arrays(clients, classes=4)
    assert words in str(caught.value)


# ---------------------------------------------------------------- a folder of npz files


def test_folder_of_npz_files(tmp_path: Path):
    a = client(seed=1)
    np.savez(tmp_path / "a.npz", x_train=a[0], y_train=a[1], x_test=a[2], y_test=a[3])
    x, y = np.arange(40.0).reshape(8, 5), np.arange(8) % 4
    np.savez(tmp_path / "b.npz", x=x, y=y, split=["test", "train"] * 4)
    np.savez(tmp_path / "c.npz", x=x, y=y, split=np.array([0, 0, 0, 1, 1, 1, 1, 1]))
    np.savez(tmp_path / "d.npz", x=x, y=y)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.txt").write_text("notes do not matter")
    scenario = from_folder(tmp_path, test_share=0.25)
    assert [c.name for c in scenario.clients] == ["a", "b", "c", "d"]
    assert [(len(c.train), len(c.test)) for c in scenario.clients] == [(10, 4), (4, 4), (3, 5), (6, 2)]
    assert scenario.clients[1].train.tensors()[0][:, 0].tolist() == [5, 15, 25, 35]
    assert scenario.clients[2].test.tensors()[0][:, 0].tolist() == [15, 20, 25, 30, 35]
    halves = [part.tensors()[0][:, 0].tolist() for part in (scenario.clients[3].train, scenario.clients[3].test)]
    assert sorted(halves[0] + halves[1]) == [0, 5, 10, 15, 20, 25, 30, 35]
    assert scenario.classes == 4
    assert len(from_folder(tmp_path, min_samples=9).clients) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"x": np.zeros((3, 2))}, "has the arrays x. Expected"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4, int)}, "expected 4 samples"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "split": ["train", "test", "valid"]}, "'train' or 'test'"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "split": [0, 1]}, "for each of the 3 samples"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3, int), "split": [0, 0, 0]}, "bad: there are no test samples"),
        ({"x": np.zeros((1, 2)), "y": np.zeros(1, int)}, "no client has 2 samples"),
        ({"x": np.zeros((3, 2)), "y": ["cat", "dog", "cat"]}, "expected numbers in x and y"),
        ({"x": np.array([object()] * 3), "y": np.zeros(3, int)}, "plain array"),
    ],
)
def test_bad_npz_file(tmp_path, content, words):
    (tmp_path / "bad").mkdir()
    np.savez(tmp_path / "bad" / "bad.npz", **content)
    with pytest.raises(DataError) as caught:
        from_folder(tmp_path / "bad")
    assert words in str(caught.value)
    assert "bad" in str(caught.value)


def test_clients_that_are_too_small_are_left_out_before_they_are_split(tmp_path):
    x, y = np.arange(40.0).reshape(8, 5), (np.arange(8) % 4).astype(np.uint16)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.savez(tmp_path / "b.npz", x=x[:1], y=y[:1])
    assert [c.name for c in from_folder(tmp_path).clients] == ["a"]


@pytest.mark.parametrize("damage", [lambda f: f.write(b"PK damaged"), lambda f: np.save(f, np.zeros(3))])
def test_damaged_npz_file(tmp_path, damage):
    with (tmp_path / "a.npz").open("wb") as file:
        damage(file)
    with pytest.raises(DataError, match=r"a\.npz is not a readable"):
        from_folder(tmp_path)


def test_folder_that_is_none_or_mixed_or_empty(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        from_folder(tmp_path / "nowhere")
    (tmp_path / "a.csv").write_text("age,ill\n1,2\n")
    for path in (tmp_path, tmp_path / "a.csv"):
        with pytest.raises(
            DataError, match=r"(0 \.npz files and 0 sub|not a) ?-?folder.*tables need a schema: fedpac data desc"
        ):
            from_folder(path)
    (tmp_path / "a").mkdir()
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 2)), y=np.zeros(3, int))
    with pytest.raises(DataError, match=r"1 \.npz files and 1 sub-folders"):
        from_folder(tmp_path)


# ---------------------------------------------------------------- folders of images


def picture(path: Path, value: int, shape: tuple[int, ...] = (6, 4, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(np.full(shape, value, np.uint8)))


def test_folders_of_images(tmp_path):
    for i in range(5):
        picture(tmp_path / "ann" / "cat" / f"{i}.png", i)
        picture(tmp_path / "ann" / "dog" / f"{i}.png", 10 + i)
    picture(tmp_path / "bob" / "train" / "dog" / "0.png", 20)
    picture(tmp_path / "bob" / "train" / "emu" / "1.PNG", 21, (6, 4))  # grey among colours
    picture(tmp_path / "bob" / "test" / "cat" / "2.png", 22)
    (tmp_path / "bob" / "test" / "cat" / "notes.txt").write_text("not an image")
    scenario = from_folder(tmp_path)
    assert scenario.classes == 3
    assert scenario.shape == (3, 6, 4)
    ann, bob = scenario.clients
    assert (len(ann.train), len(ann.test)) == (8, 2)
    pool = ann.train.pool
    assert pool.x[bob.train.index, 0, 0, 0].tolist() == [20, 21]
    assert bob.train.labels().tolist() == [1, 2]
    assert bob.test.labels().tolist() == [0]
    everything = torch.cat([ann.train.index, ann.test.index])
    assert torch.equal(pool.y[everything], (pool.x[everything, 0, 0, 0] >= 10).long())


def test_bad_images(tmp_path):
    picture(tmp_path / "ann" / "cat" / "0.png", 0)
    picture(tmp_path / "ann" / "cat" / "1.png", 0, (6, 5, 3))
    with pytest.raises(DataError, match=r"1\.png is 5 x 6 pixels, the images before it are 4 x 6"):
        from_folder(tmp_path)
    (tmp_path / "ann" / "cat" / "1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"1\.png is not a readable"):
        from_folder(tmp_path)
    (tmp_path / "ann" / "cat" / "1.png").unlink()
    with pytest.raises(DataError, match="no client has 2 samples"):
        from_folder(tmp_path)
    picture(tmp_path / "bob" / "Cat" / "0.png", 0)
    with pytest.raises(DataError, match="class folders 'Cat' and 'cat' differ in case only"):
        from_folder(tmp_path)
    (tmp_path / "bob" / "Cat" / "0.png").unlink()
    (tmp_path / "bob" / "Cat").rmdir()
    (tmp_path / "bob" / "dog").mkdir(parents=True)
    with pytest.raises(DataError, match="bob has no PNG or JPEG images"):
        from_folder(tmp_path)


def test_pictures_that_are_small_on_disk_must_not_fill_the_memory(tmp_path):
    for i in range(3):
        picture(tmp_path / "ann" / "cat" / f"{i}.png", 0, (4096, 4096, 3))
    with pytest.raises(DataError, match=r"ann: [\d,]+ bytes would expand to 150,994,944"):
        from_folder(tmp_path)


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a\.npz is not a file"):
        from_folder(tmp_path)


# ---------------------------------------------------------------- one file with owners


def test_owners_may_be_names(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2)), y=np.zeros(6, int), owner=["b", "a", "b", "a", "b", "c"])
    assert [c.name for c in from_owners(tmp_path / "a.npz").clients] == ["a", "b"]


OWNED = {"x": np.zeros((3, 2)), "y": np.zeros(3, int)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (OWNED, "expected x, y and writer"),
        ({**OWNED, "writer": [0, 1]}, "one entry for each of 3 samples"),
        ({**OWNED, "writer": [0, np.nan, 0]}, "writer has infinite or NaN values"),
        ({**OWNED, "writer": [0, 5, 5], "writer_id": ["a", "b"]}, "the numbers 0 to 5, but writer_id has shape"),
        ({**OWNED, "writer": [0, -1, 0], "writer_id": ["a", "b"]}, "the numbers -1 to 0, but writer_id has shape"),
    ],
)
def test_bad_owners(tmp_path, content, words):
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(DataError, match=words):
        from_owners(tmp_path / "a.npz")


# ---------------------------------------------------------------- one pool


def numbers(pool) -> list[float]:
    return pool.x[:, 0].tolist()


def test_a_pool_from_one_file(tmp_path):
    x, y = np.arange(60.0).reshape(12, 5), np.arange(12) % 3
    path = tmp_path / "a.npz"
    np.savez(path, x_train=x[:9], y_train=y[:9], x_test=x[9:], y_test=y[9:])
    data = pooled(path, 0, 0.5)
    assert (numbers(data.train), numbers(data.test)) == (x[:9, 0].tolist(), x[9:, 0].tolist())
    assert data.test.y.tolist() == y[9:].tolist()
    assert (data.classes, data.note) == (3, "")
    np.savez(path, x=x, y=y, split=np.arange(12) % 2)
    assert numbers(pooled(path, 0, 0.2).test) == x[1::2, 0].tolist()


def test_a_pool_that_is_not_split_keeps_a_share_of_each_class(tmp_path):
    x, y = np.arange(41.0)[:, None], np.append(np.repeat([0, 3], [30, 10]), 1)
    np.savez(tmp_path / "a.npz", x=x, y=y, writer=np.arange(41))
    data = pooled(tmp_path / "a.npz", 0, 0.2)
    assert data.train.y.bincount().tolist() == [24, 1, 0, 8]  # class 1 has a single sample, to train on
    assert data.test.y.bincount().tolist() == [6, 0, 0, 2]
    assert sorted(numbers(data.train) + numbers(data.test)) == x[:, 0].tolist()
    assert data.classes == 4
    assert numbers(data.test) == numbers(pooled(tmp_path / "a.npz", 0, 0.2).test)
    assert numbers(data.test) != numbers(pooled(tmp_path / "a.npz", 1, 0.2).test)


def test_a_pool_from_the_folders_of_many(tmp_path):
    a = client(n=7, m=2, seed=1)
    np.savez(tmp_path / "a.npz", x_train=a[0], y_train=a[1], x_test=a[2], y_test=a[3])
    for name, k in (("b", 0), ("c", 1), ("d", 1), ("e", 0)):  # one sample each: too little to split, enough together
        np.savez(tmp_path / f"{name}.npz", x=np.full((1, 5), -1.0), y=np.array([k]))
    data = pooled(tmp_path, 0, 0.5)
    assert (len(data.train.y), len(data.test.y)) == (7 + 2, 2 + 2)
    assert sorted(numbers(data.test)) == sorted([*a[2][:, 0].tolist(), -1, -1])


def test_a_pool_of_images(tmp_path, rng):
    for owner in ("ann", "bob"):
        for kind in ("cat", "dog"):
            for i in range(4):
                file = tmp_path / owner / kind / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(png(rng.integers(256, size=(6, 5, 3), dtype=np.uint8)))
    data = pooled(tmp_path, 0, 0.25)
    assert data.train.x.shape == (12, 3, 6, 5)
    assert data.train.mean == data.test.std == (0.5, 0.5, 0.5)
    assert data.test.y.bincount().tolist() == [2, 2]


def test_a_pool_that_cannot_be(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        pooled(tmp_path / "nowhere", 0, 0.2)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 5)), y=np.arange(2))
    with pytest.raises(DataError, match="no samples are left for testing"):
        pooled(tmp_path / "a.npz", 0, 0.2)
    np.savez(tmp_path / "b.npz", x=np.zeros((2, 4)), y=np.arange(2))
    with pytest.raises(DataError, match=r"b: samples are torch.float64 of shape \(4,\)"):
        pooled(tmp_path, 0, 0.2)
