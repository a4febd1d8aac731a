"""A federated quadratic, the first test of every algorithm."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import Embedded
from fedapp.seeds import generator

MATRIX = np.array([[4.0, 1.0], [1.0, 3.0]])
VECTOR = np.array([1.0, 2.0])
STRONG_CONVEXITY = (7 - 5**0.5) / 2
"""m, the smallest eigenvalue of A: f is m-strongly convex."""
SMOOTHNESS = (7 + 5**0.5) / 2
"""M, the largest eigenvalue of A: f is M-smooth."""
OPTIMUM = np.array([1 / 11, 7 / 11])
"""A^-1 b, where f has its minimum, -15/22."""

GRID = 2.0**-12
"""Deviations are multiples of this, so that they cancel exactly, in float32 too."""

Array = NDArray[np.float64]


class Quadratic(Embedded):
    """f(x) = x'Ax / 2 - b'x with A = [[4, 1], [1, 3]] and b = (1, 2), split over clients.

    An example is a function (A_i, b_i): [2, 3], A_i beside b_i. Client k's examples have the mean
    (A_k, b_k), and the mean over all examples is exactly (A, b), so that the optimum (1/11, 7/11)
    and its value -15/22 do not depend on the parameters. Clients 2j and 2j + 1 deviate to opposite
    sides; with ``size-ratio`` r the second has r times the examples and 1/r of the deviation. The
    column ``client`` is the client of an example: use partitioner = "natural". The test example is
    (A, b), so that the test loss is f.
    """

    name: ClassVar[str] = "quadratic"

    clients: int = Field(10, ge=1, description="Clients that the column client names.")
    examples: int = Field(4, ge=1, description="Examples of a client.")
    size_ratio: int = Field(
        1, ge=1, le=16, description="Size of every second client over the first."
    )
    heterogeneity: float = Field(1.0, ge=0, description="Spread of the clients' b_k.")
    curvature: float = Field(
        0.0, ge=0, le=0.9, description="Spread of the clients' A_k; below 1 all are convex."
    )
    noise: float = Field(0.0, ge=0, description="Spread of the b_i within a client.")

    def load(self) -> Dataset:
        """Return the data set; float64."""
        shifts = self._shifts()
        sizes = np.where(np.arange(self.clients) % 2, self.size_ratio, 1) * self.examples
        if self.clients % 2:
            sizes[-1] = self.examples
        owner = np.repeat(np.arange(self.clients), sizes)
        inputs = np.concatenate([MATRIX, VECTOR[:, None]], axis=1) + shifts[owner]
        inputs[:, :, 2] += self._noise(owner)
        mean = np.concatenate([MATRIX, VECTOR[:, None]], axis=1)[None]
        names = tuple(map(str, range(self.clients)))
        # The test example belongs to no client.
        test = Examples(mean, _zeros(1), {"client": _zeros(1) - 1}, {"client": names})
        train = Examples(inputs, _zeros(len(owner)), {"client": owner}, {"client": names})
        return Dataset(
            name="quadratic",
            task=Task("quadratic", (2, 3), 1),
            train=train,
            test=test,
            fingerprint=f"quadratic-1-{self.model_dump_json()}",
        )

    def _shifts(self) -> Array:
        """Return how each client deviates from (A, b): [K, 2, 3], opposite within each pair."""
        rng = generator(0, "quadratic")
        pairs = self.clients // 2
        vectors = self.heterogeneity * rng.standard_normal((pairs, 2, 1))
        # ||D|| <= m keeps A +- 0.9 D positive definite.
        angles = rng.uniform(0, 2 * np.pi, pairs)
        cos, sin = np.cos(angles), np.sin(angles)
        matrices = self.curvature * STRONG_CONVEXITY * np.array([[cos, sin], [sin, -cos]])
        shift = np.concatenate([matrices.transpose(2, 0, 1), vectors], axis=2)
        shift = np.round(shift / GRID / self.size_ratio) * GRID
        paired = np.stack([shift * self.size_ratio, -shift], axis=1).reshape(2 * pairs, 2, 3)
        return np.concatenate([paired, np.zeros((self.clients % 2, 2, 3))])

    def _noise(self, owner: NDArray[np.int64]) -> Array:
        """Return how each b_i deviates from its client's: [n, 2], cancelling within a client."""
        rng = generator(0, "quadratic-noise")
        noise = np.zeros((len(owner), 2))
        for client in range(self.clients if self.noise else 0):
            members = np.flatnonzero(owner == client)
            half = len(members) // 2
            values = np.round(self.noise * rng.standard_normal((half, 2)) / GRID) * GRID
            noise[members[:half]], noise[members[half : 2 * half]] = values, -values
        return noise


def _zeros(n: int) -> NDArray[Any]:
    return np.zeros(n, dtype=np.int64)
