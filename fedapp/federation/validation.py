"""Validation of replies: whatever a node sends is either accepted or a named fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedapp.config.run_config import RunConfig
from fedapp.errors import ConfigError, one_line
from fedapp.federation.arrays import to_tensors
from fedapp.federation.callback import ServerState
from fedapp.federation.faults import Fault, ReplyError
from fedapp.federation.nodes import weights_are_fixed
from fedapp.training.algorithm import Algorithm, ClientContext, Tensors
from fedapp.training.client import ClientMetrics
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import RoundPlan
from fedapp.training.tensors import add, all_finite

ROUNDING = 1e-3
"""Relative rounding error by which a mean may exceed the largest of its numbers."""

MAX_COUNT, MAX_SECONDS = 2**53, 1e9
"""Larger counts are impossible, and not exact as a float."""


@dataclass(frozen=True)
class Expected:
    """What replies of a round are checked against.

    ``sizes`` has n_k by client, ``steps`` the largest number of local steps by client (no bound for a
    client without an entry). ``upload`` has tensors of the names, shapes and types of the algorithm's
    uploads, ``largest`` upper bounds of its scalar uploads. ``update`` is "model" only if theta_k itself
    is sent. ``max_norm`` bounds an update's L2 norm in units of max(|theta|, 1); 0: no bound. ``bound``
    is the algorithm's own. With ``exact`` a weight is n_k, and no less.
    """

    theta: Mapping[str, Tensor]
    sizes: Mapping[int, int]
    steps: Mapping[int, int] = field(default_factory=dict)
    upload: Mapping[str, Tensor] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    weighting: str = "examples"
    update: Literal["delta", "model"] = "delta"
    max_norm: float = 0.0
    bound: float = math.inf
    exact: bool = False

    @classmethod
    def of(
        cls,
        config: RunConfig,
        algorithm: Algorithm,
        plan: RoundPlan,
        state: ServerState,
        upload: Mapping[str, Tensor],
        sizes: Mapping[int, int],
    ) -> Expected:
        """Return what a round with this ``plan`` expects of clients with these ``sizes``."""
        steps = {client: plan.num_steps(size) for client, size in sizes.items()}
        most = max(steps.values(), default=0)
        context = ClientContext({}, momentum=plan.momentum, nesterov=plan.nesterov, steps=most)
        return cls(
            state.theta,
            sizes,
            steps,
            upload,
            algorithm.upload_bounds(context),
            config.weighting,
            plan.update,
            config.max_update_norm,
            algorithm.update_bound(state.algorithm),
            weights_are_fixed(config),
        )


def upload_like(algorithm: Algorithm, context: ClientContext) -> Tensors:
    """Return tensors of the names, shapes and types that ``Algorithm.finalize`` uploads, without values.

    Raises
    ------
    ConfigError
        It raises for a client that took no step.
    """
    try:
        context = replace(context, learning_rate=1.0, state=algorithm.initial_client_state(context))
        randomness = algorithm.round_randomness(context, 0, 0)
        context = replace(context, round_randomness=randomness)
        like = algorithm.finalize(context.global_params, context, 1).upload
        return {name: tensor.to("meta") for name, tensor in like.items()}
    except Exception as error:
        raise ConfigError(
            f"algorithm = {algorithm.name!r}: finalize raises {one_line(repr(error))} for a client that "
            "took no step, whose context.step_state is empty. Return an upload of the same names, shapes "
            "and types for it, too."
        ) from error


def checked_score(score: Score, *, has_accuracy: bool) -> Score | Fault:
    """Return the score, or the fault of one that is impossible."""
    possible = 0 <= score.accuracy <= 1 or (not has_accuracy and math.isnan(score.accuracy))
    if score.count and not (0 < score.count < MAX_COUNT and possible):
        return Fault("malformed", f"it has {one_line(score)}")
    if score.count and not math.isfinite(score.loss):
        return Fault("not-finite", f"its loss is {score.loss}")
    return score


def check_client_metrics(metrics: ClientMetrics, expected: Expected) -> None:
    """Reject impossible counts: a client's weight is at most n_k, or with uniform weighting 0 or 1."""
    size = expected.sizes[metrics.client]
    uniform = expected.weighting == "uniform"
    least = size if expected.exact else 0
    possible = metrics.weight in (0, 1) if uniform else least <= metrics.weight <= size
    if not (possible and 0 <= metrics.examples <= size):
        raise ReplyError(
            "weight",
            f"client {metrics.client} has weight {metrics.weight} and examples {metrics.examples}, "
            f"but holds {size}",
        )
    most = expected.steps.get(metrics.client, MAX_COUNT)
    if not (0 <= metrics.steps <= most and 0 <= metrics.seconds <= MAX_SECONDS):
        raise ReplyError(
            "malformed",
            f"client {metrics.client} has steps {metrics.steps} (at most {most}) "
            f"and seconds {metrics.seconds}",
        )
    if math.isinf(metrics.loss) or (metrics.steps and math.isnan(metrics.loss)):
        raise ReplyError("not-finite", f"client {metrics.client} has the loss {metrics.loss}")


def checked_update(name: str, arrays: Mapping[str, ArrayRecord], expected: Expected) -> Tensors:
    """Return the update of a record, checked also for its norm."""
    tensors = checked_tensors(name, arrays, expected.theta)
    step = tensors if expected.update == "delta" else add(tensors, expected.theta, -1.0)
    check_norm(name, step, expected)
    if expected.bound == math.inf:
        return tensors
    if not (size := _norm(step, torch.float64)) <= expected.bound * (1 + ROUNDING):
        raise ReplyError(
            "norm",
            f"{name}: an update of norm {size:.3g}, above the algorithm's bound {expected.bound:.3g}",
        )
    return tensors


def check_norm(
    name: str, step: Mapping[str, Tensor], expected: Expected, rate: float = 1.0
) -> None:
    """Reject an update whose norm is too large; ``rate`` scales what has the units of a gradient."""
    if not expected.max_norm:
        return
    largest = expected.max_norm * max(_norm(expected.theta), 1.0)
    if not (size := rate * _norm(step)) <= largest:
        quantity = "an update of norm" if rate == 1 else "learning-rate * norm ="
        raise ReplyError(
            "norm",
            f"{name}: {quantity} {size:.3g}, above {largest:.3g} = max-update-norm * max(|theta|, 1); "
            "where training diverges, a smaller learning-rate, or clip-norm",
        )


def check_bounds(uploads: Mapping[str, Tensor], largest: Mapping[str, float]) -> None:
    """Reject a scalar upload beyond its bound."""
    for name, bound in largest.items():
        if not 0 <= (value := float(uploads[name])) <= bound * (1 + ROUNDING):
            raise ReplyError("norm", f"uploads: {name!r} is {value:.3g}, not in 0 .. {bound:.3g}")


def _norm(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> float:
    """Return the L2 norm over all tensors; infinite if its square overflows in ``dtype``, or theirs."""
    norms = [torch.linalg.vector_norm(tensor, dtype=dtype) for tensor in tensors.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms).double()))


def checked_tensors(
    name: str, arrays: Mapping[str, ArrayRecord], theta: Mapping[str, Tensor]
) -> Tensors:
    """Return a record's tensors, with the names, shapes and types of ``theta``, and finite."""
    if name not in arrays:
        raise ReplyError("malformed", f"the record {name!r} is missing")
    if arrays[name].keys() != theta.keys():
        names = sorted(arrays[name].keys() ^ theta.keys())
        owner = "the algorithm's" if name == "uploads" else "the model's"
        raise ReplyError("tensors", f"{name}: other arrays than {owner}: {one_line(names[:4])}")
    tensors = to_tensors(arrays[name])
    for key, tensor in tensors.items():
        if tensor.shape != theta[key].shape:
            raise ReplyError(
                "tensors",
                f"{name}: {key!r} has shape {tuple(tensor.shape)}, not {tuple(theta[key].shape)}",
            )
        if tensor.dtype != theta[key].dtype:
            raise ReplyError(
                "tensors", f"{name}: {key!r} has type {tensor.dtype}, not {theta[key].dtype}"
            )
    if not all_finite(tensors.values()):
        names = sorted(key for key, tensor in tensors.items() if not all_finite([tensor]))
        raise ReplyError("not-finite", f"{name}: {names[0]!r} holds nan or infinite values")
    return {key: tensors[key] for key in theta}
