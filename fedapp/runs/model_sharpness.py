"""The sharpness of a finished run's model: Seo et al. 2024, section 6."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedapp.analysis.loss_landscape import (
    direction,
    flatten,
    hessian_product,
    largest_eigenvalue,
    rise,
    value_at,
)
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Dataset, Examples
from fedapp.data.load import load_transform
from fedapp.errors import ConfigError
from fedapp.models.peephole import PeepholeLSTM
from fedapp.runs.directory import RunDirectory
from fedapp.runs.metrics import read_metrics
from fedapp.runs.saved_model import (
    final_weights,
    load_data,
    read_unchanged,
    require_weights_of,
)
from fedapp.runs.stored_run import round_of_model
from fedapp.seeds import generator
from fedapp.training.batches import to_device
from fedapp.training.build import DTYPES, make_model, make_module, require_whole_model
from fedapp.training.device import choose_device, set_memory_format, to_memory_format
from fedapp.training.evaluation import sample_examples
from fedapp.training.networks import PureNetwork

BATCH_SIZE = 250
"""Examples a batch, which bounds the memory of the graph of second derivatives."""


@dataclass(frozen=True)
class Measurement:
    """Settings of the measurement.

    ``examples`` of the training set are sampled with the run's seed (0: all of them). The rise of the
    loss is measured at ``distance`` times the norm of theta, in ``directions`` random directions.
    """

    examples: int = 1000
    distance: float = 0.1
    directions: int = 10


@dataclass(frozen=True)
class Sharpness:
    """The sharpness of theta after ``round``, on ``examples`` of the training set.

    ``loss`` is their mean loss and ``eigenvalue`` the largest eigenvalue of its Hessian, from power
    iteration with ``products`` Hessian-vector products; some eigenvalue lies within ``error`` of it.
    ``length`` is the norm of theta, and ``rise`` the increase of the loss at ``distance`` times this
    norm, averaged over ``directions`` random directions.
    """

    round: int
    examples: int
    loss: float
    eigenvalue: float
    error: float
    products: int
    length: float
    distance: float
    directions: int
    rise: float


class TrainingLoss:
    """The mean loss on fixed examples as a function of the parameters, as a sum over batches."""

    def __init__(self, config: RunConfig, dataset: Dataset, examples: Examples) -> None:
        device, dtype = choose_device(config), DTYPES[config.precision]
        module = make_module(config, dataset.task).to(device).eval()
        format_ = set_memory_format(module)
        model, transform = make_model(config), load_transform(config)
        self.network = PureNetwork(module, model)
        inputs, targets = to_device(examples, device)
        self.batches = [
            (to_memory_format(transform.test(batch, dtype), format_), wanted)
            for batch, wanted in zip(
                inputs.split(BATCH_SIZE), targets.split(BATCH_SIZE), strict=True
            )
        ]
        with torch.no_grad():
            params = dict(module.named_parameters())
            counts = [
                int(model.num_correct(self.network.outputs(params, batch), wanted)[1])
                for batch, wanted in self.batches
            ]
        self.shares = [count / max(sum(counts), 1) for count in counts]

    def __call__(self, params: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield each batch's mean loss, times its share of the targets."""
        for (inputs, targets), share in zip(self.batches, self.shares, strict=True):
            yield share * self.network.loss(self.network.outputs(params, inputs), targets)


def sharpness_of(folder: Path, settings: Measurement, dataset: str = "") -> Sharpness:
    """Measure the sharpness of the final model of the run in ``folder``.

    ``dataset`` replaces the run's own, for data that have moved.

    Raises
    ------
    CheckpointError
        There is no run, or it has no final model of its network, or that has other code now.
    ConfigError
        The data are not those of the run, the clients keep a part of the model, or its network has no
        second derivatives.
    """
    config, _ = read_unchanged(folder, "model", "transform")
    directory = RunDirectory(folder)
    theta = final_weights(directory)
    data = load_data(folder, dataset)
    because = "Sharpness is measured of whole models: of a run with algorithm='fedavg', say."
    require_whole_model(config, data.task, because=because)
    module = make_module(config, data.task)
    require_weights_of(module, theta, directory)
    if any(isinstance(layer, PeepholeLSTM) for layer in module.modules()):
        raise ConfigError(
            f"model = {config.model!r}: its LSTM has no second derivatives, and sharpness is measured by "
            "them. Measure runs of another model."
        )
    examples = sample_examples(data.train, settings.examples or len(data.train), config.seed)
    terms = TrainingLoss(config, data, examples)
    return _measure(terms, theta, config, settings, len(examples), last_round(folder))


def _measure(
    terms: TrainingLoss,
    theta: Mapping[str, Tensor],
    config: RunConfig,
    settings: Measurement,
    examples: int,
    round_: int,
) -> Sharpness:
    names = dict(terms.network.module.named_parameters())
    theta = {name: theta[name].to(tensor) for name, tensor in names.items()}
    length = float(flatten(theta.values()).double().norm())
    step = settings.distance * length
    directions = (
        direction(theta, generator(config.seed, "sharpness", 0, number))
        for number in range(1, settings.directions + 1)
    )
    rises = [rise(terms, theta, step * each) for each in directions]
    start = direction(theta, generator(config.seed, "sharpness"))
    largest = largest_eigenvalue(hessian_product(terms, theta), start)
    return Sharpness(
        round=round_,
        examples=examples,
        loss=value_at(terms, theta),
        eigenvalue=largest.value,
        error=largest.error,
        products=largest.products,
        length=length,
        distance=settings.distance,
        directions=settings.directions,
        rise=float(np.mean(rises)),
    )


def last_round(folder: Path) -> int:
    """Return the round of the final model of a run, which may have been continued since.

    A model of 0.2.0 does not say it; then it is the last round of the metrics.
    """
    directory = RunDirectory(folder)
    if round_ := round_of_model(directory.model):
        return int(round_.split()[0])
    rows = read_metrics(directory.metrics)
    return int(rows[-1]["round"]) if rows else 0


COLUMNS = ("run", "round", "training loss", "largest eigenvalue", "±", "|θ|", "rise of the loss")


def as_row(name: str, sharpness: Sharpness) -> list[str]:
    """Return the numbers in the columns ``COLUMNS``, as text."""
    numbers = (
        sharpness.loss,
        sharpness.eigenvalue,
        sharpness.error,
        sharpness.length,
        sharpness.rise,
    )
    return [name, str(sharpness.round), *(f"{number:.3g}" for number in numbers)]
