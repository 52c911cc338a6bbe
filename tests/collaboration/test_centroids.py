import numpy as np
import torch

from fedpac.collaboration import Centroids, alignment_targets, global_centroids, local_centroids
from fedpac.collaboration.centroids import renewed
from fedpac.message import Message

Z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0], [5.0, 5.0]])
Y = torch.tensor([0, 0, 1, 0])


def test_local_centroids_are_class_means():
    local = local_centroids(Z, Y, 3)
    assert local.counts.tolist() == [3, 1, 0]
    assert torch.equal(local.means, torch.tensor([[3.0, 5 / 3], [0.0, 4.0], [0.0, 0.0]]))
    assert local.present.tolist() == [True, True, False]
    assert local.means.dtype == Z.dtype


def test_global_centroids_are_the_means_of_all_samples():
    """Weighted by n_{i,k}: splitting the samples among clients in any way changes nothing."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(50, 3, generator=g, dtype=torch.float64)
    y = torch.randint(0, 4, (50,), generator=g)
    together = local_centroids(z, y, 5)
    parts = [slice(0, 1), slice(1, 9), slice(9, 50)]
    merged = global_centroids([local_centroids(z[p], y[p], 5) for p in parts])
    assert torch.equal(merged.counts, together.counts)
    np.testing.assert_allclose(merged.means, together.means, rtol=1e-13, atol=1e-13)
    assert not merged.present[4]


def test_what_a_class_without_samples_holds_does_not_spread():
    broken = Centroids(torch.tensor([1, 0, 0]), torch.tensor([[2.0, 2.0], [torch.nan] * 2, [torch.nan] * 2]))
    merged = global_centroids([broken, local_centroids(Z, Y, 3)])
    assert torch.isfinite(merged.means).all()
    assert torch.equal(merged.means[1], torch.tensor([0.0, 4.0]))
    assert torch.equal(merged.means[2], torch.zeros(2))


def test_alignment_takes_the_own_centroid_only_where_there_is_no_global_one():
    shared = Centroids(torch.tensor([9, 0, 0]), torch.tensor([[7.0, 7.0], [0.0, 0.0], [0.0, 0.0]]))
    targets = alignment_targets(shared, local_centroids(Z, Y, 3))
    assert torch.equal(targets, torch.tensor([[7.0, 7.0], [0.0, 4.0], [0.0, 0.0]]))


def test_a_class_that_nobody_had_this_round_keeps_its_last_centroid():
    last = Centroids(torch.tensor([9, 0, 2]), torch.tensor([[7.0, 7.0], [0.0, 0.0], [8.0, 8.0]]))
    new = renewed(last, local_centroids(Z, Y, 3))
    assert new.counts.tolist() == [3, 1, 2]
    assert torch.equal(new.means, torch.tensor([[3.0, 5 / 3], [0.0, 4.0], [8.0, 8.0]]))


def test_travel_in_a_message():
    local = local_centroids(Z, Y, 3)
    message = Message.from_bytes(Message(c=local.to_tensors()).to_bytes())
    back = Centroids.from_tensors(message.weights("c"))
    assert torch.equal(back.means, local.means)
    assert torch.equal(back.counts, local.counts)
