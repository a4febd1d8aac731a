"""From a configuration to a device, a trainer and an evaluator."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from fedapp.config import RunConfig
from fedapp.data import Examples, Task, load_transform, network_task
from fedapp.errors import ConfigError
from fedapp.models.base import Model, initialise
from fedapp.training.algorithm import Algorithm, Tensors
from fedapp.training.evaluation import Evaluator
from fedapp.training.sequential import SequentialTrainer

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def choose_device(config: RunConfig) -> torch.device:
    """Return the device that ``device`` names; ``auto`` is the first GPU, where there is one.

    Raises
    ------
    ConfigError
        A GPU is asked for that this process does not see.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(config.device)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {config.device!r}: this process sees {torch.cuda.device_count()} GPUs. "
            "Set device='auto' or 'cpu'; in Flower's simulation give each client a share of the "
            'GPU with --federation-config "client-resources-num-gpus=0.25".'
        )
    return device


def make_model(config: RunConfig) -> Model:
    """Return the model component that ``config`` names."""
    return cast("Model", config.component("model"))


def make_algorithm(config: RunConfig, task: Task | None = None) -> Algorithm:
    """Return the algorithm that ``config`` names, with its hyper-parameters.

    Raises
    ------
    ConfigError
        ``task`` lacks what the algorithm needs.
    """
    algorithm = cast("Algorithm", config.component("algorithm"))
    if task is not None:
        algorithm.require_fit(task)
    return algorithm


def make_module(config: RunConfig, task: Task) -> nn.Module:
    """Return the network with its seeded initial weights, in the run's precision, on the CPU."""
    module = initialise(make_model(config), network_task(config, task), config.seed)
    return module.to(DTYPES[config.precision])


def initial_parameters(config: RunConfig, task: Task) -> Tensors:
    """Return theta_0, a function of the seed, the model and the task alone."""
    module = make_module(config, task)
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def make_trainer(config: RunConfig, task: Task) -> SequentialTrainer:
    """Return the trainer that ``config`` names."""
    return SequentialTrainer(
        make_module(config, task),
        make_model(config),
        make_algorithm(config, task),
        load_transform(config),
        choose_device(config),
        DTYPES[config.precision],
        task.num_classes,
    )


def make_evaluator(config: RunConfig, task: Task, examples: Examples) -> Evaluator:
    """Return an evaluator whose examples stay on the run's device."""
    return Evaluator(
        make_module(config, task),
        make_model(config),
        examples,
        load_transform(config),
        choose_device(config),
        DTYPES[config.precision],
    )
