"""Whole runs against loops that are written once more, from the papers.

What a run shares with its loop is what is drawn (S_t, the order of the examples, noise) and nothing
else: there parameters are one vector, the network is four lines, and an algorithm is what its paper
prints. Of ten clients that differ in size, one has a single example and one none; some train a
round, in two epochs whose last batches are partial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.config.read import read_config
from fedapp.data.load import load_dataset
from fedapp.seeds import generator
from fedapp.training.build import initial_parameters
from tests.conftest import SMALL, Component, Run
from tests.in_process import metrics, model

Vector = NDArray[np.float64]
Batch = tuple[Tensor, Tensor]

MODEL = '''
from typing import ClassVar

from torch import nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model


class Narrow(Model):
    """A narrow network with a normalisation layer."""

    name: ClassVar[str] = "narrow"
    takes: ClassVar[frozenset[str]] = frozenset({"image"})

    def build(self, task: Task) -> nn.Module:
        layers = (nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 10))
        return nn.Sequential(*layers)
'''
SIZES = (1, 5, 0, 12, 7, 3, 6, 9, 4, 8)
ENDS = np.cumsum([0, *SIZES])
PARTITIONER = f'''
from typing import ClassVar

import numpy as np

from fedapp.data.dataset import Examples, Partition, from_index_sets
from fedapp.data.partition.partitioning import Partitioning


class Uneven(Partitioning):
    """The first examples, in slices."""

    name: ClassVar[str] = "uneven"

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        return from_index_sets(np.split(np.arange({ENDS[-1]}), {ENDS[1:-1].tolist()}))
'''
SEED = 3
"""With C = 0.5 the client without examples trains in rounds 2 and 4, client 3 in 1, 2 and 4."""
BASE: dict[str, Any] = {
    "model": "narrow",
    "partitioner": "uneven",
    "num_clients": len(SIZES),
    "num_server_rounds": 4,
    "seed": SEED,
    "local_epochs": 2,
    "batch_size": 5,
    "learning_rate": 0.3,
    "eval_every": 0,
}
BY_EXAMPLES: dict[str, Any] = {
    "weighting": "examples",
    "learning_rate_decay": 0.8,
    "server_learning_rate": 0.7,
    "weight_decay": 0.05,
    "momentum": 0.5,
}
"""With a rate that falls, client momentum and a server's rate of its own: Option I."""
UNIFORM: dict[str, Any] = {
    "weighting": "uniform",
    "server_learning_rate": 1.0,
    "update": "model",
    "momentum": 0.3,
    "nesterov": True,
}
"""A naive mean of models, of clients with Nesterov's momentum: Option II."""

SHAPES = ((4, 64), (4,), (4,), (4,), (10, 4), (10,))
NORMALISATION = np.arange(4 * 64 + 4, 4 * 64 + 12)
"""Where the vector has the weight and the bias of the third layer."""
TINY = 1e-12
"""What the package adds to norms that divide."""


def network(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits, and what the last layer is given."""
    parts = w.split([math.prod(shape) for shape in SHAPES])
    a, b, scale, shift, c, d = (part.view(s) for part, s in zip(parts, SHAPES, strict=True))
    hidden = torch.tanh(x @ a.T + b)
    variance, mean = torch.var_mean(hidden, 1, correction=0, keepdim=True)
    z = (hidden - mean) / (variance + 1e-5).sqrt() * scale + shift
    return z @ c.T + d, z


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()


def divergence(wanted: Tensor, found: Tensor) -> Tensor:
    """Return the mean KL divergence of the rows' softmax."""
    p, q = wanted.log_softmax(1), found.log_softmax(1)
    return (p.exp() * (p - q)).sum(1).mean()


def slope(objective: Callable[[Tensor], Tensor], w: Vector) -> Vector:
    at = torch.from_numpy(w.copy()).requires_grad_()
    return np.asarray(torch.autograd.grad(objective(at), at)[0].numpy())


def loss_slope(w: Vector, batch: Batch) -> Vector:
    return slope(lambda at: cross_entropy(network(at, batch[0])[0], batch[1]), w)


def mean_slope(w: Vector, batches: Sequence[Batch]) -> Vector:
    """Return the mean over all examples of the batches, at one point."""
    slopes = [loss_slope(w, batch) for batch in batches]
    return np.average(slopes, 0, [len(batch[1]) for batch in batches])


def unit(v: Vector) -> Vector:
    return v / (np.linalg.norm(v) + TINY)


class FedAvg:
    """McMahan et al. 2017, Algorithm 1."""

    def __init__(self, theta: Vector, run: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        self.run = run
        self.own: Mapping[str, float] = own
        self.kept: dict[int, Vector] = {}
        self.state: Any = None
        self.second = np.zeros_like(theta)
        self.round = 0
        self.eta_g: float = run["server_learning_rate"]

    def begin(self, k: int, theta: Vector) -> Vector:
        return theta

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        return loss_slope(w, batch)

    def path(self, k: int, theta: Vector, batches: Sequence[Batch]) -> list[Vector]:
        """Return the start and what each local step comes to."""
        w, velocity, rho = self.begin(k, theta), np.zeros_like(theta), self.run.get("momentum", 0.0)
        path = [w]
        for batch in batches:
            gradient = self.direction(k, w, theta, batch) + self.run.get("weight_decay", 0.0) * w
            velocity = rho * velocity + gradient
            step = gradient + rho * velocity if self.run.get("nesterov") else velocity
            w = w - self.eta * step
            path.append(w)
        return path

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        """Return what client k sends."""
        end = self.path(k, theta, batches)[-1]
        if batches:
            self.keep(k, end, theta)
        return (end - theta,)

    def keep(self, k: int, w: Vector, theta: Vector) -> None: ...

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        """Return the next theta from the means of what the clients sent."""
        return theta + self.eta_g * mean

    def combine(self, sent: Sequence[tuple[Any, ...]], p: Vector) -> list[Any]:
        return [
            sum(w * each for w, each in zip(p, one, strict=True)) for one in zip(*sent, strict=True)
        ]

    def play(self, theta: Vector, cohort: Sequence[int], data: Batch) -> Vector:
        self.round += 1
        decay = self.run.get("learning_rate_decay", 1.0)
        self.eta = self.run["learning_rate"] * decay ** (self.round - 1)
        sizes = np.array([1] * len(SIZES) if self.run["weighting"] == "uniform" else SIZES)
        weights = sizes[cohort].astype(float)
        self.share, self.cohort = weights.sum() / sizes.sum(), cohort
        sent = [self.client(k, theta, self.batches(k, data)) for k in cohort]
        return self.server(theta, *self.combine(sent, weights / weights.sum()))

    def batches(self, k: int, data: Batch) -> list[Batch]:
        rng, n = generator(SEED, "client", self.round, k), SIZES[k]
        size = min(BASE["batch_size"], n)
        found = []
        for _ in range(BASE["local_epochs"] if n else 0):
            order = ENDS[k] + (np.arange(n) if size == n else rng.permutation(n))
            found += [order[at : at + size] for at in range(0, n, size)]
        return [(data[0][index], data[1][index]) for index in found]


class FedSGD(FedAvg):
    """McMahan et al. 2017, section 2."""

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        return (mean_slope(theta, batches) if batches else 0 * theta,)

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        return theta - self.eta_g * self.eta * mean


class FedAvgM(FedAvg):
    """Hsu et al. 2019, section 3."""

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        beta = self.own["momentum"]
        self.second = beta * self.second + mean
        move = mean + beta * self.second if self.own.get("nesterov") else self.second
        return theta + self.eta_g * move


class FedAdam(FedAvg):
    """Reddi et al. 2021, Algorithm 2; ``second`` is m, ``state`` v."""

    def next_v(self, v: Vector, square: Vector) -> Vector:
        return np.asarray(self.own["beta2"] * v + (1 - self.own["beta2"]) * square)

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        tau, beta = self.own["tau"], self.own["beta1"]
        v = np.full_like(theta, tau**2) if self.state is None else self.state
        self.second = beta * self.second + (1 - beta) * mean
        self.state = v = self.next_v(v, mean**2)
        return theta + self.eta_g * self.second / (np.sqrt(v) + tau)


class FedYogi(FedAdam):
    def next_v(self, v: Vector, square: Vector) -> Vector:
        return np.asarray(v - (1 - self.own["beta2"]) * square * np.sign(v - square))


class FedAdagrad(FedAdam):
    def next_v(self, v: Vector, square: Vector) -> Vector:
        return v + square


class FedProx(FedAvg):
    """Li et al. 2020, Eq. 2."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        return loss_slope(w, batch) + self.own["mu"] * (w - theta)


def contributed(steps: int, run: Mapping[str, Any]) -> float:
    """Return how often the ``steps`` local gradients stand in (theta - theta_k) / eta, in all."""
    rho, velocity, total = run.get("momentum", 0.0), 0.0, 0.0
    for _ in range(steps):
        velocity = rho * velocity + 1
        total += 1 + rho * velocity if run.get("nesterov") else velocity
    return total


class FedNova(FedAvg):
    """Wang et al. 2020, section 4."""

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        (update,), steps = super().client(k, theta, batches), contributed(len(batches), self.run)
        return update / (steps or 1.0), steps

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        return theta + self.eta_g * further[0] * mean


class Scaffold(FedAvg):
    """Karimireddy et al. 2020, Algorithm 1; ``second`` is c."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        return loss_slope(w, batch) - self.kept.get(k, 0 * theta) + self.second

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        (update,), before = super().client(k, theta, batches), self.kept.get(k, 0 * theta)
        after = before
        if batches and str(self.own["option"]) == "I":
            after = mean_slope(theta, batches) + self.run.get("weight_decay", 0.0) * theta
        elif batches:
            steps = contributed(len(batches), self.run)
            after = before - self.second - update / (steps * self.eta)
        self.kept[k] = after
        return update, after - before

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        self.second = self.second + self.share * further[0]
        return theta + self.eta_g * mean


class FedDyn(FedAvg):
    """Acar et al. 2021, Algorithm 1; ``second`` is h."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        task = self.task(k, w, batch)
        return task - self.kept.get(k, 0 * theta) + self.own["alpha"] * (w - theta)

    def task(self, k: int, w: Vector, batch: Batch) -> Vector:
        return loss_slope(w, batch)

    def keep(self, k: int, w: Vector, theta: Vector) -> None:
        self.kept[k] = self.kept.get(k, 0 * theta) - self.own["alpha"] * (w - theta)

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        self.second = self.second - self.own["alpha"] * self.share * mean
        return theta + self.eta_g * mean - self.second / self.own["alpha"]


class FedSMOO(FedDyn):
    """Sun et al. 2023, Algorithm 1; ``state`` is s and each mu_k."""

    def task(self, k: int, w: Vector, batch: Batch) -> Vector:
        shared, duals = self.state
        ascent = loss_slope(w, batch) - duals.get(k, 0.0) - shared
        self.last = self.own["rho"] * unit(ascent)
        duals[k] = duals.get(k, 0.0) + self.last - shared
        return loss_slope(w + self.last, batch)

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        self.state, self.last = self.state or (0 * theta, {}), 0 * theta
        (update,) = super().client(k, theta, batches)
        return update, self.state[1].get(k, 0.0) - self.last

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        self.state = self.own["rho"] * unit(further[0]), self.state[1]
        return super().server(theta, mean)


class Moon(FedAvg):
    """Li, He and Song 2021, Eq. 3."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        before = self.kept.get(k, theta)
        near, far = (network(torch.from_numpy(v), batch[0])[1] for v in (theta, before))

        def objective(at: Tensor) -> Tensor:
            logits, z = network(at, batch[0])
            ends = torch.stack(
                [(z * v).sum(1) / (z.norm(dim=1) * v.norm(dim=1)) for v in (near, far)], 1
            )
            contrast = -(ends / self.own["temperature"]).log_softmax(1)[:, 0].mean()
            return cross_entropy(logits, batch[1]) + self.own["mu"] * contrast

        return slope(objective, w)

    def keep(self, k: int, w: Vector, theta: Vector) -> None:
        self.kept[k] = w


class FedBN(FedAvg):
    """Li et al. 2021, Algorithm 1."""

    def begin(self, k: int, theta: Vector) -> Vector:
        w = theta.copy()
        w[NORMALISATION] = self.kept.get(k, theta[NORMALISATION])
        return w

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        (sent,) = super().client(k, theta, batches)
        sent[NORMALISATION] = 0
        return (sent,)

    def keep(self, k: int, w: Vector, theta: Vector) -> None:
        self.kept[k] = w[NORMALISATION]


class FedLC(FedAvg):
    """Zhang et al. 2022, L_Cal, over the classes that the client has."""

    def play(self, theta: Vector, cohort: Sequence[int], data: Batch) -> Vector:
        self.labels = data[1]
        return super().play(theta, cohort, data)

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        has, counts = self.labels[ENDS[k] : ENDS[k + 1]].unique(return_counts=True)
        margin = self.own["tau"] * counts.double() ** -0.25
        targets = torch.searchsorted(has, batch[1])
        return slope(
            lambda at: cross_entropy(network(at, batch[0])[0][:, has] - margin, targets), w
        )


class FedNTD(FedAvg):
    """Lee et al. 2022, section 4."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        others = torch.arange(10) != batch[1][:, None]
        tau, told = self.own["temperature"], network(torch.from_numpy(theta), batch[0])[0]

        def objective(at: Tensor) -> Tensor:
            logits = network(at, batch[0])[0]
            untrue = [(each[others] / tau).view(-1, 9) for each in (told, logits)]
            distilled = tau**2 * divergence(*untrue)
            return cross_entropy(logits, batch[1]) + self.own["beta"] * distilled

        return slope(objective, w)


class FedSAM(FedAvg):
    """Qu et al. 2022, Algorithm 1."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        return loss_slope(w + self.own["rho"] * unit(loss_slope(w, batch)), batch)


class FedSOL(FedAvg):
    """Lee et al. 2024, Algorithm 1; Lambda by columns of the tensors of what has moved."""

    def direction(self, k: int, w: Vector, theta: Vector, batch: Batch) -> Vector:
        if not (w - theta).any():
            return loss_slope(w, batch)
        tau, told = self.own["temperature"], network(torch.from_numpy(theta), batch[0])[0]
        proximal = slope(lambda at: divergence(told / tau, network(at, batch[0])[0] / tau), w)
        return loss_slope(w + self.own["rho"] * self.scale(w - theta) * unit(proximal), batch)

    def scale(self, moved: Vector) -> Vector:
        cuts = np.cumsum([math.prod(shape) for shape in SHAPES])[:-1]
        parts = [p.reshape(s) for p, s in zip(np.split(abs(moved), cuts), SHAPES, strict=True)]
        lengths = [np.maximum(np.linalg.norm(p, axis=0), TINY) for p in parts]
        return np.concatenate([(p / n).ravel() for p, n in zip(parts, lengths, strict=True)])


class FedPA(FedAvg):
    """Al-Shedivat et al. 2021, Algorithms 3 and 4, with Sigma as it is defined."""

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        path = self.path(k, theta, batches)
        length, first = int(self.own["steps-per-sample"]), int(self.own["burn-in"]) + 1
        after = path[first : first + length * int(self.own["samples"])]
        ends = range(length, len(after) + 1, length)
        samples = np.array([np.mean(after[end - length : end], 0) for end in ends])
        if not len(samples):
            return (path[-1] - theta,)
        r = 1 / (1 + (len(samples) - 1) * self.own["rho"])
        spread = np.cov(samples.T) if len(samples) > 1 else 0.0
        sigma = r * np.eye(len(theta)) + (1 - r) * spread
        return (np.linalg.solve(sigma, samples.mean(0) - theta),)


class DPFedAvg(FedAvg):
    """McMahan et al. 2018, Algorithm 1, with the bound of Andrew et al. 2021; ``state`` is S."""

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        (update,) = super().client(k, theta, batches)
        self.state, length = self.state or self.own["initial-clip"], float(np.linalg.norm(update))
        return update * min(1.0, self.state / max(length, TINY)), float(length <= self.state)

    def server(self, theta: Vector, mean: Vector, *further: Vector) -> Vector:
        m, rng, z = len(self.cohort), generator(SEED, "dp-noise", self.round), self.own["noise"]
        expected = 0.5 * len(SIZES)
        count_noise = expected / 20
        z_update = (z**-2 - (2 * count_noise) ** -2) ** -0.5
        drawn = np.concatenate([rng.normal(0, 1, shape).ravel() for shape in SHAPES])
        noised: Vector = (m * mean + drawn * z_update * self.state) / expected
        centred = m * (further[0] - 0.5) + rng.normal(0, count_noise)
        within = 0.5 + centred / expected
        self.state *= math.exp(-self.own["clip-rate"] * (within - self.own["quantile"]))
        return theta + self.eta_g * noised


class LocalDP(FedAvg):
    """Dwork and Roth 2014, Theorem A.1."""

    def client(self, k: int, theta: Vector, batches: Sequence[Batch]) -> tuple[Any, ...]:
        (update,), clip = super().client(k, theta, batches), self.own["clip"]
        rng, length = generator(SEED, "local-dp", self.round, k), float(np.linalg.norm(update))
        drawn = np.concatenate([rng.normal(0, 1, shape).ravel() for shape in SHAPES])
        return (update * min(1.0, clip / max(length, TINY)) + drawn * clip * self.own["noise"],)


class FedMedian(FedAvg):
    """Yin et al. 2018, Definition 1."""

    def rule(self, updates: Vector, p: Vector) -> Vector:
        return np.asarray(np.median(updates, 0))

    def combine(self, sent: Sequence[tuple[Any, ...]], p: Vector) -> list[Any]:
        has = [i for i, k in enumerate(self.cohort) if SIZES[k]]
        return [self.rule(np.array([sent[i][0] for i in has]), p[has])]


class FedTrimmedAvg(FedMedian):
    """Yin et al. 2018, Definition 2."""

    def rule(self, updates: Vector, p: Vector) -> Vector:
        drop = math.floor(self.own["beta"] * len(updates))
        return np.asarray(np.sort(updates, 0)[drop : len(updates) - drop].mean(0))


class MultiKrum(FedMedian):
    """Blanchard et al. 2017, section 4."""

    def best(self, updates: Vector, count: int) -> NDArray[np.int64]:
        squares = ((updates[:, None] - updates[None]) ** 2).sum(2)
        last = len(updates) - int(self.own["num-malicious"]) - 2
        nearest = np.sort(squares, 1)[:, 1 : last + 1]
        return np.argsort(nearest.sum(1))[:count]

    def rule(self, updates: Vector, p: Vector) -> Vector:
        best = self.best(updates, int(self.own["num-selected"]))
        return np.asarray(p[best] @ updates[best] / p[best].sum())


class Krum(MultiKrum):
    def rule(self, updates: Vector, p: Vector) -> Vector:
        return np.asarray(updates[self.best(updates, 1)[0]])


class Bulyan(MultiKrum):
    """El Mhamdi et al. 2018, section 4, after one application of Krum."""

    def rule(self, updates: Vector, p: Vector) -> Vector:
        n, f = len(updates), int(self.own["num-malicious"])
        chosen = updates[self.best(updates, n - 2 * f)]
        order = np.argsort(abs(chosen - np.median(chosen, 0)), 0)[: n - 4 * f]
        return np.asarray(np.take_along_axis(chosen, order, 0).mean(0))


SOME: dict[str, Any] = {"fraction_train": 0.5}
MOST: dict[str, Any] = {"fraction_train": 0.9}
PLAIN: dict[str, Any] = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
NAIVE: dict[str, Any] = {"weighting": "uniform"}
SEEDED: dict[str, Any] = {"entropy": "seed"}
ADAPTIVE: dict[str, Any] = {
    "adaptive": True,
    "initial-clip": 0.5,
    "quantile": 0.3,
    "clip-rate": 0.5,
}
MOMENTS = {"beta1": 0.6, "beta2": 0.7, "tau": 0.01}
DELTA: dict[str, Any] = {"update": "delta"}
"""Of clients that send something else than Option I or II."""
CASES: list[tuple[str, type[FedAvg], dict[str, Any], dict[str, Any]]] = [
    ("fedavg", FedAvg, {}, SOME),
    ("fedsgd", FedSGD, {}, SOME | PLAIN | DELTA | {"local_epochs": 1}),
    ("fedavgm", FedAvgM, {"momentum": 0.6}, SOME),
    ("fedavgm", FedAvgM, {"momentum": 0.6, "nesterov": True}, SOME),
    ("fedadam", FedAdam, MOMENTS, SOME),
    ("fedyogi", FedYogi, MOMENTS, SOME),
    ("fedadagrad", FedAdagrad, {"beta1": 0.3, "tau": 0.01}, SOME),
    ("fedprox", FedProx, {"mu": 0.5}, SOME),
    ("fednova", FedNova, {}, SOME | DELTA),
    ("scaffold", Scaffold, {"option": "I"}, SOME),
    ("scaffold", Scaffold, {"option": "II"}, SOME),
    ("feddyn", FedDyn, {"alpha": 0.3}, SOME),
    ("fedsmoo", FedSMOO, {"alpha": 0.3, "rho": 0.2}, SOME),
    ("moon", Moon, {"mu": 2.0, "temperature": 0.5}, SOME),
    ("fedbn", FedBN, {}, SOME | {"evaluation": "clients"}),
    ("fedlc", FedLC, {"tau": 1.0}, SOME),
    ("fedntd", FedNTD, {"beta": 0.6, "temperature": 3.0}, SOME),
    ("fedsam", FedSAM, {"rho": 0.3}, SOME),
    ("fedsol", FedSOL, {"rho": 1.0, "temperature": 2.0}, SOME),
    ("fedpa", FedPA, {"samples": 2, "steps-per-sample": 2, "burn-in": 1, "rho": 0.5}, SOME | DELTA),
    ("dp-fedavg", DPFedAvg, ADAPTIVE | SEEDED | {"noise": 0.2}, SOME | NAIVE | DELTA),
    ("local-dp", LocalDP, SEEDED | {"clip": 0.3, "noise": 0.2}, SOME | DELTA),
    ("fedmedian", FedMedian, {}, MOST),
    ("fedtrimmedavg", FedTrimmedAvg, {"beta": 0.2}, MOST),
    ("krum", Krum, {"num-malicious": 1}, MOST),
    ("multikrum", MultiKrum, {"num-malicious": 1, "num-selected": 3}, MOST),
    ("bulyan", Bulyan, {"num-malicious": 1}, MOST),
]


@pytest.mark.parametrize("setting", [BY_EXAMPLES, UNIFORM], ids=["examples", "uniform"])
@pytest.mark.parametrize(("name", "kind", "own", "more"), CASES, ids=[case[0] for case in CASES])
def test_a_run_is_the_loop_that_its_paper_prints(
    name: str,
    kind: type[FedAvg],
    own: dict[str, Any],
    more: dict[str, Any],
    setting: dict[str, Any],
    component: Component,
    run: Run,
) -> None:
    component("fedapp.models", "narrow", MODEL)
    component("fedapp.data.partition", "uneven", PARTITIONER)
    settings = BASE | setting | more
    options = {f"{name}.{key}": value for key, value in own.items()}
    folder = run(nodes=2, algorithm=name, **settings, **options)
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    config = read_config({**SMALL, **given})
    dataset = load_dataset(config)
    data = (
        torch.from_numpy(dataset.train.inputs[: ENDS[-1]]).double().flatten(1),
        torch.from_numpy(dataset.train.targets[: ENDS[-1]]).long(),
    )
    theta = flat(initial_parameters(config, dataset.task))
    loop = kind(theta, settings, own)
    for record in metrics(folder)[1:]:
        theta = loop.play(theta, record["clients"], data)
    assert abs(flat(model(folder)) - theta).max() < 1e-10


def flat(params: Mapping[str, Tensor]) -> Vector:
    """Return the parameters as one vector, in the layers' order."""
    names = ("1.weight", "1.bias", "3.weight", "3.bias", "4.weight", "4.bias")
    return np.concatenate([params[name].double().numpy().ravel() for name in names])
