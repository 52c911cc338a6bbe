"""A contender: FedPAC as a competent user writes it in an afternoon, and as published code does it.

One process with torch's default threads; TensorDataset and DataLoader; the network in its usual order (convolution,
activation, pool); torch.optim.SGD; a Python loop over the classes for the statistics; cvxpy for each client's weights.
It computes what benchmarks.ours computes, from the same start on the same data: features are taken without
augmentation, and the head is trained on the features that the statistics have needed anyway.

    python -m benchmarks.reference WORKLOAD_FILE
"""

import copy
import sys
from typing import Any

import cvxpy
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contender import serve
from benchmarks.networks import Net, load_initial, network

HEAD_LR = 0.1
LAMBDA = 1.0


class Client:
    def __init__(self, file: dict[str, Any], i: int) -> None:
        self.mean, self.std = file["mean"].view(1, -1, 1, 1), file["std"].view(1, -1, 1, 1)
        self.augment, self.recipe = file["augment"], file["recipe"]
        images, self.y = file["x"][i] / 255, file["y"][i]
        self.n = len(self.y)
        plain = TensorDataset((images - self.mean) / self.std, self.y)
        # where images are augmented they are normalised afterwards, so that the border is black
        train = TensorDataset(images, self.y) if self.augment else plain
        test = TensorDataset((file["x_test"][i] / 255 - self.mean) / self.std, file["y_test"][i])
        self.train_loader = DataLoader(train, batch_size=self.recipe["batch"], shuffle=True)
        self.plain_loader = DataLoader(plain, batch_size=256)
        self.test_loader = DataLoader(test, batch_size=256)

    @torch.no_grad()
    def features(self, net: Net) -> Tensor:
        net.eval()
        return torch.cat([net.body(x) for x, _ in self.plain_loader])

    @torch.no_grad()
    def accuracy(self, net: Net) -> float:
        net.eval()
        correct = sum((net(x).argmax(1) == y).sum().item() for x, y in self.test_loader)
        return correct / len(self.test_loader.dataset)  # type: ignore[arg-type]

    def optimizer(self, part: nn.Module, lr: float) -> torch.optim.SGD:
        recipe = self.recipe
        return torch.optim.SGD(part.parameters(), lr, recipe["momentum"], weight_decay=recipe["weight_decay"])

    def train_head(self, net: Net, z: Tensor) -> None:
        optimizer = self.optimizer(net.head, HEAD_LR)
        for zb, y in DataLoader(TensorDataset(z, self.y), batch_size=self.recipe["batch"], shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net.head(zb), y).backward()
            optimizer.step()

    def train_body(self, net: Net, centroids: Tensor | None) -> None:
        net.train()
        net.head.requires_grad_(False)
        optimizer = self.optimizer(net.body, self.recipe["lr"])
        for _ in range(self.recipe["epochs"]):
            for x, y in self.train_loader:
                if self.augment:
                    x = (crop_and_flip(x) - self.mean) / self.std
                optimizer.zero_grad()
                z = net.body(x)
                loss = F.cross_entropy(net.head(z), y)
                if centroids is not None:
                    loss = loss + LAMBDA * F.mse_loss(z, centroids[y])
                loss.backward()
                optimizer.step()
        net.head.requires_grad_(True)


def crop_and_flip(x: Tensor) -> Tensor:
    """Every image of the batch moved by up to four pixels, and mirrored with probability one half."""
    n, channels, height, width = x.shape
    padded = F.pad(x, (4, 4, 4, 4))
    rows = torch.randint(9, (n, 1)) + torch.arange(height)
    columns = torch.randint(9, (n, 1)) + torch.arange(width)
    mirrored = torch.rand(n) < 0.5
    columns[mirrored] = columns[mirrored].flip(1)
    image, channel = torch.arange(n).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    return padded[image, channel, rows.view(n, 1, -1, 1), columns.view(n, 1, 1, -1)]


def statistics(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, float]:
    """h_k = P(k) E[z | k] as one vector, and V / n."""
    h = torch.zeros(classes, z.shape[1])
    for k in range(classes):
        own = z[y == k]
        if len(own):
            h[k] = own.mean(0) * len(own) / len(z)
    variance = z.square().sum(1).mean() - h.square().sum()
    return h.flatten(), float(variance) / len(z)


def centroids_of(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    means, counts = torch.zeros(classes, z.shape[1]), torch.zeros(classes)
    for k in range(classes):
        own = z[y == k]
        if len(own):
            means[k], counts[k] = own.mean(0), len(own)
    return means, counts


def combination_weights(H: np.ndarray, v: np.ndarray, i: int) -> np.ndarray:
    alpha = cvxpy.Variable(len(v))
    bias, variance = cvxpy.sum_squares(H.T @ alpha - H[i]), v @ cvxpy.square(alpha)
    cvxpy.Problem(cvxpy.Minimize(bias + variance), [alpha >= 0, cvxpy.sum(alpha) == 1]).solve()
    solved = np.asarray(alpha.value)
    found = np.where(solved < 1e-3, 0, solved)
    return found / found.sum()


class Reference:
    def __init__(self, file: dict[str, Any]) -> None:
        self.clients = [Client(file, i) for i in range(len(file["x"]))]
        self.classes: int = file["classes"]
        self.net = network(file["network"], file["x"].shape[2], self.classes, usual_order=True)
        load_initial(self.net, file["initial"])
        self.body = copy.deepcopy(self.net.body.state_dict())
        self.heads = [copy.deepcopy(self.net.head.state_dict()) for _ in self.clients]
        self.centroids: Tensor | None = None

    def received(self, i: int) -> Net:
        self.net.body.load_state_dict(self.body)
        self.net.head.load_state_dict(self.heads[i])
        return self.net

    def round(self) -> dict[str, float]:
        h, v, bodies, heads, means, counts, personal = [], [], [], [], [], [], []
        for i, client in enumerate(self.clients):
            net = self.received(i)
            z = client.features(net)
            own_h, own_v = statistics(z, client.y, self.classes)
            client.train_head(net, z)
            client.train_body(net, self.centroids)
            own_means, own_counts = centroids_of(client.features(net), client.y, self.classes)
            personal.append(client.accuracy(net))
            h.append(own_h)
            v.append(own_v)
            means.append(own_means)
            counts.append(own_counts)
            bodies.append(copy.deepcopy(net.body.state_dict()))
            heads.append(copy.deepcopy(net.head.state_dict()))

        shares = torch.tensor([float(c.n) for c in self.clients])
        shares /= shares.sum()
        self.body = {k: sum(s * b[k] for s, b in zip(shares, bodies, strict=True)) for k in self.body}
        total = torch.stack(counts).sum(dim=0)
        sums = sum(m * c[:, None] for m, c in zip(means, counts, strict=True))
        self.centroids = sums / total.clamp(min=1)[:, None]
        H, variances = torch.stack(h).double().numpy(), np.array(v)
        for i in range(len(self.clients)):
            alpha = combination_weights(H, variances, i)
            self.heads[i] = {k: sum(float(a) * b[k] for a, b in zip(alpha, heads, strict=True)) for k in heads[i]}
        received = [client.accuracy(self.received(i)) for i, client in enumerate(self.clients)]
        return {"personal": float(np.mean(personal)), "received": float(np.mean(received))}


if __name__ == "__main__":
    torch.manual_seed(0)
    serve(Reference(torch.load(sys.argv[1])).round)
