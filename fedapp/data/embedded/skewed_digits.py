"""The digits as clients with different scanners would have them: feature skew."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.data.dataset import Dataset, Examples
from fedapp.data.embedded.digits import Digits
from fedapp.data.embedded.embedded import Embedded
from fedapp.seeds import generator


class SkewedDigits(Embedded):
    """The digits with feature skew: in a contrast and a brightness of each client's own.

    Client k's images are a_k x + b_k, in training and in test: a_k is drawn log-uniformly from
    [1 / (1 + skew), 1 + skew] and b_k uniformly from [-skew, skew]. Examples are dealt out evenly
    and at random: only what an image looks like differs between clients, as between the five sources
    of digits of Li et al. 2021 (FedBN). `skew = 0` leaves the digits as they are. The column
    ``client`` says whose an example is: use partitioner = "natural" with as many clients.
    """

    name: ClassVar[str] = "skewed-digits"

    clients: int = Field(20, ge=1, le=357, description="Clients that the column client names.")
    skew: float = Field(1.0, ge=0, description="Spread of the clients' contrasts and brightnesses.")

    def load(self) -> Dataset:
        """Return the data set; it is the same for every seed of a run."""
        digits = Digits().load()
        names = tuple(map(str, range(self.clients)))
        splits = {}
        for split in ("train", "test"):
            plain: Examples = getattr(digits, split)
            owner = generator(0, f"skewed-digits-{split}").permutation(len(plain)) % self.clients
            inputs = self._seen(plain.inputs, owner)
            splits[split] = Examples(inputs, plain.targets, {"client": owner}, {"client": names})
        return Dataset(
            name=self.name,
            task=digits.task,
            **splits,
            fingerprint=f"skewed-digits-1-{self.model_dump_json()}",
        )

    def _seen(self, images: NDArray[Any], owner: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the images [n, 1, 8, 8] as their owners [n] see them."""
        drawn = [generator(0, "skewed-digits", 0, k).random(2) for k in range(self.clients)]
        places = 2 * np.stack(drawn) - 1
        contrast, brightness = (1 + self.skew) ** places[:, 0], self.skew * places[:, 1]
        gain, shift = (each[owner, None, None, None] for each in (contrast, brightness))
        return np.asarray(gain * images + shift, np.float32)
