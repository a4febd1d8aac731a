"""Local differential privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedapp.analysis.privacy import REPLACED, Privacy
from fedapp.config.run_config import RunConfig
from fedapp.training.algorithm import ClientContext, ClientExtras, Tensors
from fedapp.training.tensors import add
from strategies._noise import Private, clipped, gaussian, noise_generator


class LocalDP(Private):
    """Each client adds noise to its own clipped update, so that the server does not see it.

    Client k sends Delta_k min(1, S / ||Delta_k||) + N(0, (z S)^2) (the Gaussian mechanism, Dwork
    and Roth 2014, Theorem A.1, on the client). Two clipped updates are at most 2 S apart, so each
    request costs a client a Gaussian mechanism of noise multiplier z / 2. The epsilon given is that of
    the client with the most requests. Scope of epsilon: docs/privacy.md.
    """

    name: ClassVar[str] = "local-dp"

    def privacy(self, config: RunConfig) -> Privacy:
        """Return the cost of one request for its client."""
        return Privacy(
            noise=self.noise / 2,
            rate=1.0,
            adjacency=REPLACED,
            delta=self.delta,
            max_epsilon=self.max_epsilon,
            repeatable=self.entropy == "seed",
            by_client=True,
        )

    def round_randomness(self, context: ClientContext, seed: int, client: int) -> Tensors:
        """Return the noise of this client and round."""
        if not self.noise:
            return {}
        rng = noise_generator(self.entropy, seed, self.name, context.round, client)
        return gaussian(context.global_params, self.noise * self.clip, rng)

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return the clipped Delta_k with its noise."""
        update = add(params, context.global_params, -1.0)
        if self.clip:
            update = clipped(update, self.clip)
        return ClientExtras(update=add(update, context.round_randomness) if self.noise else update)
