"""Clients that are available at some times only."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from fedapp.config.run_config import RunConfig
from fedapp.errors import ConfigError
from fedapp.federation.samplers.sampler import Candidates, Sampler
from fedapp.federation.sampling import sample_clients
from fedapp.files import as_path
from fedapp.seeds import generator


class Availability(Sampler):
    """m of the clients that are available: each for a part of every period, or as a file says.

    Without a file client k is available in round t if (t + phase_k) mod period < share * period, where
    its phase is uniform in [0, period): as devices that charge at night, each in a time zone of its own.
    These are share * period rounds of every period, rounded up or down for each client.
    If fewer than m are available, all of them train.
    """

    name: ClassVar[str] = "availability"
    may_be_few: ClassVar[bool] = True

    period: int = Field(24, ge=1, description="Rounds of a day.")
    share: float = Field(0.5, gt=0, le=1, description="Share of a day that a client is available.")
    trace: str = Field(
        "",
        description="CSV file of 0 and 1, a row a client and a column a round, repeated. Empty: none.",
    )

    _trace: NDArray[np.bool_] | None = PrivateAttr(None)

    def sample(self, candidates: Candidates) -> list[int]:
        """Return a uniform sample of the available clients."""
        clients = self.available(candidates.seed, candidates.round, candidates.clients)
        return sample_clients(candidates.rng, clients, candidates.number)

    def available(self, seed: int, round_: int, clients: Sequence[int]) -> Sequence[int]:
        """Return the clients that are available in a round."""
        if self._trace is not None:
            return np.flatnonzero(self._trace[:, (round_ - 1) % self._trace.shape[1]]).tolist()
        phases = self.period * generator(seed, "availability").random(len(clients))
        times = (round_ + phases) % self.period
        return np.flatnonzero(times < self.share * self.period).tolist()

    def run_identity(self) -> dict[str, Any]:
        """Return the parameters, with a digest of the trace; raises ConfigError if it cannot be read."""
        if not self.trace:
            return super().run_identity()
        digest = hashlib.sha256(str(_read(self.trace)).encode()).hexdigest()
        return {**super().run_identity(), "trace": digest[:12]}

    def prepare(self, config: RunConfig) -> None:
        """Read the trace."""
        if not self.trace:
            return
        rows = _read(self.trace)
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ConfigError(
                f"availability.trace = {self.trace!r}: its rows differ in length. Each needs a 0 or 1 "
                "for every round."
            )
        if len(rows) != config.num_clients:
            raise ConfigError(
                f"availability.trace = {self.trace!r}: has {len(rows)} rows, one a client, and "
                f"num-clients = {config.num_clients}. Set num-clients={len(rows)}, or give another file."
            )
        self._trace = np.array(rows, dtype=bool)

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the errors of settings without effect beside a trace, and of nodes that are clients."""
        fields = type(self).model_fields
        unused = [n for n in ("period", "share") if getattr(self, n) != fields[n].default]
        if self.trace and unused:
            yield (
                f"availability.{unused[0]} = {getattr(self, unused[0])}: has no effect, because "
                "availability.trace says who is available. Leave one of them out."
            )
        if not self.trace and self.share * self.period < 1 - 1e-9:  # 1/49 * 49 is less than 1
            yield (
                f"availability.share = {self.share:g}: of {self.period} rounds (availability.period) it "
                "is less than one, so that some clients would never be available. Set it to "
                f"{math.ceil(1e3 / self.period) / 1e3:g} or more."
            )
        if not config.num_clients:
            yield (
                "sampler = 'availability': is for virtual clients. With num-clients = 0 the clients are "
                "the nodes, which are available while they are connected. Set sampler='uniform'."
            )


def _read(trace: str) -> list[list[int]]:
    """Return the rows of a file of 0 and 1.

    Raises
    ------
    ConfigError
        There is no such file, or it holds something else; the message names the row and the column.
    """
    key = f"availability.trace = {trace!r}"
    try:
        with as_path(trace, key).open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{key}: cannot be read ({error}). Name a CSV file of 0 and 1."
        ) from error
    for number, row in enumerate(rows, start=1):
        for column, text in enumerate(row, start=1):
            if text.strip() not in ("0", "1"):
                raise ConfigError(
                    f"{key}: row {number}, column {column}, is {text!r}. Each must be 0 or 1, without a "
                    "header."
                )
    if not rows:
        raise ConfigError(f"{key}: is empty. It needs a row of 0 and 1 for each client.")
    return [[int(text) for text in row] for row in rows]
