"""FederatedAveraging (McMahan et al. 2017, Algorithm 1) in plain PyTorch and NumPy.

    python examples/fedavg.py

trains the 2NN on scikit-learn's handwritten digits, split IID over 20 clients, of which half train a
round. The names are the paper's: K clients, a fraction C of them a round, E local epochs on batches of
B, learning rate eta. Every random draw is a function of (seed, purpose, round, client).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]
Data = tuple[Tensor, Tensor]  # inputs [n, ...] and labels [n]


def draws(seed: int, purpose: str, t: int = 0, k: int = 0) -> np.random.Generator:
    """Return the random generator of a purpose, a round t and a client k."""
    number = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
    return np.random.default_rng((seed, number, t, k))


def loss_of(model: nn.Module, w: Weights, batch: Data) -> Tensor:
    """Return l(w; b), the mean cross-entropy of a batch: a scalar."""
    inputs, labels = batch
    return nn.functional.cross_entropy(functional_call(model, w, inputs), labels)


def client_update(
    model: nn.Module, w: Weights, data: Data, rng: np.random.Generator, E: int, B: int, eta: float
) -> Weights:
    """ClientUpdate(k, w): E epochs of SGD on client k's data, in batches of B."""
    inputs, labels = data
    for _ in range(E):  # shuffled in each epoch; Algorithm 1 splits the data once, before them
        for batch in torch.from_numpy(rng.permutation(len(labels))).split(B):
            w = {name: tensor.detach().requires_grad_() for name, tensor in w.items()}
            loss = loss_of(model, w, (inputs[batch], labels[batch]))
            gradient = torch.autograd.grad(loss, list(w.values()))
            w = {name: w[name] - eta * g for name, g in zip(w, gradient, strict=True)}
    return {name: tensor.detach() for name, tensor in w.items()}


def fedavg(
    model: nn.Module,
    w: Weights,
    clients: Sequence[Data],
    *,
    C: float,
    E: int,
    B: int,
    eta: float,
    seed: int = 0,
) -> Iterator[Weights]:
    """Yield w_0, w_1, ...: the server's part of Algorithm 1."""
    K = len(clients)
    m = max(int(C * K + 1e-9), 1)  # 0.29 * 100 is 28.999999999999996
    t = 0
    while True:
        yield w
        t += 1
        # S_t <- (random set of m clients)
        chosen = draws(seed, "sample", t).choice(K, m, replace=False, shuffle=False)
        S = sorted(chosen.tolist()) if m < K else range(K)
        # for each client k in S_t in parallel: w_{t+1}^k <- ClientUpdate(k, w_t)
        local = {
            k: client_update(model, w, clients[k], draws(seed, "client", t, k), E, B, eta)
            for k in S
        }
        # w_{t+1} <- sum over k in S_t of n_k / m_t w_{t+1}^k, m_t the examples of the chosen clients
        # (footnote 4: the first printing summed over all K clients)
        n = {k: len(clients[k][1]) for k in S}
        total = sum(n.values())
        w = {name: sum((n[k] / total * local[k][name] for k in S), 0 * w[name]) for name in w}


def two_nn(inputs: int, classes: int) -> nn.Sequential:
    """Return the "2NN": two hidden layers of 200 units with ReLU."""
    layers = (nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(200, classes))


def main(rounds: int = 20, K: int = 20) -> None:
    """Train, and print the test accuracy of every fifth round."""
    pixels, digits = load_digits(return_X_y=True)
    order = torch.from_numpy(draws(0, "partition").permutation(len(digits)))
    inputs, labels = torch.from_numpy(pixels).float()[order] / 16, torch.from_numpy(digits)[order]
    test, train = order.new_tensor(range(357)), order.new_tensor(range(357, len(order)))
    clients = [(inputs[part], labels[part]) for part in train.tensor_split(K)]
    torch.manual_seed(0)
    model = two_nn(64, 10)
    w_0 = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for t, w in enumerate(fedavg(model, w_0, clients, C=0.5, E=5, B=10, eta=0.2)):
        if t % 5 == 0:
            correct = functional_call(model, w, inputs[test]).argmax(1) == labels[test]
            print(f"round {t}: test accuracy {correct.double().mean():.3f}")
        if t == rounds:
            return


if __name__ == "__main__":
    main()
