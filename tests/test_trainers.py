"""The batched trainer gives what the sequential trainer gives, for every algorithm and model."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import IGNORE, Examples, Subset, Task
from fedapp.data.node_data import read_node_data
from fedapp.data.transforms.transform import Scale
from fedapp.errors import ConfigError
from fedapp.models.model import Model, initialise
from fedapp.training.algorithm import Algorithm, ClientContext, Tensors
from fedapp.training.batched.batch_loader import (
    BatchLoader,
    ClientBatches,
    padded_width,
)
from fedapp.training.batched.chunks import ClientBatching
from fedapp.training.batched.compiled_step import GraphPool
from fedapp.training.batched.trainer import BatchedTrainer
from fedapp.training.build import (
    _batched,
    choose_batching,
    choose_program,
    initial_parameters,
    make_trainer,
)
from fedapp.training.client import TrainRequest, train_cohort
from fedapp.training.device import compute_exactly
from fedapp.training.networks import normalisation_names, with_features
from fedapp.training.round_plan import RoundPlan, passes
from fedapp.training.sequential import SequentialTrainer
from fedapp.training.trainer import ClientResult, ClientTask, Trainer
from strategies.fedavg import FedAvg
from tests.conftest import Run, largest_difference, slow_but
from tests.data_files import image_features, png, write_parquet
from tests.in_process import model
from tests.test_algorithms import ALGORITHMS, EVERY, settings
from tests.test_models import STACKED, identifier

CPU = torch.device("cpu")
SIZES = (12, 7, 0, 1)
"""With B = 5 and E = 2: 6, 4, 0 and 2 steps; partial batches of 2, of 2, and of 1."""


def tasks(config: RunConfig, trainer: Trainer) -> list[ClientTask]:
    """Return the second turns of clients with SIZES examples, with a state that is not zero."""
    node_data = read_node_data(config, None)
    theta = initial_parameters(config, node_data.dataset.task)
    draws = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(t.shape, generator=draws, dtype=t.dtype) for n, t in theta.items()}
    theta = {n: (t + noise[n] / 10).to(trainer.device) for n, t in theta.items()}
    algorithm = trainer.algorithm
    extras = algorithm.broadcast(algorithm.start(theta))
    shared = ClientContext(
        theta,
        {name: tensor + 0.01 for name, tensor in extras.items()},
        learning_rate=config.learning_rate,
        round=2,
        momentum=config.momentum,
        nesterov=config.nesterov,
        normalisation=trainer.normalisation,
    )
    made = []
    for client, size in enumerate(SIZES):
        state = {n: t + 0.02 * client for n, t in algorithm.initial_client_state(shared).items()}
        counts = torch.arange(1.0, trainer.num_classes + 1, dtype=trainer.dtype) + client
        counts = counts.to(trainer.device)
        context = replace(shared, state=state, label_counts=counts if trainer.num_classes else None)
        context = replace(context, round_randomness=algorithm.round_randomness(context, 0, client))
        examples = node_data.train(client % config.num_clients)
        own = Examples(examples.inputs[:size], examples.targets[:size])
        made.append(ClientTask(context, own, np.random.default_rng(client)))
    return made


def outcomes(more: Mapping[str, Any], trainer: Trainer | None = None) -> list[ClientResult]:
    config = read_config(dict(more))
    trainer = trainer or make_trainer(config, read_node_data(config, None).dataset.task)
    plan = RoundPlan.of(config)
    return trainer.client_updates(tasks(config, trainer), plan)


def check_equal(mine: list[ClientResult], reference: list[ClientResult], tolerance: float) -> None:
    for left, right in zip(mine, reference, strict=True):
        assert (left.examples, left.steps) == (right.examples, right.steps)
        assert left.loss == pytest.approx(right.loss, rel=tolerance, nan_ok=True)
        check_close(left.params, right.params, tolerance)
        check_close(left.extras.upload, right.extras.upload, tolerance)
        check_close(left.extras.state, right.extras.state, tolerance)
        check_close(left.extras.update or {}, right.extras.update or {}, tolerance)


def check_close(mine: Tensors, reference: Tensors, tolerance: float) -> None:
    assert mine.keys() == reference.keys()
    for name, tensor in reference.items():
        torch.testing.assert_close(mine[name].cpu(), tensor.cpu(), rtol=tolerance, atol=tolerance)


def both(together: int, **given: Any) -> tuple[list[ClientResult], list[ClientResult]]:
    """Return the outcomes of the batched and of the sequential trainer."""
    values = {key.replace("_", "-"): value for key, value in given.items()}
    batched = {"trainer": "batched", "program": "record", "clients-together": together}
    return outcomes({**values, **batched}), outcomes({**values, "trainer": "sequential"})


@EVERY
@pytest.mark.parametrize("together", slow_but((), (1, 3), (3,)))
def test_every_algorithm(name: str, together: int) -> None:
    """Unequal sizes, partial batches, a client with no examples; to 1e-9 in float64."""
    given = settings(name, **local_work(name))
    if given["dataset"] == "digits":
        given["batch-size"] = 5
    check_equal(*both(together, **given), tolerance=1e-9)


@pytest.mark.parametrize("name", slow_but(("fedavg", "scaffold", "moon"), ALGORITHMS))
@pytest.mark.parametrize("together", slow_but((3,), (1, 3), ()))
def test_every_algorithm_stacked(name: str, together: int) -> None:
    """Two runs that differ in seed, model and rate, in one program; to 1e-9 in float64."""
    check_stacked(name, together)


def local_work(name: str) -> dict[str, Any]:
    """Return two epochs with momentum, but for FedSGD, whose clients compute one gradient."""
    return {"local_epochs": 1} if name == "fedsgd" else {"local_epochs": 2, "momentum": 0.5}


def check_stacked(name: str, together: int, turns: int = 1) -> None:
    given = settings(name, **local_work(name))
    if given["dataset"] == "digits":
        given["batch-size"] = 5
    batched = {"trainer": "batched", "program": "record", "clients-together": together}
    runs: list[dict[str, Any]] = [
        {**given, "seed": seed, "learning-rate": given["learning-rate"] * (seed + 1) / 2}
        for seed in range(2)
    ]
    both = [read_config({**more, **batched}) for more in runs]
    trainer = make_trainer(both[0], read_node_data(both[0], None).dataset.task)
    assert isinstance(trainer, BatchedTrainer)
    plan = replace(RoundPlan.of(both[0]), learning_rate=0.0)
    reference = [each for more in runs for each in outcomes({**more, "trainer": "sequential"})]
    for _ in range(turns):
        mine = trainer.train([task for config in both for task in tasks(config, trainer)], plan)
        check_equal(mine, reference, tolerance=1e-9)


CLIENT_RULE = (
    "round_randomness",
    "initial_client_state",
    "initial_params",
    "loss",
    "gradient",
    "step_state",
    "finalize",
)
OWN_RULE = [
    name
    for name, kind in ALGORITHMS.items()
    if name == "fedavg" or any(getattr(kind, f) is not getattr(Algorithm, f) for f in CLIENT_RULE)
]


@pytest.mark.parametrize("name", slow_but((), OWN_RULE, ("fedavg", "feddyn", "moon", "scaffold")))
def test_twenty_rounds_of_every_client_rule(name: str, run: Run) -> None:
    """Clients of unequal sizes, partial batches; to 1e-4 in float32."""
    given = settings(name, num_server_rounds=20, precision="float32", pictures=False)
    unequal = {"dataset": "digits", "partitioner": "sgm", "sgm.sigma": 0.5}
    given = {k: v for k, v in given.items() if not k.startswith("quadratic")} | unequal
    given["model"] = "2nn" if name == "moon" else "linear"
    given |= {"batch-size": 200, "learning-rate": 0.05, "fraction-train": 1.0}
    reference = model(run("sequential", trainer="sequential", **given))
    together = {"program": "record", "clients-together": 2}
    batched = model(run("batched", trainer="batched", **given, **together))
    assert largest_difference(batched, reference) < 1e-4


OPTIONS: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"clip_norm": 0.5},
    {"batch_sampling": "uniform", "local_steps": 4, "local_epochs": 5},
    {"batch_size": 0},
]


@pytest.mark.parametrize("together", slow_but((3,), (1, 3)))
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_the_local_optimizer(options: dict[str, Any], together: int) -> None:
    given = {"dataset": "digits", "2nn.hidden": 4, "precision": "float64", "batch_size": 5}
    check_equal(*both(together, **{"local_epochs": 2, **given, **options}), tolerance=1e-9)


REMEMBER = ("fedpa", "fedsgd", "fedsmoo", "scaffold")


@pytest.mark.parametrize("name", slow_but(("fedpa", "scaffold"), REMEMBER))
def test_what_a_client_remembers_is_of_its_own_steps(name: str) -> None:
    """Three clients in one program: those of 4 and 2 steps wait for the one of 6."""
    given = {"dataset": "digits", "2nn.hidden": 4, "precision": "float64", "batch_size": 5}
    more = {"scaffold.option": "I"} if name == "scaffold" else {}
    epochs = local_work(name)["local_epochs"]
    check_equal(*both(3, algorithm=name, local_epochs=epochs, **given, **more), tolerance=1e-9)


LARGE = dict.fromkeys(("char-lstm", "cifar-tf", "pfl-cnn", "word-lstm"), pytest.mark.slow)
LARGE |= {"resnet18-gn": pytest.mark.nightly}


@pytest.mark.parametrize("together", slow_but((2,), (1, 2)))
@pytest.mark.parametrize(
    ("model", "task"),
    [
        pytest.param(*pair, marks=[LARGE[pair[0].name]] if pair[0].name in LARGE else [])
        for pair in STACKED
    ],
    ids=identifier,
)
def test_every_model(
    model: Model, task: Task, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients of three and two examples, batches of two; to 1e-9 in float64.

    The program is one that could be captured as a CUDA graph.
    """
    monkeypatch.setattr("fedapp.training.batched.compiled_step.cuda_graph", pretended_graph)
    given: dict[str, Any] = {"batching": ClientBatching(together), "mode": "capture"}
    mine = outcomes_of(BatchedTrainer, model, task, **given)
    check_equal(mine, outcomes_of(SequentialTrainer, model, task), tolerance=1e-9)


def outcomes_of(
    kind: type[SequentialTrainer] | type[BatchedTrainer],
    model: Model,
    task: Task,
    device: torch.device = CPU,
    algorithm: Algorithm = FedAvg(),  # noqa: B008
    **more: Any,
) -> list[ClientResult]:
    """Return what clients of three and of two examples give, in batches of two."""
    module = initialise(model, task, 0).double()
    theta = {n: t.detach().clone().to(device) for n, t in module.named_parameters()}
    trainer = kind(
        module, model, algorithm, Scale(), device, torch.float64, task.num_classes, **more
    )
    plan = RoundPlan(1, 0, 2, "epoch", 0.1)
    counts = torch.arange(1.0, task.num_classes + 1, dtype=torch.float64, device=device)
    extras = algorithm.broadcast(algorithm.start(theta))
    shared = ClientContext(theta, extras, learning_rate=plan.learning_rate, label_counts=counts)
    made = []
    for n in (3, 2):
        context = replace(shared, state=algorithm.initial_client_state(shared))
        context = replace(context, round_randomness=algorithm.round_randomness(context, 0, n))
        made.append(ClientTask(context, drawn(task, n), np.random.default_rng(n)))
    return trainer.client_updates(made, plan)


class Bigram(Model):
    """Predicts the next token from this one alone: one layer from an embedding, no recurrence."""

    name: ClassVar[str] = "bigram"
    takes: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def build(self, task: Task) -> nn.Module:
        """Return the network: tokens [n, T] to logits [n, C, T]."""
        embedding, output = nn.Embedding(task.num_classes, 4), nn.Linear(4, task.num_classes)
        return nn.Sequential(embedding, output, Turned())


class Turned(nn.Module):
    """[n, T, C] to [n, C, T]."""

    def forward(self, logits: Tensor) -> Tensor:
        """Exchange the last two dimensions."""
        return logits.transpose(1, 2)


READ_TARGETS = ("fedavg", "fedlc", "fedntd", "fedsgd", "fedsol", "moon", "scaffold")


@pytest.mark.parametrize("name", slow_but(READ_TARGETS, ALGORITHMS))
def test_every_algorithm_on_a_text(name: str) -> None:
    """Targets [b, T], of which some do not count, and features [b, T, d]; to 1e-9 in float64."""
    task, model = Task("tokens", (6,), 5), Bigram()
    algorithm = read_config(settings(name)).component("algorithm")
    assert isinstance(algorithm, Algorithm)
    given: dict[str, Any] = {"algorithm": algorithm}
    wanted = outcomes_of(SequentialTrainer, model, task, **given)
    given |= {"batching": ClientBatching(2), "mode": "record"}
    check_equal(outcomes_of(BatchedTrainer, model, task, **given), wanted, tolerance=1e-9)


def drawn(task: Task, count: int) -> Examples:
    """Return examples at random; a text's first target does not count."""
    rng = np.random.default_rng(0)
    if task.kind != "tokens":
        inputs = rng.random((count, *task.input_shape))
        return Examples(inputs, rng.integers(task.num_classes, size=count))
    shape = (count, *task.input_shape)
    targets = rng.integers(task.num_classes, size=shape)
    targets[:, 0] = IGNORE
    return Examples(rng.integers(task.num_classes, size=shape), targets)


@pytest.mark.parametrize("together", [1, 3])
def test_fewer_epochs_and_larger_batches_are_the_same_program(together: int) -> None:
    """E falls and B grows from round to round; B = 9 and 10 have one width, 10."""
    given = {**settings("fedavg"), "local-epochs": 3, "program": "record"}
    given |= {"batch-size": 9, "batch-size-growth": 1.1}
    given |= {"trainer": "batched", "clients-together": together}
    config = read_config(given)
    task = read_node_data(config, None).dataset.task
    batched, reference = make_trainer(config, task), sequential_of(given, task)
    for epochs, size in ((3, 9), (2, 10), (1, 11), (1, 1000)):
        plan = replace(RoundPlan.of(config), epochs=epochs, batch_size=size)
        assert (plan.epochs, plan.batch_size) == (epochs, size)
        mine, theirs = (
            each.client_updates(tasks(config, each), plan) for each in (batched, reference)
        )
        check_equal(mine, theirs, tolerance=1e-9)
    assert isinstance(batched, BatchedTrainer)
    assert len({plan for plan, _ in batched._steps}) == 1


def sequential_of(given: Mapping[str, Any], task: Task) -> Trainer:
    """Return the sequential trainer of these settings."""
    kept = {k: v for k, v in given.items() if k not in ("program", "clients-together")}
    return make_trainer(read_config({**kept, "trainer": "sequential"}), task)


@pytest.mark.parametrize("together", [1, 3])
def test_a_transform_that_draws_draws_the_same(together: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    splits = {}
    for split, count in {"train": 130, "test": 2}.items():
        pixels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        splits[split] = {"image": [png(p) for p in pixels], "label": [i % 2 for i in range(count)]}
    folder = write_parquet(tmp_path / "images", splits, image_features())
    given = {"dataset": str(folder), "transform": "cifar24", "model": "linear"}
    given |= {"precision": "float64", "batch_size": 5, "num_clients": 10, "momentum": 0.5}
    check_equal(*both(together, **given), tolerance=1e-9)


def pretended_graph(
    graph: torch.fx.GraphModule, static: list[Tensor], pool: GraphPool
) -> tuple[Callable[[], None], list[Tensor]]:
    """Stand in for a CUDA graph: reads `static` and writes its results where they are.

    What others in its pool returned is lost when it runs.
    """
    assert waits_of(graph) == []
    returned = [tensor.clone() for tensor in graph(*(tensor.clone() for tensor in static))]
    results = RESULTS.setdefault(pool, [])
    results += returned

    def replay() -> None:
        for lost in results:
            lost.fill_(torch.nan if lost.is_floating_point() else -1)
        for place, tensor in zip(returned, graph(*static), strict=True):
            place.copy_(tensor)

    return replay, returned


RESULTS: WeakKeyDictionary[GraphPool, list[Tensor]] = WeakKeyDictionary()
"""What pretended graphs returned, by the memory that they share."""

WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "unique", "masked_select"}
"""Operations whose result decides what comes next: a graph cannot be captured across them."""


def waits_of(graph: torch.fx.GraphModule) -> list[str]:
    """Return what of the recorded operations would wait for a GPU, or bring numbers to it."""
    called = [node for node in graph.graph.nodes if node.op == "call_function"]
    waits = [node for node in called if set(str(node.target).split(".")) & WAITS]
    brought = [node for node in called if node.kwargs.get("device") not in (None, CPU)]
    fetched = [
        node for node in called if "_to_copy" in str(node.target) and "device" in node.kwargs
    ]
    return [str(node.target) for node in (*waits, *brought, *fetched)]


@pytest.mark.parametrize("together", slow_but((2,), (1, 2), ()))
@pytest.mark.parametrize("name", slow_but(("fedavg", "fedpa", "moon", "scaffold"), OWN_RULE))
def test_places_of_a_captured_program(
    name: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CUDA graph reads and writes fixed places; two turns in them, with momentum."""
    monkeypatch.setattr("fedapp.training.batched.compiled_step.cuda_graph", pretended_graph)
    monkeypatch.setattr("fedapp.training.build.choose_program", lambda *_: "capture")
    given = settings(name, **local_work(name))
    if given["dataset"] == "digits":
        given["batch-size"] = 5
    batched = {**given, "trainer": "batched", "clients-together": together}
    for _ in range(2):
        mine = outcomes(batched)
        check_equal(mine, outcomes({**given, "trainer": "sequential"}), tolerance=1e-9)


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("name", OWN_RULE)
def test_every_client_rule_on_a_gpu(name: str, together: int, cuda: torch.device) -> None:
    """Captured, and replayed in a second turn, as on the CPU; to 1e-9 in float64."""
    given = settings(name, **local_work(name))
    if given["dataset"] == "digits":
        given["batch-size"] = 5
    wanted = outcomes({**given, "trainer": "sequential", "device": "cpu"})
    there = {**given, "device": str(cuda)}
    for _ in range(2):
        captured = {"trainer": "batched", "program": "capture", "clients-together": together}
        check_equal(outcomes({**there, **captured}), wanted, tolerance=1e-9)
    check_equal(outcomes({**there, "trainer": "sequential"}), wanted, tolerance=1e-9)


@pytest.mark.parametrize(("model", "task"), STACKED, ids=identifier)
def test_every_model_on_a_gpu(model: Model, task: Task, cuda: torch.device) -> None:
    """Two clients in one CUDA graph, and one after the other, as on the CPU; to 1e-9 in float64."""
    compute_exactly(cuda)
    wanted = outcomes_of(SequentialTrainer, model, task)
    check_equal(outcomes_of(SequentialTrainer, model, task, device=cuda), wanted, tolerance=1e-9)
    for together in (1, 2):
        given: dict[str, Any] = {"batching": ClientBatching(together), "mode": "capture"}
        mine = outcomes_of(BatchedTrainer, model, task, device=cuda, **given)
        check_equal(mine, wanted, tolerance=1e-9)


def test_a_cuda_graph_outlives_others(cuda: torch.device) -> None:
    """What it works in is its own: not what another one held, which dies with that."""
    given = {"trainer": "batched", "program": "capture", "clients-together": 3, "batch-size": 5}
    given |= {"device": str(cuda), "precision": "float32"}
    first, second = ({**given, "2nn.hidden": hidden} for hidden in (200, 300))
    task = read_node_data(read_config(first), None).dataset.task
    lives, dies = (make_trainer(read_config(each), task) for each in (first, second))
    wanted = outcomes(first, lives)
    outcomes(second, dies)
    _batched.cache_clear()
    del dies
    gc.collect()
    torch.cuda.empty_cache()
    junk = torch.full((1 << 28,), torch.nan, device=cuda)
    check_equal(outcomes(first, lives), wanted, tolerance=0.0)
    assert bool(junk.isnan().all())


@pytest.mark.parametrize("name", slow_but(("scaffold",), ("fedavg", "scaffold", "moon")))
def test_places_of_a_captured_program_of_two_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.training.batched.compiled_step.cuda_graph", pretended_graph)
    monkeypatch.setattr("fedapp.training.build.choose_program", lambda *_: "capture")
    check_stacked(name, together=2, turns=2)


@pytest.mark.parametrize("partitioner", slow_but((), ("iid", "sgm"), ("iid",)))
def test_twenty_rounds_of_the_program_that_this_machine_chooses(partitioner: str, run: Run) -> None:
    """Compiled where there is a C++ compiler: the reference's trajectory, to 1e-5 in float32.

    Of 20 IID clients, with equally many steps, ten a round are two programs of five.
    """
    given = {"num_server_rounds": 20, "partitioner": partitioner, "2nn.hidden": 8}
    given |= {"precision": "float32"}
    given |= {"sgm.sigma": 0.5} if partitioner == "sgm" else {"fraction-train": 0.5}
    reference = model(run("sequential", trainer="sequential", **given))
    chosen = model(run("chosen", trainer="batched", **given))
    assert largest_difference(chosen, reference) < 1e-5


@pytest.mark.parametrize("batch_size", slow_but((), (60, 200), (200,)))
def test_large_batches_of_the_program_that_this_machine_chooses(batch_size: int, run: Run) -> None:
    """oneDNN takes the larger products, and what it gives is added into the weights apart."""
    given = {"num_server_rounds": 2, "num_clients": 4, "batch_size": batch_size}
    given |= {"precision": "float32"}
    reference = model(run("sequential", trainer="sequential", **given))
    chosen = model(run("chosen", trainer="batched", **given))
    assert largest_difference(chosen, reference) < 1e-5


@pytest.mark.parametrize(
    ("hidden", "batch_size", "together"),
    [
        (8, 5, 1),
        pytest.param(200, 5, 2, marks=pytest.mark.nightly),
        pytest.param(200, 250, 1, marks=pytest.mark.nightly),
        pytest.param(200, 250, 2, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "scaffold" else pytest.mark.nightly)
        for name in OWN_RULE
    ],
)
def test_every_client_rule_compiled(
    name: str, hidden: int, batch_size: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a compiler; unequal sizes, partial batches; to 1e-4 in float32."""
    monkeypatch.setattr(sys.modules[__name__], "SIZES", (300, 12, 7, 1))
    given = {k: v for k, v in settings(name).items() if not k.startswith("quadratic")}
    given |= {"dataset": "digits", "partitioner": "iid", "model": "2nn", "2nn.hidden": hidden}
    given |= {"num-clients": 4, "batch-size": batch_size, "precision": "float32"}
    compiled = {"trainer": "batched", "device": "cpu", "clients-together": together}
    reference = outcomes({**given, "trainer": "sequential"})
    check_equal(outcomes({**given, **compiled}), reference, tolerance=1e-4)


def test_a_step_that_cannot_be_compiled_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: True)
    monkeypatch.setattr("torch._inductor.compile", fails)
    given = {"dataset": "digits", "model": "2nn", "2nn.hidden": 7, "num-clients": 4}
    given |= {"precision": "float64", "batch-size": 5}
    with pytest.warns(RuntimeWarning, match=r"could not be compiled.*no space left"):
        mine = outcomes({**given, "trainer": "batched", "program": "compile"})
    check_equal(mine, outcomes({**given, "trainer": "sequential"}), tolerance=1e-9)


def test_a_grid_of_rates_shares_a_program() -> None:
    """The rate is an input of the program; other constants are not."""
    task = read_node_data(read_config({}), None).dataset.task
    first, second, other = (
        make_trainer(read_config({"trainer": "batched", "program": "record", **more}), task)
        for more in (
            {"learning-rate": 0.1},
            {"learning-rate": 0.2, "seed": 5},
            {"algorithm": "fedprox"},
        )
    )
    assert first is second
    assert first is not other


def test_a_trainer_says_what_it_is() -> None:
    task = read_node_data(read_config({}), None).dataset.task

    def said(**more: Any) -> str:
        given = {key.replace("_", "-"): value for key, value in more.items()}
        return str(make_trainer(read_config({"device": "cpu", **given}), task))

    assert said() == "sequential on cpu"
    recorded = said(trainer="batched", program="record", clients_together=3)
    assert recorded == "batched on cpu, 3 clients a program, recorded"
    assert "one client a program" in said(trainer="batched", program="record")


@pytest.mark.parametrize(
    ("together", "steps", "runs", "wanted"),
    [
        (ClientBatching(2), [3, 1, 2], 1, [[0, 1], [2]]),
        (ClientBatching(2), [3, 1, 2, 2, 2, 2], 2, [[0, 1, 2, 3], [4, 5]]),
        (ClientBatching(2, equal=True), [3, 3, 3, 1, 4], 1, [[0, 1], [2], [3], [4]]),
        (ClientBatching(5, equal=True), [3] * 7, 1, [[0, 1, 2, 3, 4], [5], [6]]),
        (ClientBatching(5, equal=True), [3, 3, 1, 1], 2, [[0, 1], [2, 3]]),
        (ClientBatching(10, equal=True), [3] * 16, 1, [[*range(10)], [*range(10, 15)], [15]]),
        (ClientBatching(10, equal=True), [3] * 9 + [1], 1, [[*range(5)], [5], [6], [7], [8], [9]]),
        (ClientBatching(20, equal=True), [3] * 10, 1, [[*range(10)]]),
        (ClientBatching(1, equal=True), [], 1, []),
    ],
)
def test_which_clients_are_one_program(
    together: ClientBatching, steps: list[int], runs: int, wanted: list[list[int]]
) -> None:
    """Unequal clients alone where waiting costs; one client of each of several runs together."""
    assert [list(chunk) for chunk in together.chunks(steps, runs)] == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"batch-size": 10}, ClientBatching(5, equal=True)),
        ({"batch-size": 10, "threads": 2}, ClientBatching(10, equal=True)),
        ({"batch-size": 50, "threads": 2}, ClientBatching(1, equal=True)),
        ({"batch-size": 50}, ClientBatching(1, equal=True)),
        ({"batch-size": 0}, ClientBatching(1, equal=True)),
        ({"batch-size": 10, "program": "record"}, ClientBatching(1, equal=True)),
        ({"batch-size": 50, "clients-together": 3}, ClientBatching(3)),
    ],
)
def test_how_many_clients_are_one_program_by_itself(
    given: dict[str, Any], wanted: ClientBatching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: True)
    config = read_config({"trainer": "batched", "device": "cpu", "model": "2nn", **given})
    assert choose_batching(config, CPU, choose_program(config, CPU)) == wanted
    assert choose_batching(read_config({}), torch.device("cuda"), "capture").clients > 10**6


def test_what_does_not_run_here_is_refused() -> None:
    task = read_node_data(read_config({}), None).dataset.task
    capture = {"trainer": "batched", "program": "capture", "device": "cpu"}
    with pytest.raises(ConfigError, match="needs a GPU"):
        make_trainer(read_config(capture), task)


def test_without_a_compiler_the_recorded_operations_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.training.build.can_compile", lambda: False)
    config = read_config({"trainer": "batched", "device": "cpu"})
    assert choose_program(config, CPU) == "record"
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler"):
        choose_program(config.model_copy(update={"program": "compile"}), CPU)


KINDS: dict[str, dict[str, Any]] = {
    "sequential": {"trainer": "sequential"},
    "batched": {"trainer": "batched", "program": "record", "clients-together": 3},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@EVERY_KIND
def test_one_client_without_data_does_not_harm_the_others(kind: str) -> None:
    """Of three clients one has lost its data."""
    config = read_config(KINDS[kind])
    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    trainer, theta = make_trainer(config, task), initial_parameters(config, task)

    def data_of(client: int) -> Examples:
        if client == 1:
            raise OSError("unreadable")
        return node_data.train(client)

    order = TrainRequest(replace(RoundPlan.of(config), learning_rate=0.1), (0, 1, 2))
    reply = train_cohort(trainer, order, theta, {}, data_of)
    assert set(reply.failures) == {1}
    assert reply.failures[1].startswith("OSError: unreadable (tests/test_trainers.py, line ")
    alone = train_cohort(trainer, replace(order, clients=(0, 2)), theta, {}, data_of)
    assert largest_difference(reply.mean, alone.mean) == 0.0


def test_clients_that_train_together_share_the_seconds() -> None:
    config = read_config({"trainer": "batched", "program": "record", "clients-together": 3})
    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    trainer, theta = make_trainer(config, task), initial_parameters(config, task)
    order = TrainRequest(replace(RoundPlan.of(config), learning_rate=0.1), (0, 1, 2))
    began = time.perf_counter()
    reply = train_cohort(trainer, order, theta, {}, node_data.train)
    seconds = [report.seconds for report in reply.client_metrics]
    assert len(set(seconds)) == 1
    assert 0 < sum(seconds) < time.perf_counter() - began


@EVERY_KIND
def test_a_client_that_diverges_is_left_out_alone(kind: str) -> None:
    """The first of two clients has absurdly large examples."""
    config = read_config(KINDS[kind])
    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    trainer, theta = make_trainer(config, task), initial_parameters(config, task)

    def data_of(client: int) -> Examples:
        examples = node_data.train(client)
        scale = np.float32(1e30 if client == 0 else 1)
        return Examples(examples.inputs * scale, examples.targets)

    request = TrainRequest(replace(RoundPlan.of(config), learning_rate=0.1), (0, 1))
    reply = train_cohort(trainer, request, theta, {}, data_of)
    assert list(reply.failures) == [0]
    assert "not finite" in reply.failures[0]
    assert [report.client for report in reply.client_metrics] == [1]


def short_of_memory(monkeypatch: pytest.MonkeyPatch, holds: int) -> None:
    """Let memory hold ``holds`` clients; for more, it runs out when they have drawn."""
    train = BatchedTrainer._train_chunk

    def limited(
        self: BatchedTrainer, tasks: Sequence[ClientTask], plan: RoundPlan
    ) -> list[ClientResult]:
        if len(tasks) > holds:
            for task in tasks:
                task.rng.random()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(self, tasks, plan)

    monkeypatch.setattr(BatchedTrainer, "_train_chunk", limited)


def test_half_of_the_clients_train_together_where_memory_holds_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two and one of three, with the batches that they would have drawn; and two from then on."""
    given = {"dataset": "digits", "2nn.hidden": 3, "batch-size": 5, "device": "cpu"}
    given |= {"trainer": "batched", "program": "record"}
    wanted = outcomes({**given, "clients-together": 2})
    short_of_memory(monkeypatch, holds=2)
    for _ in range(2):
        check_equal(outcomes({**given, "clients-together": 7}), wanted, tolerance=0.0)
    [record] = caplog.records
    assert "clients in a program: 2 from now on" in record.getMessage()


def test_memory_that_does_not_hold_one_client_is_the_clients_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short_of_memory(monkeypatch, holds=0)
    given = {"2nn.hidden": 2, "trainer": "batched", "program": "record", "clients-together": 3}
    with pytest.raises(torch.OutOfMemoryError):
        outcomes({"dataset": "digits", "device": "cpu", **given})


PRECISION = (
    (torch.backends.cudnn, "allow_tf32", False),
    (torch.backends.cuda.matmul, "allow_tf32", False),
    (torch.backends.cudnn, "benchmark", False),
    (torch.backends.cudnn, "deterministic", True),
)


@pytest.fixture
def _precision() -> Iterator[None]:
    """Put back what is the process's."""
    before = [getattr(of, name) for of, name, _ in PRECISION]
    yield
    for (of, name, _), value in zip(PRECISION, before, strict=True):
        setattr(of, name, value)


@pytest.mark.usefixtures("_precision")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_gpu_computes_in_full_precision(device: str) -> None:
    """Not in TF32, and with the same algorithms every time; of a CPU nothing is asked."""
    for of, name, wanted in PRECISION:
        setattr(of, name, not wanted)
    compute_exactly(torch.device(device))
    asked = device == "cuda"
    assert all((getattr(of, name) == wanted) == asked for of, name, wanted in PRECISION)


WHOLE = Examples(np.arange(12, dtype=np.uint8).reshape(6, 2), np.arange(6) % 2)


def fed(clients: list[Examples], batch_size: int) -> list[ClientBatches]:
    """Return the steps of one epoch; every call draws alike."""
    plan = RoundPlan(1, 0, batch_size, "epoch", 0.1)
    tasks = [
        ClientTask(ClientContext({}), each, np.random.default_rng(k))
        for k, each in enumerate(clients)
    ]
    return list(loader().batches(tasks, plan))


def loader(device: torch.device = CPU) -> BatchLoader:
    return BatchLoader(Scale(), device, torch.float64)


@pytest.mark.parametrize("batch_size", [0, 1, 2, 4])
def test_batches_are_the_same_from_the_whole_data_set_and_from_copies(batch_size: int) -> None:
    """By index from one data set of which clients hold parts, or from the clients' own arrays."""
    chosen = [Subset(WHOLE, np.array(rows)) for rows in ([5, 0, 3], [1], [4, 2])]
    own = [Examples(WHOLE.inputs[each.indices], WHOLE.targets[each.indices]) for each in chosen]
    for left, right in zip(fed([*chosen], batch_size), fed(own, batch_size), strict=True):
        assert torch.equal(left.sizes, right.sizes)
        check_close(left.tensors, right.tensors, tolerance=0.0)


def test_no_client_data_is_copied_where_all_share_a_data_set() -> None:
    chosen = [Subset(WHOLE, np.array(rows)) for rows in ([5, 0, 3], [4, 2])]
    (first, *_) = fed([*chosen], batch_size=3)
    assert not any("inputs" in vars(each) or "targets" in vars(each) for each in chosen)
    assert len(chosen[0]) == 3
    assert sorted(first.tensors["targets"][0].tolist()) == sorted(WHOLE.targets[[5, 0, 3]])
    loads = loader()
    stored = loads.shared([*chosen])
    assert stored is not None
    assert stored.inputs.data_ptr() == WHOLE.inputs.ctypes.data
    assert loads.shared([*chosen]) is stored
    assert loads.shared([chosen[0], Subset(replace(WHOLE), np.array([1]))]) is None


def test_a_clients_own_data_stay_on_the_device() -> None:
    """A node with one client draws by index from all that it has."""
    loads = loader()
    stored = loads.shared([WHOLE])
    assert stored is not None
    assert loads.shared([WHOLE]) is stored
    assert WHOLE.base is WHOLE
    assert WHOLE.indices.tolist() == [0, 1, 2, 3, 4, 5]
    assert loads.shared([WHOLE, replace(WHOLE)]) is None


def test_a_data_set_too_large_for_the_gpu_comes_client_by_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 60 bytes; of 100 that are free no more than half."""
    part = Subset(WHOLE, np.array([1]))
    for free in (20, 100):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _, free=free: (free, 200))
        assert loader(torch.device("cuda")).shared([part]) is None


def test_chosen_examples_are_copies_in_their_order() -> None:
    part = Subset(WHOLE, np.array([5, 0, 0]))
    assert part.inputs.tolist() == [[10, 11], [0, 1], [0, 1]]
    assert part.targets.tolist() == [1, 0, 0]
    part.inputs[:] = 0
    assert WHOLE.inputs[5].tolist() == [10, 11]


@given(
    size=st.integers(1, 40),
    batch_size=st.integers(0, 12),
    epochs=st.integers(1, 3),
    steps=st.sampled_from([0, 0, 5]),
)
def test_places_are_the_passes_batch_by_batch(
    size: int, batch_size: int, epochs: int, steps: int
) -> None:
    """What is not masked are the batches that one client alone draws, in their order."""
    sampling: Any = "uniform" if steps else "epoch"
    plan = RoundPlan(epochs, steps, batch_size, sampling, 0.1)
    width = padded_width(plan, [size])
    examples = Examples(np.zeros((size, 2), np.uint8), np.zeros(size, np.int64))
    task = ClientTask(ClientContext({}), examples, np.random.default_rng(1))
    places, masks, _ = loader()._draw([task], plan, [np.arange(size)], width)
    drawn = [
        order[start : start + plan.batch(size)]
        for order in passes(plan, size, np.random.default_rng(1))
        for start in range(0, len(order), plan.batch(size))
    ]
    taken = [row[mask] for row, mask in zip(places[:, 0], masks[:, 0], strict=True)]
    assert len(taken) == plan.num_steps(size)
    assert all(np.array_equal(a, b) for a, b in zip(taken, drawn, strict=True))
    assert plan.batch(size) <= width <= (batch_size or max(size * 9 / 8 + 1, 8))


@pytest.mark.parametrize(
    ("batch_size", "size", "width"),
    [(50, 600, 50), (50, 49, 50), (50, 13, 13), (50, 14, 50), (50, 4, 4), (10, 1, 1), (1, 9, 1)],
)
def test_few_widths_occur(batch_size: int, size: int, width: int) -> None:
    """B = 50 and its quarters, rounded up: 50, 13, 4, 1."""
    plan = RoundPlan(1, 0, batch_size, "epoch", 0.1)
    assert padded_width(plan, [size]) == width


@pytest.mark.parametrize(("size", "width"), [(600, 640), (512, 512), (9, 9), (17, 18), (1, 1)])
def test_widths_of_whole_data_sets(size: int, width: int) -> None:
    """B = infinity: eighths of the power of two below, so 64 for 600, 32 for 512, 2 for 17."""
    assert padded_width(RoundPlan(1, 0, 0, "epoch", 0.1), [size]) == width


def test_which_parameters_are_of_normalisation_layers() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.Sequential(nn.LayerNorm(4)))
    wanted = {"1.weight", "1.bias", "2.0.weight", "2.0.bias"}
    assert normalisation_names(module) == wanted


def test_features_are_what_the_last_linear_layer_is_given() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    inputs = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    outputs, features = with_features(module, lambda: module(inputs))
    assert torch.equal(features, module[:2](inputs))
    assert torch.equal(outputs, module(inputs))


def test_a_model_without_a_last_layer_has_no_features() -> None:
    with pytest.raises(ConfigError, match="representation"):
        with_features(nn.Flatten(), lambda: torch.zeros(1))
