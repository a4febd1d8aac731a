"""The privacy ledger: a line a round in ``privacy.jsonl``, written before its requests are sent."""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from fedapp.analysis.privacy import Privacy
from fedapp.config.run_config import RunConfig
from fedapp.errors import CheckpointError, ConfigError, RunError
from fedapp.federation.callback import Ledger, RoundMetrics
from fedapp.files import append_or_restore, flush_to_disk, read_json_lines, write_atomically
from fedapp.runs.callbacks import RESUME
from fedapp.runs.directory import read_settings
from fedapp.training.algorithm import algorithm_of

LEDGER_FILE = "privacy.jsonl"


def privacy_spent(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Return what a private run has spent, with the rounds after its last checkpoint; else nothing.

    Epsilon is None if it is infinite.
    """
    privacy = algorithm_of(config).privacy(config)
    if privacy is None or not (folder / LEDGER_FILE).exists():
        return {}
    _, run_info = read_settings(folder)
    ledger = PrivacyLedger(folder, privacy, len(run_info.get("clients", range(config.num_clients))))
    ledger.read()
    spent = ledger.round_metrics()
    return {**spent, "epsilon": None if math.isnan(spent["epsilon"]) else spent["epsilon"]}


class PrivacyLedger(Ledger):
    """The charges of a private run, and the epsilon that they add up to.

    A charge is a line ``{"round": t, "q": q, "noise": z}`` for one round, or, with ``"clients"``, for one
    request to each of these. Unless the noise is repeatable, a round that is run again after a resume is
    charged again.
    """

    def __init__(self, folder: Path, privacy: Privacy, num_clients: int) -> None:
        self.path = folder / LEDGER_FILE
        self.privacy, self.num_clients = privacy, num_clients
        self.rounds = 0
        self._requests: Counter[int] = Counter()

    def start(self, algorithm: str) -> None:
        """Start the ledger of a new run of an algorithm.

        Raises
        ------
        ConfigError
            One charge costs more than ``max-epsilon``.
        """
        one, most = self.privacy.after(1, self.num_clients), self.privacy.max_epsilon
        if most and one > most:
            by_client = self.privacy.by_client
            charge, lower = ("request", "") if by_client else ("round", ", or lower fraction-train")
            raise ConfigError(
                f"{algorithm}.max-epsilon = {most:g}: one {charge} alone costs epsilon = {one:.4g} at "
                f"delta = {self.privacy.delta_of(self.num_clients):.3g}. Raise it or {algorithm}.noise"
                f"{lower}."
            )
        write_atomically(self.path, b"")

    def resume(self, last: int) -> None:
        """Read the ledger of a run that is resumed after round ``last``.

        Raises
        ------
        CheckpointError
            There is no ledger, or a line of it is damaged.
        """
        if not self.path.exists():
            raise CheckpointError(
                f"{self.path.parent} holds a private run without {LEDGER_FILE}, so the privacy that "
                "it has spent is not known. Restore a copy of it, or start another run, in another "
                "run-dir."
            )
        charges = [c for c in self._read() if not (self.privacy.repeatable and c["round"] > last)]
        write_atomically(self.path, "".join(json.dumps(c) + "\n" for c in charges).encode())
        for charge in charges:
            self._count(charge)

    def read(self) -> None:
        """Count the charges on disk."""
        for charge in self._read():
            self._count(charge)

    def _read(self) -> list[RoundMetrics]:
        """Return the charges; a last line that was cut off is of requests that were never sent."""
        return read_json_lines(
            self.path,
            lambda charge: operator.index(charge["round"]),
            "Without it the privacy that the run has spent is not known: restore a copy, or start "
            "another run, in another run-dir.",
        )

    def log_guarantee(self) -> None:
        """Log the privacy guarantee of the run, or why there is none."""
        privacy, delta = self.privacy, self.privacy.delta_of(self.num_clients)
        if privacy.noise == 0:
            log(WARNING, "Not private: the noise is 0, so epsilon is infinite")
        if privacy.repeatable:
            log(
                WARNING,
                "Not private: entropy is 'seed'. Every node, and everybody who reads the configuration, "
                "knows the seed and can generate the noise, and a round that is run again with other "
                "replies has the same noise. Set entropy='system'",
            )
        log(
            INFO,
            "Privacy: neighbours are runs that %s, of K = %d; delta = %.3g; %s costs epsilon = %.4g",
            privacy.adjacency,
            self.num_clients,
            delta,
            "a request" if privacy.by_client else "a round",
            privacy.after(1, self.num_clients),
        )
        if privacy.rate == 1 and not privacy.by_client:
            log(
                INFO,
                "fraction-train = 1: every client takes part in every round; sampling adds no privacy",
            )

    def allows(self, clients: Callable[[], Sequence[int]]) -> bool:
        """Return whether the next round, with these ``clients``, stays within ``max-epsilon``."""
        if not self.privacy.max_epsilon:
            return True
        spent = self.spent
        if self.privacy.by_client:
            spent = max((self._requests[client] for client in clients()), default=0)
        return self.privacy.after(spent + 1, self.num_clients) <= self.privacy.max_epsilon

    def charge(self, round_: int, clients: Sequence[int]) -> None:
        """Record a round, or a request to each of ``clients``, before any request is sent.

        Raises
        ------
        RunError
            The ledger cannot be written, so no request may be sent.
        """
        charge: dict[str, Any] = {
            "round": round_,
            "q": self.privacy.rate,
            "noise": self.privacy.noise,
        }
        if self.privacy.by_client:
            charge["clients"] = list(clients)
        try:
            append_or_restore(self.path, json.dumps(charge) + "\n")
            flush_to_disk(self.path)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written ({error.strerror}), and round {round_} may not start "
                f"before it is charged. Free disk space, {RESUME}."
            ) from error
        self._count(charge)

    def _count(self, charge: RoundMetrics) -> None:
        self.rounds += 1
        self._requests.update(charge.get("clients", ()))

    @property
    def spent(self) -> int:
        """The number of charges: of rounds, or of requests to the client with the most of them."""
        if self.privacy.by_client:
            return max(self._requests.values(), default=0)
        return self.rounds

    def round_metrics(self) -> RoundMetrics:
        """Return epsilon, delta and the adjacency, for the round's metrics."""
        epsilon = self.privacy.after(self.spent, self.num_clients)
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else math.nan,
            "delta": self.privacy.delta_of(self.num_clients),
            "adjacency": self.privacy.adjacency,
        }
