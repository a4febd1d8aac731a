"""Sequences end with the last target that counts: padding costs nothing and changes nothing."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedapp.data.dataset import IGNORE, Examples, Task
from fedapp.data.transforms.transform import Scale
from fedapp.models.lstm import CharLSTM
from fedapp.models.model import Model, initialise
from fedapp.training.algorithm import ClientContext
from fedapp.training.batches import sequence_ends
from fedapp.training.evaluation import Evaluator
from fedapp.training.round_plan import RoundPlan
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import ClientTask
from strategies.fedavg import FedAvg
from strategies.moon import Moon

CPU = torch.device("cpu")
TASK = Task("tokens", (9,), 5)
LENGTHS = [3, 9, 1, 4, 4]


class Padded(CharLSTM):
    """The same network, run over the padding too."""

    name: ClassVar[str] = "padded"
    causal: ClassVar[bool] = False


def lines(lengths: list[int]) -> Examples:
    """Return sequences of nine steps of which so many have targets that count."""
    tokens = np.random.default_rng(0).integers(0, 5, (len(lengths), 10)).astype(np.int16)
    targets = np.where(np.arange(9) < np.array(lengths)[:, None], tokens[:, 1:], IGNORE)
    return Examples(tokens[:, :9], targets.astype(np.int16))


def recorded(module: nn.Module) -> list[tuple[int, ...]]:
    """Return a list that fills with the shapes of what the network is given."""
    shapes: list[tuple[int, ...]] = []
    module.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    return shapes


def test_where_sequences_end_by_hand() -> None:
    """A gap inside a sequence is no end, and a sequence without targets has one step."""
    targets = np.array([[1, IGNORE, 2, IGNORE], [IGNORE] * 4, [IGNORE, IGNORE, IGNORE, 3]])
    examples = Examples(np.zeros((3, 4), np.int16), targets)
    found = sequence_ends(examples, causal=True)
    assert found is not None
    assert found.tolist() == [3, 1, 4]
    assert sequence_ends(examples, causal=False) is None
    assert sequence_ends(Examples(examples.inputs, targets[:, 0]), causal=True) is None


@pytest.mark.parametrize("algorithm", [FedAvg(), Moon()], ids=["fedavg", "features"])
def test_a_client_trains_as_with_the_padding(algorithm: FedAvg | Moon) -> None:
    """Batches of two, two and one: each as long as its longest sequence."""
    examples, plan = lines(LENGTHS), RoundPlan(2, 0, 2, "epoch", 0.5)
    results: list[dict[str, Tensor]] = []
    for model in (CharLSTM(embedding=3, hidden=4), Padded(embedding=3, hidden=4)):
        module = initialise(model, TASK, 0).double()
        theta = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
        context = ClientContext(theta, state=dict(theta), learning_rate=0.5)
        trainer = SequentialTrainer(module, model, algorithm, Scale(), CPU, torch.float64, 5)
        shapes = recorded(module)
        task = ClientTask(context, examples, np.random.default_rng(0))
        (outcome,) = trainer.client_updates([task], plan)
        results.append(outcome.params)
        widths = {shape[1] for shape in shapes}
        assert 9 in widths
        assert len(widths) == (1 if model.name == "padded" else 3)
    assert any(not torch.equal(results[0][name], theta[name]) for name in theta)
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-12)


class Counting(CharLSTM):
    """Has a measure of its own, of all outputs at once."""

    name: ClassVar[str] = "counting"

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return how many outputs and targets there are."""
        return {"outputs": float(outputs[:, 0].numel()), "targets": float(targets.numel())}


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (CharLSTM, [(2, 3), (2, 4), (1, 9)]),
        (Padded, [(2, 9), (2, 9), (1, 9)]),
        (Counting, [(2, 9), (2, 9), (1, 9)]),
    ],
    ids=["by length", "padded", "of all outputs"],
)
def test_texts_are_evaluated_by_length(kind: type[CharLSTM], shapes: list[tuple[int, int]]) -> None:
    """Lengths 1, 3; 4, 4; 9: as in their order, with the padding, and the same score."""
    model: Model = kind(embedding=3, hidden=4)
    module, examples = initialise(model, TASK, 0).double(), lines(LENGTHS)
    params = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    evaluator = Evaluator(module, model, examples, Scale(), CPU, torch.float64, batch_size=2)
    seen = recorded(module)
    score = evaluator.score(params)
    assert seen == shapes
    whole = Evaluator(module, Padded(), examples, Scale(), CPU, torch.float64).score(params)
    assert score.loss == pytest.approx(whole.loss, abs=1e-12)
    assert (score.accuracy, score.count) == (whole.accuracy, 21)
    if kind is Counting:
        assert score.further == {"outputs": 45.0, "targets": 45.0}
