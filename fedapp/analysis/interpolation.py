"""Models on the line through two others (McMahan et al. 2017, Figure 1; Goodfellow et al. 2015)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def interpolate(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Return share * first + (1 - share) * second; shares outside [0, 1] lie beyond the models."""
    return {name: share * first[name] + (1 - share) * second[name] for name in first}
