"""Other frameworks' federated averaging beside a bare PyTorch loop over the same clients.

    python -m benchmarks.peers              W1 and W2; FEDAPP_DATA names the folder with the data sets
    python -m benchmarks.peers W1 --steps 5 clients cut to five local steps, for a quick look

The peers are pfl-research (``pip install pfl``) and FedJAX (``pip install fedjax "jax<0.8"``), each
as its own tutorials use it, in processes that hold the clients' examples in memory beforehand; who
is not installed is named in the table. All train the same network on the same examples with the
same E, B and rate, and average by numbers of examples, on one thread a process or JAX device. Where
they differ from the bare loop:

- pfl-research draws no new order of a client's examples: its data set in memory keeps its batches.
- FedJAX starts from weights of its own, and fills a client's last batch up with further examples;
  MNIST's 600 a client leave none to fill. Its "jit" engine trains one client at a time. Its "pmap"
  engine has a client on each device, of which XLA makes several out of one processor; it needs
  functions that JAX 0.8 deprecated and later versions lack. Put back here is what else it needs of
  an older JAX: the name ``jax.tree_map``, and for "pmap" a device's share without the devices' axis.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import logging
import multiprocessing
import os
import socket
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import click
import torch
import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.bare import bare_loops, clients_of, tensors_of
from benchmarks.processes import Call, together
from benchmarks.rows import in_threads, workers_round
from benchmarks.turns import conditions, ratio, take_turns
from benchmarks.workloads import WORKLOADS, Workload
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar
from fedapp.data.node_data import NodeData, read_node_data
from fedapp.models.model import Model
from fedapp.training.build import make_model, make_module

NAMES = ("W1", "W2")
"""The workloads whose networks FedJAX has here too."""

console = Console()


@dataclass(frozen=True)
class Peer:
    """A framework, and how its rounds are started: ``make`` runs once in each process."""

    title: str
    requires: tuple[str, ...]
    make: Callable[..., Call]
    arguments: Callable[[int], list[tuple[Any, ...]]]
    """From the number of processes to what ``make`` is called with in each, after the run-config."""

    def lacks(self) -> str:
        """Return what is to be done before it can run, or nothing."""
        for requirement in map(Requirement, self.requires):
            try:
                found = importlib.metadata.version(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                found = ""
            if not found or found not in requirement.specifier:
                quoted = (f'"{one}"' if "<" in one else one for one in self.requires)
                return f"not installed: pip install {' '.join(quoted)}"
        return ""

    def name(self, processes: int) -> str:
        """Return the title with the versions of what it requires."""
        names = [Requirement(required).name for required in self.requires]
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
        return f"{self.title.format(processes)} ({versions})"


class Network(nn.Module):
    """A network with the two methods that pfl-research asks for."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        super().__init__()
        self.module, self.model = module, model

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return self.model.loss(self.module(inputs), targets)

    def metrics(self, *_: Tensor) -> dict[str, Any]:
        """Return nothing: no row evaluates."""
        return {}


def pfl_round(values: dict[str, Scalar], rank: int, addresses: str) -> Call:
    """Return pfl-research's round: its simulator, of which this process is worker ``rank``."""
    # It starts its process group on import, but in no process of another name.
    multiprocessing.current_process().name = "MainProcess"
    os.environ |= {"PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses}
    os.environ |= {"PFL_PYTORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    config, node_data, clients = _read(values)
    network = Network(make_module(config, node_data.dataset.task), make_model(config))
    theta = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    data = {k: PyTorchTensorDataset(tensors_of(config, node_data, k)) for k in clients}
    users = FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", clients))
    backend = SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()])
    algorithm, rounds = FederatedAveraging(), itertools.count(1)
    local = NNTrainHyperParams(
        local_num_epochs=None if config.local_steps else config.local_epochs,
        local_num_steps=config.local_steps or None,
        local_learning_rate=config.learning_rate,
        local_batch_size=config.batch_size,
    )

    def train() -> None:
        network.load_state_dict(theta)
        # It goes on from the round at which it stopped; only the first, which warms up, evaluates.
        one_more = NNAlgorithmParams(
            central_num_iterations=next(rounds),
            evaluation_frequency=1_000_000,
            train_cohort_size=len(clients),
            val_cohort_size=None,
        )
        algorithm.run(one_more, backend, model, local, send_metrics_to_platform=False)

    return train


def fedjax_round(values: dict[str, Scalar], engine: str, devices: int) -> Call:
    """Return FedJAX's round on ``devices`` JAX devices of one thread each, all in this process."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "NPROC": str(devices),  # the threads of XLA's pool
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false "
        f"--xla_force_host_platform_device_count={devices}",
    }
    import fedjax
    import jax

    jax.tree_map = jax.tree_util.tree_map
    if engine == "pmap":
        jax.config.update("jax_pmap_no_rank_reduction", False)
    config, node_data, clients = _read(values)
    model = _fedjax_model(config, node_data)
    batches = fedjax.ShuffleRepeatBatchHParams(
        batch_size=config.batch_size,
        num_epochs=config.local_epochs,
        num_steps=config.local_steps or None,
    )
    with fedjax.for_each_client_backend(engine):
        algorithm = fedjax.algorithms.fed_avg.federated_averaging(
            fedjax.model_grad(model),
            fedjax.optimizers.sgd(config.learning_rate),
            fedjax.optimizers.sgd(1.0),
            batches,
        )
    state = algorithm.init(model.init(jax.random.PRNGKey(config.seed)))
    keys = jax.random.split(jax.random.PRNGKey(config.seed), len(clients))
    cohort = []
    for client, key in zip(clients, keys, strict=True):
        inputs, targets = tensors_of(config, node_data, client)
        examples = {"x": inputs.permute(0, 2, 3, 1).contiguous().numpy(), "y": targets.numpy()}
        cohort.append((client, fedjax.ClientDataset(examples), key))

    def train() -> None:
        after, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(after.params)

    return train


def _fedjax_model(config: RunConfig, node_data: NodeData) -> Any:
    """Return the 2NN or the MNIST CNN for images of [n, H, W, channels]."""
    import fedjax
    import haiku as hk
    import jax
    import numpy as np

    task, relu = node_data.dataset.task, jax.nn.relu
    channels, rows, columns = task.input_shape
    pool, classes = (1, 2, 2, 1), task.num_classes

    def forward(batch: Any) -> Any:
        two = [hk.Flatten(), hk.Linear(200), relu, hk.Linear(200), relu]
        cnn = [hk.Conv2D(32, 5), hk.MaxPool(pool, pool, "SAME"), relu]
        cnn += [hk.Conv2D(64, 5), hk.MaxPool(pool, pool, "SAME"), relu]
        cnn += [hk.Flatten(), hk.Linear(512), relu]
        layers = {"2nn": two, "mnist-cnn": cnn}[config.model]
        return hk.Sequential([*layers, hk.Linear(classes)])(batch["x"])

    sample = np.zeros((1, rows, columns, channels), np.float32)
    return fedjax.create_model_from_haiku(
        hk.transform(forward),
        {"x": sample, "y": np.zeros(1, np.int64)},
        lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
    )


def _read(values: dict[str, Scalar]) -> tuple[RunConfig, NodeData, list[int]]:
    config = read_config(values)
    return config, read_node_data(config, None), clients_of(config)


def _workers(processes: int) -> list[tuple[Any, ...]]:
    """Return each worker's rank and all workers' addresses, of which only the first is used."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        addresses = ",".join([f"localhost:{free.getsockname()[1]}"] * processes)
    return [(rank, addresses) for rank in range(processes)]


PEERS = (
    Peer("pfl-research, {} processes", ("pfl",), pfl_round, _workers),
    Peer("FedJAX, jit, 1 device", ("fedjax", "jax"), fedjax_round, lambda _: [("jit", 1)]),
    Peer("FedJAX, pmap, {} devices", ("fedjax", "jax<0.8"), fedjax_round, lambda n: [("pmap", n)]),
)


def main(
    names: Annotated[list[str] | None, typer.Argument(click_type=click.Choice(NAMES))] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of which the medians are taken.")] = 5,
    workers: Annotated[int, typer.Option(min=1, help="Processes or devices of a row.")] = 2,
    steps: Annotated[int, typer.Option(min=0, help="Local steps a client. 0: all.")] = 0,
) -> None:
    """Print a table a workload."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    console.print(conditions(turns), highlight=False)
    for name in names or NAMES:
        measure(name, WORKLOADS[name], turns, workers, steps)


def measure(name: str, workload: Workload, turns: int, workers: int, steps: int) -> None:
    """Print the rows of one workload as ratios to its bare loop in several processes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = workload.config(folder, 1, steps)
        if config is None:
            console.print(f"{name} is left out: it needs FEDAPP_DATA with {workload.data}")
            return
        times = take_turns(dict(_rows(config, workers, stack)), turns)
    cut = f", {steps} local steps" if steps else ""
    columns = ("what", "seconds a round", f"of {workers} processes")
    table = Table(*columns, title=f"{name}: {workload.title}{cut}", title_justify="left")
    bare = next(iter(times.values()))
    for row, taken in times.items():
        table.add_row(row, f"{statistics.median(taken):.4f}", f"{ratio(taken, bare):.2f}")
    for peer in PEERS:
        if lacks := peer.lacks():
            table.add_row(peer.title.format(workers), lacks)
    console.print(table)


def _rows(
    config: RunConfig, workers: int, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Call]]:
    """Yield the bare loops, whole rounds of ours in threads and on Ray workers, and installed peers."""
    node_data, values = read_node_data(config, None), config.to_run_config()
    bare = stack.enter_context(bare_loops(config, node_data, workers))
    yield f"bare loop, {workers} processes of one thread", bare
    batched = read_config({**values, "trainer": "batched"})
    yield f"in-process, batched, {workers} threads", in_threads(batched, node_data, workers)
    ours = stack.enter_context(workers_round(batched, node_data, workers))
    yield f"Ray workers, {workers}, batched", ours
    for peer in PEERS:
        if not peer.lacks():
            given = [(values, *rest) for rest in peer.arguments(workers)]
            yield peer.name(workers), stack.enter_context(together(peer.make, given))


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
