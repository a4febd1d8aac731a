"""FedSGD with gradients sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedapp.training.algorithm import (
    Algorithm,
    Batch,
    ClientContext,
    ClientExtras,
    Differentiate,
    ServerStep,
    Tensors,
)
from fedapp.training.batches import TARGETS, gradient_sum
from fedapp.training.tensors import add, part, scaled, zeros_like


class FedSGD(Algorithm):
    """Clients send the gradient of their mean loss at theta; the server takes the step.

    McMahan et al. 2017, section 2: w <- w - eta sum of n_k / n g_k, with n the examples of the sampled
    clients and g_k the gradient of all n_k examples, computed once: E is 1, and so is u. B only divides
    the computation: the gradients of a client's batches, all at theta, are averaged, weighted by their
    numbers of targets. The settings of local steps (local-steps, batch-sampling, momentum, nesterov,
    weight-decay, clip-norm) and another E would have no effect, and are errors.
    """

    name: ClassVar[str] = "fedsgd"
    custom_update: ClassVar[bool] = True
    one_gradient: ClassVar[bool] = True

    def gradient(
        self,
        differentiate: Differentiate,
        params: Mapping[str, Tensor],
        batch: Batch,
        context: ClientContext,
    ) -> tuple[Tensors, Tensor]:
        """Return a direction of zero, and the batch's gradient at theta for ``step_state``."""
        gradient, loss = differentiate(context.global_params, batch)
        return zeros_like(gradient) | gradient_sum("sum", gradient, batch, loss.dtype), loss

    def step_state(
        self, params: Mapping[str, Tensor], direction: Tensors, context: ClientContext
    ) -> Tensors:
        """Return the sum of the targets' gradients, and their number."""
        summed = {name: tensor for name, tensor in direction.items() if name not in params}
        return add(summed, context.step_state) if context.step_state else summed

    def finalize(
        self, params: Mapping[str, Tensor], context: ClientContext, steps: int | Tensor
    ) -> ClientExtras:
        """Return g_k in place of an update."""
        if not context.step_state:
            return ClientExtras(update=zeros_like(params))
        size = context.step_state[TARGETS].clamp(min=1)
        return ClientExtras(update=scaled(part("sum", context.step_state), 1 / size))

    def apply(
        self,
        theta: Mapping[str, Tensor],
        mean: Tensors,
        upload: Tensors,
        state: Tensors,
        step: ServerStep,
    ) -> tuple[Tensors, Tensors]:
        """Return theta - eta_g * eta * mean gradient."""
        return add(theta, mean, -step.server_learning_rate * step.plan.learning_rate), state
