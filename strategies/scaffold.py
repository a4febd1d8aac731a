"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    ClientExtras,
    Differentiate,
    ServerStep,
    Tensors,
    mean_update,
)
from fedapp.training.batches import TARGETS, gradient_sum
from fedapp.training.tensors import add, part, scaled, zeros_like
from strategies.fednova import accumulation_norm


class Scaffold(Algorithm):
    """Control variates correct the drift of each local step: g - c_k + c.

    Karimireddy et al. 2020 (ICML), Algorithm 1 with Eqs. 3 to 5. All variates start at zero, as in the
    authors' experiments (c_k = g_k(x_0), as in the theory, would need a round of all clients first).
    The paper's server adds |S| / N times the mean of c_k+ - c_k to c; implementations that divide by
    |S| make c too large if few clients take part. Here the factor is the participating share of the
    weight: |S| / N with uniform weighting, and with weighting by examples sum of n_k over S / n, so that
    c is the weighted mean of all c_k. Option II: c_k+ = c_k - c + (x - y_k) / (K eta), the mean local
    gradient. With momentum, K is replaced by ||a_k||_1, as in FedNova. Weight decay is the gradient of a
    term of the loss; clip-norm is an error, since the result would not be a mean gradient. The server's
    learning rate is server-learning-rate.
    """

    name: ClassVar[str] = "scaffold"
    keeps_state: ClassVar[bool] = True
    keeps_mean: ClassVar[bool] = True

    option: Literal["I", "II"] = Field(
        "II",
        description="c_k: 'I' the gradient at theta (twice the work), 'II' the mean local one.",
    )

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the error of clipped gradients with Option II."""
        if self.option == "II":
            because = "with option='II' c_k - c + (theta - theta_k) / (K eta) is the mean gradient"
            yield from config.clipping_errors(because, "scaffold.option='I'")

    def initial_client_state(self, context: ClientContext) -> Tensors:
        """Return c_k = 0."""
        return zeros_like(context.global_params)

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return g(y) - c_k + c; with Option I also g(x), for ``step_state``."""
        gradient, loss = differentiate(params, batch)
        direction = add(add(gradient, context.state, -1.0), context.broadcast)
        if self.option == "I":
            at_theta, _ = differentiate(context.global_params, batch)
            direction |= gradient_sum("at-theta", at_theta, batch, loss.dtype)
        return direction, loss

    def step_state(
        self, params: Mapping[str, Tensor], direction: Tensors, context: ClientContext
    ) -> Tensors:
        """Return the sum of the targets' gradients at theta, and their number (Option I)."""
        at_theta_sum = {name: g for name, g in direction.items() if name not in params}
        return add(at_theta_sum, context.step_state) if context.step_state else at_theta_sum

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return c_k+ to keep and c_k+ - c_k to send; c_k and 0 of a client without examples."""
        if self.option == "I" and context.step_state:
            count = context.step_state[TARGETS].clamp(min=1)
            variate = scaled(part("at-theta", context.step_state), 1 / count)
            variate = add(variate, context.global_params, context.weight_decay)
        else:
            drift = add(context.global_params, params, -1.0)
            norm = accumulation_norm(next(iter(params.values())), context, steps)
            mean = scaled(drift, 1 / (norm.clamp(min=1) * context.learning_rate))
            variate = add(add(context.state, context.broadcast, -norm.clamp(max=1)), mean)
        return ClientExtras(upload=add(variate, context.state, -1.0), state=variate)

    def start(self, theta: Mapping[str, Tensor]) -> Tensors:
        """Return c = 0."""
        return zeros_like(theta)

    def broadcast(self, state: Mapping[str, Tensor]) -> Tensors:
        """Return c."""
        return dict(state)

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return x + eta_g * mean of y_k - x, and c + share * mean of c_k+ - c_k."""
        update = mean_update(theta, mean, step)
        return add(theta, update, step.server_learning_rate), add(state, upload, step.share)
