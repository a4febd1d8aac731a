"""FedPA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.config.settings import no_effect
from fedapp.training.algorithm import Algorithm, ClientContext, ClientExtras, Tensors
from fedapp.training.tensors import add, scaled

DONE = "number/steps"
"""Name of the number of steps in the step state, which no parameter has."""


class FedPA(Algorithm):
    """Posterior averaging: clients send Sigma_k^-1 (mu_k - theta) of samples of local SGD.

    Al-Shedivat et al. 2021 (ICLR), Algorithms 3 and 4: after ``burn-in`` local steps, the mean of
    each ``steps-per-sample`` iterates is a sample of client k's posterior; mu is the samples' mean
    and Sigma the shrinkage estimate r I + (1 - r) S with r = 1 / (1 + (l - 1) rho), S the sample
    covariance of l samples. The paper solves for the update by a recursion in l; here it is
    computed with the Woodbury identity, (Delta - rho U (I + rho U'U)^-1 U'Delta) / r with U the centred
    samples and Delta = mu - theta. ``steps-per-sample = 0`` divides the steps after the burn-in
    equally among the samples (rounded down, at least 1); steps after the last sample are not used.
    A client with steps for fewer samples uses those, and l is their number; one with too few for a
    sample sends theta_k - theta, as all clients do in the first ``burn-in-rounds``.
    """

    name: ClassVar[str] = "fedpa"
    custom_update: ClassVar[bool] = True

    samples: int = Field(5, ge=1, description="Samples a client, l.")
    steps_per_sample: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Local steps averaged to a sample; 0: a round's, divided among the samples.",
    )
    burn_in: int = Field(0, ge=0, le=1_000_000, description="Local steps before the first sample.")
    burn_in_rounds: int = Field(0, ge=0, description="First rounds of plain federated averaging.")
    rho: float = Field(0.01, ge=0, description="Shrinkage: 0 takes the covariance as I.")

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the error of a shrinkage of one sample, which has no covariance."""
        if self.samples == 1 and self.rho != type(self).model_fields["rho"].default:
            because = "fedpa.samples is 1. Set fedpa.samples=5"
            yield no_effect("fedpa.rho", self.rho, because)

    def round_randomness(self, context: ClientContext, seed: int, client: int) -> Tensors:
        """Return the number of steps per sample in this round."""
        shared = max((context.steps - self.burn_in) // self.samples, 1)
        first = next(iter(context.global_params.values()))
        return {"length": first.new_full((), self.steps_per_sample or shared)}

    def step_state(
        self, params: Mapping[str, Tensor], direction: Tensors, context: ClientContext
    ) -> Tensors:
        """Return the samples so far {name: [l, ...]} and the number of steps, this one included."""
        first = next(iter(params.values()))
        done = context.step_state[DONE] if context.step_state else torch.zeros_like(first.sum())
        length = context.round_randomness["length"]
        sample = torch.div(done - self.burn_in, length, rounding_mode="floor")
        chosen = torch.arange(self.samples, device=first.device) == sample
        sums = {n: _along_first(chosen, p) * p / length for n, p in params.items()}
        if context.step_state:
            sums = add(sums, context.step_state)
        return sums | {DONE: done + 1}

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return Sigma^-1 (mu - theta) in place of the update."""
        drift = add(params, context.global_params, -1.0)
        if context.round <= self.burn_in_rounds or not context.step_state:
            return ClientExtras(update=drift)
        after_burn_in = context.step_state[DONE] - self.burn_in
        numbers = torch.arange(1, self.samples + 1, device=after_burn_in.device)
        complete = (numbers * context.round_randomness["length"] <= after_burn_in).to(
            after_burn_in.dtype
        )
        count = complete.sum()
        samples = {
            name: _along_first(complete, p) * context.step_state[name] for name, p in params.items()
        }
        mean = {name: t.sum(0) / count.clamp(min=1) for name, t in samples.items()}
        centred = {n: _along_first(complete, m) * (samples[n] - m) for n, m in mean.items()}
        delta = add(mean, context.global_params, -1.0)
        update = scaled(self._whiten(centred, delta), 1 + (count - 1) * self.rho)
        return ClientExtras(
            update={n: torch.where(count > 0, u, drift[n]) for n, u in update.items()}
        )

    def _whiten(self, centred: Tensors, delta: Tensors) -> Tensors:
        """Return Delta - rho U (I + rho U'U)^-1 U'Delta, for U' = ``centred`` {name: [l, ...]}."""
        rows = torch.cat([u.reshape(len(u), -1) for u in centred.values()], 1)
        along = rows @ torch.cat([delta[name].flatten() for name in centred])
        gram = torch.eye(len(rows), dtype=rows.dtype, device=rows.device) + self.rho * rows @ rows.T
        weights = self.rho * torch.linalg.solve(gram, along)
        return {n: d - torch.tensordot(weights, centred[n], 1) for n, d in delta.items()}


def _along_first(values: Tensor, like: Tensor) -> Tensor:
    """Return ``values`` [l] with as many further dimensions as ``like`` has."""
    return values.view(-1, *[1] * like.dim())
