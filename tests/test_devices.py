"""On a GPU, pretended here: nothing on another device, no wait within a graph, few between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedapp.config.read import read_config
from fedapp.data.dataset import Task
from fedapp.data.node_data import read_node_data
from fedapp.data.transforms.cifar24 import Cifar24
from fedapp.data.transforms.normalise import Normalise
from fedapp.data.transforms.transform import Scale, Transform
from fedapp.models.mlp import Linear
from fedapp.models.model import Model, initialise
from fedapp.training.algorithm import ClientContext
from fedapp.training.batched.chunks import ClientBatching
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.build import initial_parameters, make_algorithm, make_trainer
from fedapp.training.client import TrainReply, TrainRequest, train_cohort
from fedapp.training.evaluation import Evaluator
from fedapp.training.round_plan import RoundPlan
from fedapp.training.trainer import ClientTask
from strategies.fedavg import FedAvg
from tests.conftest import Component
from tests.fake_gpu import GPU, fake_gpu
from tests.test_algorithms import settings
from tests.test_models import SMALL
from tests.test_trainers import drawn

SOME = (
    ("fedavg", "sequential"),
    ("scaffold", "sequential"),
    ("scaffold", "alone"),
    pytest.param("moon", "together", marks=pytest.mark.slow),
    pytest.param("fedbn", "sequential", marks=pytest.mark.slow),
)
"""Algorithms with and without a state and a broadcast, and who executes them."""

KINDS: dict[str, dict[str, Any]] = {
    "sequential": {"trainer": "sequential"},
    "alone": {"trainer": "batched", "clients-together": 1},
    "together": {"trainer": "batched", "clients-together": 3},
}


class InMemory:
    """States of clients, which lie on the CPU as they do on a disk."""

    def __init__(self) -> None:
        self.kept: dict[int, dict[str, Tensor]] = {}

    def read(self, client: int, like: object) -> dict[str, Tensor] | None:
        return self.kept.get(client)

    def write(self, client: int, state: dict[str, Tensor]) -> None:
        self.kept[client] = {name: tensor.detach().cpu() for name, tensor in state.items()}


def two_rounds(values: dict[str, Any], clients: int) -> TrainReply:
    """Return the second round's reply of clients that keep their states."""
    config = read_config(values)
    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    trainer, theta = make_trainer(config, task), initial_parameters(config, task)
    algorithm = make_algorithm(config, task)
    extras = algorithm.broadcast(algorithm.start(theta))
    states: Any = InMemory() if algorithm.keeps_state else None
    for round_ in (1, 2):
        plan = replace(RoundPlan.of(config), round=round_, learning_rate=0.1, reply="mean")
        order = TrainRequest(plan, tuple(range(clients)))
        reply = train_cohort(trainer, order, theta, extras, node_data.train, states)
    return reply


@pytest.mark.parametrize(("name", "kind"), SOME)
def test_no_tensor_of_a_round_is_on_another_device(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = settings(name, precision="float32") | KINDS[kind]
    if values["dataset"] == "digits":
        values["batch-size"] = 200
    if name == "fedbn":
        values |= {"dataset": "skewed-digits", "model": "cnn-bn", "evaluation": "clients"}
        values = {k: v for k, v in values.items() if not k.startswith("quadratic")}
        values |= {"skewed-digits.clients": 4, "cnn-bn.width": 1}
    with fake_gpu(monkeypatch) as watch:
        reply = two_rounds(values, clients=4)
    assert not reply.failures
    assert not watch.problems
    returned = (*reply.mean.values(), *reply.uploads.values())
    assert {tensor.device for tensor in returned} == {GPU}


OWN = """
from typing import ClassVar
import torch
from fedapp.training.algorithm import Algorithm, ClientExtras
from fedapp.training.tensors import add

class Own(Algorithm):
    \"\"\"Federated averaging whose clients send a number, and shift the gradient.\"\"\"

    name: ClassVar[str] = "own"
    keeps_state: ClassVar[bool] = True

    def round_randomness(self, context, seed, client):
        return {name: torch.ones(tensor.shape) for name, tensor in context.global_params.items()}

    initial_client_state = lambda self, context: self.round_randomness(context, 0, 0)

    def gradient(self, differentiate, params, batch, context):
        gradient, loss = differentiate(params, batch)
        return add(add(gradient, context.round_randomness), context.state), loss

    def finalize(self, params, context, steps):
        return ClientExtras(upload={"steps": torch.tensor(float(steps))}, state=dict(context.state))
"""


@pytest.mark.parametrize("kind", ["sequential", "alone"])
def test_an_algorithm_of_ones_own_may_make_tensors_on_the_cpu(
    kind: str, component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    component("strategies", "own", OWN)
    values = {"algorithm": "own", "num-clients": 4, "2nn.hidden": 4, "batch-size": 200}
    with fake_gpu(monkeypatch) as watch:
        reply = two_rounds({**values, **KINDS[kind]}, clients=4)
    assert not reply.failures
    assert not watch.problems


MODELS = [
    (*pair, Normalise() if pair[1].kind == "image" else Scale())
    for pair in SMALL
    if pair[0].name in {"mnist-cnn", "char-lstm"}
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "task", "transform"), MODELS, ids=["images", "text"])
def test_no_tensor_of_a_model_is_on_another_device(
    model: Model, task: Task, transform: Transform, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_gpu(monkeypatch) as watch:
        module = initialise(model, task, 0)
        theta = {name: t.detach().to(GPU) for name, t in module.named_parameters()}
        given = (model, FedAvg(), transform, GPU, torch.float32, task.num_classes)
        trainer = BatchedTrainer(module, *given, ClientBatching(2), "capture")
        context = ClientContext(theta, learning_rate=0.1)
        trainer.client_updates(
            [ClientTask(context, drawn(task, n), np.random.default_rng(n)) for n in (3, 2)],
            RoundPlan(1, 0, 2, "epoch", 0.1),
        )
        examples = drawn(task, 5)
        evaluator = Evaluator(module, model, examples, transform, GPU, torch.float32, 3)
        evaluator.score(theta)
    assert not watch.problems


def test_what_is_drawn_for_images_comes_to_a_cohort_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All crops of a turn are one call of the transform, whoever has how many steps."""
    task = Task("image", (3, 26, 26), 2)
    with fake_gpu(monkeypatch) as watch:
        module = initialise(Linear(), replace(task, input_shape=(3, 24, 24)), 0)
        theta = {name: t.detach().to(GPU) for name, t in module.named_parameters()}
        context = ClientContext(theta, learning_rate=0.1)
        given = (Linear(), FedAvg(), Cifar24(), GPU, torch.float32, task.num_classes)
        trainer = BatchedTrainer(module, *given, ClientBatching(8), "capture")
        for _ in range(2):
            watch.launches = 0
            tasks = [
                ClientTask(context, drawn(task, 4), np.random.default_rng(n)) for n in range(8)
            ]
            trainer.client_updates(tasks, RoundPlan(2, 0, 1, "epoch", 0.1))
    assert not watch.problems
    assert watch.launches < 150  # 64 batches, in eight steps


@pytest.mark.slow
def test_a_round_of_many_clients_waits_twice_and_calls_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the losses and for whether all is finite; the calls of a client do not grow again."""
    values = {"dataset": "digits", "num-clients": 30, "batch-size": 60, "trainer": "batched"}
    with fake_gpu(monkeypatch) as watch:
        two_rounds({**values, "clients-together": 30, "2nn.hidden": 4}, clients=30)
    assert not watch.problems
    assert watch.waits == 2 * 2
    assert watch.launches / 60 < 20
