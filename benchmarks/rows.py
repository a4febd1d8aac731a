"""What is timed: one round each of the trainers and engines, as functions that can be called again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from flwr.clientapp import ClientApp

from benchmarks.bare import bare_loop, bare_loops, clients_of
from benchmarks.trainers import Round, trainer_round
from benchmarks.workloads import ROUND
from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.data.node_data import NodeData
from fedapp.engines.grid import LocalGrid
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.arrays import to_arrays
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.nodes import Nodes
from fedapp.federation.round_result import RoundResult
from fedapp.federation.validation import upload_like
from fedapp.runs.directory import create
from fedapp.server import standard_callbacks
from fedapp.training.build import initial_parameters, make_algorithm, network_context
from fedapp.training.device import choose_device
from fedapp.training.evaluation import ServerScore
from fedapp.training.execution import executed_config
from strategies.strategy import FederatedStrategy

ROUNDS_BY_DEFAULT = 1000
"""Rounds of the run whose trainer and threads are chosen by its length."""


def rows(
    config: RunConfig, node_data: NodeData, workers: int, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Round]]:
    """Yield the rows of a workload by name, the bare loop first; ``stack`` ends what they start."""
    yield "bare loop, one process", bare_loop(config, node_data, clients_of(config))
    two = stack.enter_context(bare_loops(config, node_data, workers))
    yield f"bare loop, {workers} processes of one thread", two
    for trainer in ("sequential", "batched"):
        chosen = read_config({**config.to_run_config(), "trainer": trainer})
        yield f"trainer {trainer}", trainer_round(chosen, node_data)
        yield f"in-process round, {trainer}", inline_round(chosen, node_data)
        threaded = in_threads(chosen, node_data, workers)
        yield f"in-process round, {trainer}, {workers} threads", threaded
        on_ray = stack.enter_context(workers_round(chosen, node_data, workers))
        yield f"Ray workers, {workers}, {trainer}", on_ray
    chosen = chosen_config(config, node_data)
    threads = f"{chosen.threads} thread{'s' if chosen.threads > 1 else ''}"
    title = f"by default, {ROUNDS_BY_DEFAULT:,} rounds: {chosen.trainer}, {threads}"
    yield title, in_threads(chosen, node_data, chosen.threads)


def chosen_config(config: RunConfig, node_data: NodeData) -> RunConfig:
    """Return the configuration with the trainer and the threads that a run chooses by default."""
    assert node_data.partition is not None
    opened = {"trainer": "auto", "threads": 0, "num_server_rounds": ROUNDS_BY_DEFAULT}
    return executed_config(
        config.model_copy(update=opened), node_data, node_data.partition.sizes, {"engine": "inline"}
    )


def inline_round(
    config: RunConfig,
    node_data: NodeData,
    app: ClientApp = client_app,
    *,
    callbacks: bool = False,
) -> Round:
    """Return a whole round in this process, with what a run writes after it if ``callbacks``."""
    grid = InlineGrid(app, config.to_run_config(), [{}])
    written = standard_callbacks(create(config), config) if callbacks else []
    return _whole_round(config, node_data, grid, written)


def in_threads(config: RunConfig, node_data: NodeData, threads: int) -> Round:
    """Return a whole round in this process with so many threads; the other rows have one."""
    train = inline_round(config.model_copy(update={"threads": threads}), node_data)

    def threaded() -> None:
        try:
            train()
        finally:
            torch.set_num_threads(1)

    return threaded


@contextlib.contextmanager
def workers_round(
    config: RunConfig, node_data: NodeData, workers: int, app: str = ""
) -> Iterator[Round]:
    """Yield a whole round on Ray workers; those of several rows are there at the same time."""
    from fedapp.engines.ray_cluster import LOCAL, connected
    from fedapp.engines.ray_placement import WorkerRequest, place_workers
    from fedapp.engines.ray_workers import CLIENT_APP, WorkerGrid

    on_gpu = choose_device(config).type == "cuda"
    share = WorkerRequest(workers, cpus=0.1, gpus=0.1 if on_gpu else 0.0)
    with connected(LOCAL) as folder, place_workers(LOCAL, share, gpu=on_gpu) as found:
        grid = WorkerGrid(config.to_run_config(), [{}] * workers, found, app or CLIENT_APP, folder)
        yield _whole_round(config, node_data, grid, [])


def _whole_round(
    config: RunConfig, node_data: NodeData, grid: LocalGrid, callbacks: list[Callback]
) -> Round:
    """Return a round from drawing the clients to the next theta, on nodes that are ready."""
    task = node_data.dataset.task
    sizes = None if node_data.partition is None else node_data.partition.sizes
    nodes = Nodes(config, task, node_data.dataset.fingerprint, sizes)
    theta = initial_parameters(config, task)
    start = ServerState(0, theta)
    algorithm = make_algorithm(config, task)
    context = network_context(config, task, theta, algorithm.broadcast(start.algorithm))
    upload = upload_like(algorithm, context)
    strategy = FederatedStrategy(config, algorithm, nodes, ServerScore({}), start, upload)
    arrays = to_arrays(theta)
    nodes.wait(grid, 1)
    for callback in callbacks:
        callback.on_start(start)
    # Only what happens in a round: the end's files and pictures are written once a run.
    strategy.callbacks = [_OnRound(callback) for callback in [_Check(), *callbacks]]

    def train() -> None:
        strategy.state = ServerState(ROUND - 1, theta)
        strategy.start(grid, arrays, ROUND)

    return train


class _Check(Callback):
    """A round in which clients failed is no measurement."""

    def on_round(self, result: RoundResult, state: ServerState) -> bool:
        """Raise if any client failed."""
        if "failures" in result.metrics:
            raise RuntimeError(f"clients failed: {result.metrics['failures']}")
        return False


class _OnRound(Callback):
    """The part of a callback that acts after a round."""

    def __init__(self, callback: Callback) -> None:
        self.on_round = callback.on_round  # type: ignore[method-assign]
