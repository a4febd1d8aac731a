"""Statistics of partitions: numbers that a reader can derive by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedapp.analysis.partition import (
    label_counts,
    labels_per_client,
    mean_total_variation,
    size_ratio,
    total_variation,
    update_multiplier,
)
from fedapp.data.partition.partitioning import log_normal_shares, shares_to_sizes
from fedapp.seeds import generator


def test_label_counts():
    labels = np.array([0, 1, 2, 0, 1, 2])
    counts = label_counts(np.array([0, 3, 5, 1]), np.array([0, 3, 3, 4]), labels, 3)
    assert counts.tolist() == [[2, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert labels_per_client(counts) == {0: 1, 1: 1, 2: 1}


def test_total_variation_of_two_clients_with_one_label_each():
    # Globally 3/4 and 1/4: |1 - 3/4| + |0 - 1/4| over 2 is 1/4 for the first, 3/4 for the second.
    counts = np.array([[3, 0], [0, 1]])
    assert total_variation(counts).tolist() == [0.25, 0.75]
    assert mean_total_variation(counts) == 0.5


def test_equal_distributions_have_no_distance_and_empty_clients_do_not_count():
    counts = np.array([[2, 4], [1, 2], [0, 0]])
    assert mean_total_variation(counts) == pytest.approx(0, abs=1e-12)
    assert math.isnan(total_variation(counts)[2])
    assert mean_total_variation(np.array([[3, 0], [0, 1], [0, 0]])) == 0.5


def test_size_ratio():
    assert size_ratio(np.array([10, 90])) == 9
    assert size_ratio(np.array([0, 90])) == math.inf


def test_update_multiplier_of_seos_example():
    # 10 and 90 examples: (100 + 8100) / 100 = 82 updates instead of 50 (Seo et al. 2024, 4.2.2).
    assert update_multiplier(np.array([10, 90])) == pytest.approx(82 / 50)
    assert update_multiplier(np.array([50, 50])) == 1


def test_mean_multiplier_of_log_normal_sizes():
    # Ten clients at sigma = 0.9: 1.77 on average over draws.
    draws = [
        update_multiplier(
            shares_to_sizes(log_normal_shares(generator(seed, "multiplier"), 10, 0.9), 50_000, 1)
        )
        for seed in range(1_000)
    ]
    assert np.mean(draws) == pytest.approx(1.77, abs=0.05)
    assert 1 < min(draws) < 1.3
    assert max(draws) > 2.5
