"""What is measured: the workloads W0 to W5, each a few settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar

ROUND = 2
"""The round that every turn runs again, so that every row trains the same clients."""


@dataclass(frozen=True)
class Workload:
    """A run whose rounds are timed.

    ``data`` is a folder under FEDAPP_DATA; ``stand_in`` are the settings without it, if any will do.
    """

    title: str
    settings: Mapping[str, Scalar]
    data: str = ""
    stand_in: Mapping[str, Scalar] = field(default_factory=dict)

    def values(self, run_dir: str, threads: int, steps: int = 0) -> dict[str, Scalar] | None:
        """Return the run-config, with at most ``steps`` local steps (0: all); None without data."""
        folder = Path(os.environ.get("FEDAPP_DATA") or os.devnull) / self.data
        data = {"dataset": str(folder)} if self.data and folder.is_dir() else self.stand_in
        if self.data and not data:
            return None
        limited = {"local-epochs": 5, "local-steps": steps} if steps else {}
        return {
            "threads": threads,
            "run-dir": run_dir,
            "device": "cpu",
            "eval-every": 0,
            "local-epochs": 1,
            **self.settings,
            **data,
            **limited,
        }

    def config(self, run_dir: str, threads: int, steps: int = 0) -> RunConfig | None:
        """Return the configuration, or None without data."""
        values = self.values(run_dir, threads, steps)
        return None if values is None else read_config(values)


MCMAHAN = {"num-clients": 100, "fraction-train": 0.1, "batch-size": 10, "learning-rate": 0.1}
DIGITS = {"dataset": "digits"}

WORKLOADS = {
    "W1": Workload(
        "2NN, K = 100, C = 0.1, E = 1, B = 10", {**MCMAHAN, "model": "2nn"}, "mnist", DIGITS
    ),
    "W2": Workload(
        "MNIST CNN, K = 100, C = 0.1, E = 1, B = 10", {**MCMAHAN, "model": "mnist-cnn"}, "mnist"
    ),
    "W3": Workload(
        "Seo's CNN, 10 clients of 5,000, C = 0.2, E = 1, B = 50",
        {
            "model": "seo-cnn",
            "num-clients": 10,
            "fraction-train": 0.2,
            "batch-size": 50,
            "learning-rate": 0.05,
        },
        "cifar10",
    ),
    "W4": Workload(
        "pfl-research's CIFAR-10: 1,000 clients of 50, 50 a round, E = 1, B = 10",
        {
            "model": "pfl-cnn",
            "num-clients": 1000,
            "fraction-train": 0.05,
            "batch-size": 10,
            "learning-rate": 0.1,
        },
        "cifar10",
    ),
    "W5": Workload(
        "char-LSTM, 100 roles of Shakespeare, C = 0.1, E = 1, B = 10",
        {
            "model": "char-lstm",
            "partitioner": "natural",
            "num-clients": 100,
            "fraction-train": 0.1,
            "batch-size": 10,
            "learning-rate": 1.0,
        },
        "shakespeare",
    ),
}


def idle(clients: int) -> Workload:
    """Return W0 with K = ``clients``, of whom 10 take part and do nothing."""
    return Workload(
        f"clients that do nothing, K = {clients:,}, 10 a round",
        {
            "model": "quadratic",
            "dataset": "quadratic",
            "quadratic.clients": clients,
            "quadratic.examples": 1,
            "partitioner": "natural",
            "num-clients": clients,
            "fraction-train": 10 / clients,
            "batch-size": 1,
        },
    )
