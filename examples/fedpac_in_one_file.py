"""FedPAC in one file: Xu, Tong, Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration", ICLR 2023. Plain torch, to be read from top to bottom; nothing of the fedpac package is used.

    python examples/fedpac_in_one_file.py

Twenty sites hold handwritten digits. They come in five groups, and each group gives the digits other labels: what one
group calls 3, the next calls 4. One model for all cannot be right. But all sites can share a *body*, which turns an
image into features, and each site can build its *head*, which turns features into labels, from the heads of sites that
label as it does. Nobody tells FedPAC who is in which group: it finds out from statistics of the features.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

# ----------------------------------------------------------------------------------------------------------------------
# The settings. The paper's, but for a larger rate and smaller batches of the body: a site has 60 images, not 600.
# ----------------------------------------------------------------------------------------------------------------------

LAM = 1.0  # how strongly features are pulled to their global centroids
HEAD_LR = 0.1  # the head learns for one epoch,
LR, EPOCHS = 0.05, 5  # then the body for five
MOMENTUM, WEIGHT_DECAY, BATCH = 0.5, 5e-4, 10
CUTOFF = 1e-3  # smaller combination weights are set to zero


# ----------------------------------------------------------------------------------------------------------------------
# What a site does in a round. It never sends a sample: only its body, its head, and averages of features.
# ----------------------------------------------------------------------------------------------------------------------


def visit(body, head, centroids, x, y, classes, head_batches, body_batches):
    """Train from what the server sent; returns what the site sends back."""
    body, head = copy.deepcopy(body), copy.deepcopy(head)
    z = body(x).detach()
    answer = {"n": len(y), **statistics(z, y, classes)}  # of the features of the body that everybody received

    # 1. The head, with the body held fixed.
    sgd(head.parameters(), HEAD_LR, head_batches, lambda index: F.cross_entropy(head(z[index]), y[index]))

    # 2. The body, with the head held fixed. From the second round on there are global centroids c, and the loss pulls
    #    each sample's features to the centroid of its class: the same class then looks the same at every site.
    c = None if centroids is None else targets(centroids, answer["means"].float())

    def loss(index):
        f = body(x[index])
        value = F.cross_entropy(head(f), y[index])
        return value if c is None else value + LAM * F.mse_loss(f, c[y[index]])

    sgd(body.parameters(), LR, body_batches, loss)

    counts, means = class_means(body(x).detach(), y, classes)  # with the new body, for the next centroids
    return {**answer, "body": body, "head": head, "centroids": (counts, means.float())}


def sgd(parameters, lr, batches, loss):
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    for index in batches:
        for p, gradient in zip(parameters, torch.autograd.grad(loss(index), parameters), strict=True):
            p.grad = gradient
        optimizer.step()


def class_means(z, y, classes):
    """How many samples of each class there are, and their mean features (zero for a class without samples)."""
    counts = torch.bincount(y, minlength=classes)
    sums = torch.zeros(classes, z.shape[1], dtype=torch.float64).index_add_(0, y, z.double())
    return counts, sums / counts.clamp(min=1).unsqueeze(1)


def statistics(z, y, classes):
    """What the server must know to weigh heads: h(k) = P(k) mu(k), and the variance V of estimating it."""
    counts, means = class_means(z, y, classes)
    share = counts.double() / len(y)
    h = share.unsqueeze(1) * means
    variance = z.double().square().sum(1).mean() - h.square().sum()
    return {"h": h.flatten(), "V": float(variance), "means": means}


def targets(centroids, own):
    """The global centroid of each class, or the site's own mean for a class that nobody has sent yet."""
    counts, means = centroids
    return torch.where((counts > 0).unsqueeze(1), means, own)


# ----------------------------------------------------------------------------------------------------------------------
# What the server does in a round.
# ----------------------------------------------------------------------------------------------------------------------


def merge(body, centroids, answers):
    """The shared body and centroids, a head for each site, and the weights it is made with."""
    n = torch.tensor([a["n"] for a in answers], dtype=torch.float64)
    body = combined([a["body"] for a in answers], n / n.sum())
    alpha = combination_weights(torch.stack([a["h"] for a in answers]), torch.tensor([a["V"] for a in answers]) / n)
    heads = [combined([a["head"] for a in answers], row) for row in alpha]
    return body, heads, merged_centroids(centroids, [a["centroids"] for a in answers]), alpha


def combined(modules, weights):
    """A module whose parameters are the weighted sums of the others'."""
    result = copy.deepcopy(modules[0])
    with torch.no_grad():
        for p, *others in zip(result.parameters(), *(m.parameters() for m in modules), strict=True):
            p.copy_(sum(float(w) * other for w, other in zip(weights, others, strict=True)))
    return result


def merged_centroids(last, new):
    """The mean over all samples of a class, wherever they are; a class that nobody has now keeps its last one."""
    counts = torch.stack([c for c, _ in new])
    sums = (counts.unsqueeze(2) * torch.stack([m for _, m in new]).double()).sum(0)
    total = counts.sum(0)
    means = (sums / total.clamp(min=1).unsqueeze(1)).float()
    if last is None:
        return total, means
    return torch.where(total > 0, total, last[0]), targets((total, means), last[1])


def combination_weights(h, v):
    """Row i is the alpha that makes site i's combined head best, in expectation, on site i's own data:

        minimise over the simplex   | h_i - sum_j alpha_j h_j |^2  +  sum_j alpha_j^2 v_j

    The first term is the bias of learning from sites whose data differ, the second the variance of learning from few
    samples. All rows are found together, by accelerated projected gradient descent.
    """
    h = h - h.mean(0)  # only differences matter
    gram = h @ h.T
    hessian = gram + torch.diag(v)
    step = 1 / torch.linalg.eigvalsh(hessian)[-1]
    alpha = ahead = torch.eye(len(h), dtype=torch.float64)
    for k in range(20_000):
        new = onto_simplex(ahead - step * (ahead @ hessian - gram))
        moved = (new - alpha).abs().max()
        ahead = new + k / (k + 3) * (new - alpha)
        alpha = new
        if moved < 1e-9:
            break
    alpha = torch.where(alpha < CUTOFF, 0.0, alpha)
    return alpha / alpha.sum(1, keepdim=True)


def onto_simplex(rows):
    """The nearest point of which all parts are positive and sum to one, for each row."""
    ordered = rows.sort(dim=1, descending=True).values
    excess = ordered.cumsum(1) - 1
    place = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    last = (ordered - excess / place > 0).sum(1, keepdim=True)
    return (rows - excess.gather(1, last - 1) / last).clamp(min=0)


# ----------------------------------------------------------------------------------------------------------------------
# All rounds.
# ----------------------------------------------------------------------------------------------------------------------


def shuffled(n, epochs, generator):
    """The batches of some epochs, as indices of samples."""
    return [index for _ in range(epochs) for index in torch.randperm(n, generator=generator).split(BATCH)]


def fedpac(sites, body, head, classes, rounds, batches, after=lambda *_: None):
    """sites: (x, y) of each. batches(i, t, part, n, epochs): those of site i in round t for its 'head' or 'body'."""
    heads, centroids, alpha = [head] * len(sites), None, None
    for t in range(1, rounds + 1):
        answers = []
        for i, (x, y) in enumerate(sites):
            drawn = batches(i, t, "head", len(y), 1), batches(i, t, "body", len(y), EPOCHS)
            answers.append(visit(body, heads[i], centroids, x, y, classes, *drawn))
        body, heads, centroids, alpha = merge(body, centroids, answers)
        after(t, body, heads, alpha)
    return body, heads, centroids, alpha


# ----------------------------------------------------------------------------------------------------------------------
# Try it.
# ----------------------------------------------------------------------------------------------------------------------


def digits(sites=20, groups=5, train=60, test=40, seed=0):
    """(x, y, x_test, y_test) of each site. Group g gives the label (digit + g) modulo 10."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    found = []
    for i in range(sites):
        mine = order[(torch.arange(train + test) + i * (train + test)) % len(y)]
        shifted = (y[mine] + i % groups) % 10
        found.append((x[mine[:train]], shifted[:train], x[mine[train:]], shifted[train:]))
    return found


def main(rounds=20):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sites, generator = digits(), torch.Generator().manual_seed(1)
    body, head = nn.Sequential(nn.Linear(64, 128), nn.ReLU()), nn.Linear(128, 10)

    def batches(i, t, part, n, epochs):
        return shuffled(n, epochs, generator)

    def after(t, body, heads, alpha):
        right = [(h(body(x)).argmax(1) == y).float().mean() for h, (_, _, x, y) in zip(heads, sites, strict=True)]
        alike = sum(float(alpha[i, j]) for i in range(len(sites)) for j in range(len(sites)) if i % 5 == j % 5)
        print(f"round {t:2}   accuracy {100 * sum(right) / len(right):5.1f} %   "
              f"weight inside a site's own group {100 * alike / len(sites):5.1f} %")  # fmt: skip

    fedpac([(x, y) for x, y, _, _ in sites], body, head, 10, rounds, batches, after)


if __name__ == "__main__":
    main()
