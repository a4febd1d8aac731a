"""Points in the plane."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import Embedded
from fedapp.seeds import generator

CLASSES = 3


class Rings(Embedded):
    """Points in the plane, on three rings around the origin; the class is the ring."""

    name: ClassVar[str] = "rings"

    examples: int = Field(1500, ge=100, description="Points, of which a fifth are for testing.")
    noise: float = Field(0.1, ge=0, description="Deviation of a point's radius from its ring's.")

    def load(self) -> Dataset:
        """Return the data set; it is the same for every seed of a run."""
        rng = generator(0, "rings")
        targets = rng.integers(CLASSES, size=self.examples)
        radius = 1 + targets + self.noise * rng.standard_normal(self.examples)
        angle = rng.uniform(0, 2 * np.pi, self.examples)
        inputs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32)
        test = np.arange(self.examples) % 5 == 0
        return Dataset(
            name=self.name,
            task=Task("vector", (2,), CLASSES),
            train=Examples(inputs[~test], targets[~test]),
            test=Examples(inputs[test], targets[test]),
            fingerprint=f"rings-1-{self.model_dump_json()}",
        )
