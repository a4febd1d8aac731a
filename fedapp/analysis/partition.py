"""Statistics of partitions: label counts, client sizes, and distance from IID."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def label_counts(
    indices: NDArray[np.int64], offsets: NDArray[np.int64], labels: NDArray[Any], num_labels: int
) -> NDArray[np.int64]:
    """Return the client-by-label matrix [K, C]: how many examples of each label a client has.

    Client k holds ``indices[offsets[k] : offsets[k + 1]]``; ``labels`` [n] are the labels
    0 ... C - 1 of all examples, ``num_labels`` is C. The matrix of NIID-Bench (Li et al.
    2022) and of Seo et al. 2024, Figs. 6 and 8.
    """
    num_clients = len(offsets) - 1
    client = np.repeat(np.arange(num_clients), np.diff(offsets))
    cell = client * num_labels + labels[indices]
    counts = np.bincount(cell, minlength=num_clients * num_labels)
    return counts.reshape(num_clients, num_labels)


def total_variation(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each client's total-variation distance to the global label distribution: [K].

    Half the sum over labels of |p_k(c) - p(c)|: 0 for a client with the global label distribution, near
    1 for one whose labels hardly any other client has. The "earth mover's
    distance" of Zhao et al. 2018, section 3.2, is twice that. NaN for a client without examples.
    """
    total = counts.sum()
    sizes = counts.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        distance = counts / sizes
        distance -= counts.sum(axis=0) / total  # in place, for a million clients
        np.abs(distance, out=distance)
    return np.asarray(distance.sum(axis=1) / 2)


def mean_total_variation(counts: NDArray[np.int64]) -> float:
    """Return the mean of :func:`total_variation` over the clients that have examples.

    IID clients are not at 0 either: n_k examples scatter by about sqrt(C / (2 pi n_k)).
    """
    return float(np.nanmean(total_variation(counts)))


def size_ratio(sizes: NDArray[np.int64]) -> float:
    """Return max n_k / min n_k; infinite if a client has no examples."""
    smallest = int(sizes.min())
    return float(sizes.max() / smallest) if smallest else float("inf")


def update_multiplier(sizes: NDArray[np.int64]) -> float:
    """Return (sum n_k^2 / sum n_k) / (N / K): the factor by which unequal sizes increase the updates.

    With E epochs, client k makes n_k E / B updates. Weighted with n_k / N they average to
    sum n_k^2 / N * E / B a round, against N / K * E / B for equal sizes. That is why weighted
    aggregation converges faster on imbalanced data (Seo et al. 2024, section 4.2.2 and Fig. 7).
    Under naive averaging the factor is 1.
    """
    exact = sizes.astype(np.float64)
    return float((exact**2).sum() * len(sizes) / exact.sum() ** 2)


def labels_per_client(counts: NDArray[np.int64]) -> dict[int, int]:
    """Return how many clients have examples of 0, 1, 2 ... different labels, where any do."""
    values, clients = np.unique((counts > 0).sum(axis=1), return_counts=True)
    return dict(zip(values.tolist(), clients.tolist(), strict=True))
