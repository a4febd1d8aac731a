"""Power-of-choice: of a few random clients, those with the largest loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from fedapp.config.run_config import RunConfig
from fedapp.federation.samplers.sampler import Candidates, Sampler
from fedapp.federation.sampling import over_selected


class PowerOfChoice(Sampler):
    """Of d candidates in proportion to n_k, the m with the largest loss (Cho et al. 2020, section 3).

    The candidates are asked for F_k(theta) by a message before the round. With uniform weights.
    """

    name: ClassVar[str] = "power-of-choice"
    needs_uniform_weights: ClassVar[bool] = True
    may_be_few: ClassVar[bool] = True
    asks: ClassVar[bool] = True

    candidates: int = Field(
        0, ge=0, description="Candidates a round, d. 0: twice as many as are sampled."
    )

    def sample(self, candidates: Candidates) -> list[int]:
        """Return the candidates with the largest losses; those that do not answer are left out."""
        asked = candidates.drawn_by_size(self.candidates or 2 * candidates.number)
        losses = candidates.losses(asked)
        by_loss = sorted(losses, key=lambda client: (-losses[client], client))
        return sorted(by_loss[: candidates.number])

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield also the error of fewer candidates than clients that train."""
        yield from super().config_errors(config)
        sampled = over_selected(config.fraction_train, config.num_clients, config.over_selection)
        if config.num_clients and 0 < self.candidates < sampled:
            yield (
                f"power-of-choice.candidates = {self.candidates}: {sampled} clients are chosen of so "
                "many (max(floor(fraction-train * num-clients), 1), and over-selection). Raise it, or "
                "lower fraction-train or over-selection."
            )
