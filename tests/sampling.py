"""The sample of a round, without a run."""

from __future__ import annotations

from collections.abc import Sequence

from fedapp.federation.sampling import over_selected, sample_clients
from fedapp.seeds import generator


def uniform_sample(
    seed: int, round_: int, clients: Sequence[int], fraction: float, extra: float = 0.0
) -> list[int]:
    """Return S_t of uniform sampling; ``extra`` is the over-selection."""
    number = over_selected(fraction, len(clients), extra)
    return sample_clients(lambda: generator(seed, "sample", round_), clients, number)
