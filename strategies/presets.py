"""Methods from gradient descent to federated averaging, as settings.

Most methods before FedAvg are FedAvg with some of its settings fixed (Seo et al. 2024, section 2;
McMahan et al. 2017, section 2). ``fedapp run`` takes the settings in this form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedapp.config.run_config import Scalar


@dataclass(frozen=True)
class Preset:
    """A method as run-config settings; others (eta, rounds) are free."""

    name: str
    source: str
    settings: Mapping[str, Scalar]
    description: str


ONE_STEP: Mapping[str, Scalar] = {"local-epochs": 1, "batch-size": 0}
ALL_CLIENTS: Mapping[str, Scalar] = {"fraction-train": 1.0}
CENTRAL: Mapping[str, Scalar] = {"num-clients": 1, **ALL_CLIENTS}
RANDOM_BATCHES: Mapping[str, Scalar] = {
    **ALL_CLIENTS,
    "batch-sampling": "uniform",
    "weighting": "uniform",
}

PRESETS = (
    Preset(
        "Gradient descent", "Seo Eq. 1", {**CENTRAL, **ONE_STEP}, "A round is a step on all data."
    ),
    Preset(
        "SGD",
        "Seo section 2",
        {**CENTRAL, "local-epochs": 1, "batch-size": 1},
        "A round is a pass over the data, one example a step.",
    ),
    Preset(
        "Mini-batch SGD",
        "Seo section 2",
        {**CENTRAL, "local-epochs": 1, "batch-size": 50},
        "A round is a pass over the data. Seo's centralised baseline has B = 500, eta = 0.005.",
    ),
    Preset(
        "Centralised SGD, a round an update",
        "McMahan section 3",
        {**CENTRAL, "local-steps": 1, "batch-size": 100, "batch-sampling": "uniform"},
        "McMahan's baseline for CIFAR-10: every mini-batch update counts as a round.",
    ),
    Preset(
        "Parallel SGD",
        "Seo Algorithm 1",
        {**RANDOM_BATCHES, "local-steps": 1, "batch-size": 50},
        "Every device steps once on a random mini-batch; uniform mean.",
    ),
    Preset(
        "Local SGD",
        "Seo Algorithm 2",
        {**RANDOM_BATCHES, "local-steps": 10, "batch-size": 50, "update": "model"},
        "I = local-steps random mini-batches between synchronisations: Seo's text has I local "
        "epochs, its Algorithm 2 I steps.",
    ),
    Preset(
        "FedSGD",
        "McMahan section 2",
        {"algorithm": "fedsgd", **ONE_STEP},
        "Gradients are sent; with algorithm='fedavg' models are, and the step is the same.",
    ),
    Preset(
        "Large-batch synchronous SGD",
        "McMahan sections 1, 2",
        {**ONE_STEP, **ALL_CLIENTS},
        "C = 1: a step on the gradient of all clients' data.",
    ),
    Preset(
        "FedAvg, Option I",
        "Seo Algorithm 3",
        {"update": "delta"},
        "Updates are sent; server-learning-rate applies.",
    ),
    Preset("FedAvg, Option II", "McMahan Algorithm 1", {"update": "model"}, "Models are sent."),
    Preset(
        "Naive averaging",
        "Seo section 4.2.2",
        {"weighting": "uniform"},
        "All clients have the same weight.",
    ),
    Preset(
        "One-shot averaging",
        "McMahan section 1",
        {**ALL_CLIENTS, "num-server-rounds": 1, "local-epochs": 20},
        "All clients train to the end; their models are averaged once.",
    ),
    Preset(
        "Heavy ball on the clients",
        "Polyak 1964",
        {"momentum": 0.9},
        "Starts anew in every round.",
    ),
    Preset(
        "Nesterov on the clients",
        "notes",
        {"momentum": 0.9, "nesterov": True},
        "Starts anew in every round.",
    ),
    Preset(
        "Heavy ball on the server",
        "Hsu et al. 2019",
        {"algorithm": "fedavgm", "fedavgm.momentum": 0.9},
        "FedAvgM.",
    ),
    Preset(
        "Nesterov's accelerated gradient, federated",
        "notes",
        {
            "algorithm": "fedavgm",
            "fedavgm.momentum": 0.9,
            "fedavgm.nesterov": True,
            **ONE_STEP,
            **ALL_CLIENTS,
        },
        "One full-batch local step a round: the method on the whole objective.",
    ),
)
