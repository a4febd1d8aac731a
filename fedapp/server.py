"""A run: data, model, nodes and strategy of a configuration, into a run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import torch
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedapp.config.registry import calling
from fedapp.config.run_config import RunConfig
from fedapp.data.coding import coded, own_statistics, summary_of
from fedapp.data.dataset import Dataset, Task
from fedapp.data.node_data import NodeData, read_node_data
from fedapp.data.table import Statistics
from fedapp.engines.grid import LocalGrid
from fedapp.errors import CheckpointError, ConfigError
from fedapp.federation.arrays import to_arrays
from fedapp.federation.callback import Callback, ServerState
from fedapp.federation.delivery import repeat_failed_requests
from fedapp.federation.nodes import Nodes
from fedapp.federation.queries import Queries
from fedapp.federation.samplers.sampler import prepared_sampler
from fedapp.federation.validation import upload_like
from fedapp.files import disk_space_needed
from fedapp.machine import cores, keep_memory
from fedapp.runs.callbacks import (
    RESUME,
    Checkpoints,
    Metrics,
    ProgressReport,
    StopAtTarget,
    StopIfAllFail,
    TensorBoardWriter,
    has_reached,
)
from fedapp.runs.checkpoint import check_fits, load_checkpoint, save_checkpoint
from fedapp.runs.directory import (
    RunDirectory,
    create,
    joined,
    open_states,
    reopen,
    resume_command,
    write_config,
)
from fedapp.runs.final_outputs import FinalOutputs
from fedapp.runs.initial_model import load_initial_model, weights_digest
from fedapp.runs.lock import locked, logged
from fedapp.runs.metrics import last_whole_round, read_metrics
from fedapp.runs.own_callbacks import OwnCallbacks
from fedapp.runs.own_code import digests, write_copies
from fedapp.runs.partition_summary import write_partition
from fedapp.runs.privacy import PrivacyLedger
from fedapp.runs.saved_task import known_statistics, write_task
from fedapp.training.algorithm import Algorithm, Tensors, algorithm_of
from fedapp.training.build import (
    choose_program,
    initial_parameters,
    make_algorithm,
    make_score,
    network_context,
    require_batches,
    require_given_statistics,
    require_target,
    require_whole_model,
    sources,
)
from fedapp.training.client_state import StateLocation
from fedapp.training.device import choose_device, describe_device
from fedapp.training.execution import executed_config
from fedapp.training.trial import try_out
from strategies.strategy import FederatedStrategy


def run(
    grid: Grid,
    config: RunConfig,
    callbacks: list[Callback] | None = None,
    queries: Queries | None = None,
    *,
    one_length: bool = True,
) -> RunDirectory:
    """Run ``config`` over the nodes of ``grid`` and return the run directory.

    ``queries`` are those that the nodes have been sent already. Without ``one_length`` the run may be
    continued for more rounds, and ``trainer = "auto"`` does not depend on their number.

    Raises
    ------
    ConfigError
        The nodes of ``fedapp run`` are too few, or lack a GPU that the configuration needs.
    """
    if isinstance(grid, LocalGrid):
        _check_nodes(grid, config)
    repeat_failed_requests(grid)
    node_data = read_node_data(config, None)
    dataset, statistics = node_data.dataset, known_statistics(config, node_data.dataset)
    if dataset.table is not None:  # until the nodes have answered
        dataset = coded(dataset, statistics or own_statistics(dataset))
    theta = _initial_theta(config, dataset)
    prepared_sampler(config)
    try_out(config, dataset)
    directory, run_info = _open(config, node_data)
    if config.resume and isinstance(grid, LocalGrid):
        _check_resumed_nodes(grid, config, run_info, directory)
    by_flower = not isinstance(grid, LocalGrid)
    with locked(directory, new=not config.resume), logged(directory, by_flower=by_flower):
        log(INFO, "Run directory: %s", directory.path)
        if isinstance(grid, LocalGrid) and grid.location:
            log(INFO, "Workers: %s", grid.location)
        if not config.fraction_train:
            log(INFO, "fraction-train = 0: max(floor(C*K), 1) is one client a round")
        state = _resumed(config, directory, theta, dataset.task)
        nodes = _nodes(config, node_data, statistics, queries)
        nodes.coded_task = dataset.task
        strategy = _prepare(
            grid, config, directory, run_info, nodes, node_data, theta, state, one_length=one_length
        )
        standard = standard_callbacks(directory, config, one_length=one_length)
        strategy.callbacks = [*standard, *(callbacks or [])]
        last = _last_round(config, directory, strategy.state)
        keep_memory()
        torch.set_num_threads(min(strategy.config.threads, cores()))
        try:
            strategy.start(grid, to_arrays(strategy.state.theta), last)
        except KeyboardInterrupt:
            log(INFO, "Stopped. Resume with: %s", resume_command(directory.path))
            raise
        log(INFO, "Run directory: %s", directory.path)
    return directory


def _initial_theta(config: RunConfig, dataset: Dataset) -> Tensors:
    """Return theta_0, after checking that the run suits the data."""
    require_target(config, dataset.task)
    require_given_statistics(config, dataset)
    theta = initial_parameters(config, dataset.task)
    if config.evaluation != "clients":
        require_whole_model(
            config,
            dataset.task,
            because=f"evaluation = {config.evaluation!r} would test it. Set evaluation='clients'.",
        )
    return (
        load_initial_model(config, theta) if config.initial_model and not config.resume else theta
    )


def _check_nodes(grid: LocalGrid, config: RunConfig) -> None:
    """Check the nodes of ``fedapp run``, of which no more will connect."""
    nodes = len(grid.contexts)
    if config.min_nodes > nodes:
        raise ConfigError(
            f"min-nodes = {config.min_nodes}: {nodes} is the number of nodes here, and no more will "
            f"come. Add {grid.option} {config.min_nodes} to `fedapp run`, or set min-nodes={nodes}."
        )
    if grid.on_this_machine and config.trainer != "sequential":
        choose_program(config, choose_device(config))


def _check_resumed_nodes(
    grid: LocalGrid, config: RunConfig, run_info: Mapping[str, Any], directory: RunDirectory
) -> None:
    """Refuse a run of devices, and another number of nodes, with which its numbers would differ."""
    if not config.num_clients and run_info.get("engine") == "flower":
        raise ConfigError(
            f"num-clients = 0: the clients of the run in {directory.path} are Flower's nodes, with data "
            "of their own, and `fedapp run` does not reach them. Resume with: "
            f"{resume_command(directory.path)}"
        )
    nodes, before = grid.num_nodes, run_info.get("nodes")
    if None not in (before, nodes) and before != nodes:
        raise ConfigError(
            f"{grid.option} {nodes}: the run in {directory.path} has {before} nodes, and a resumed run "
            "has as many, so that it gives the same numbers. Resume with: "
            f"{resume_command(directory.path)}"
        )


def _prepare(
    grid: Grid,
    config: RunConfig,
    directory: RunDirectory,
    run_info: dict[str, Any],
    nodes: Nodes,
    node_data: NodeData,
    theta: Tensors,
    state: ServerState | None,
    *,
    one_length: bool,
) -> FederatedStrategy:
    """Wait for nodes, write a new run's first files, and return the strategy."""
    if state:
        nodes.add_known(state.sizes)
    available = nodes.wait(grid, config.min_nodes)
    if node_data.dataset.table is not None:
        node_data = node_data.coded(_statistics(nodes, available, node_data.dataset))
        theta = theta if state else _initial_theta(config, node_data.dataset)
    task = node_data.dataset.task
    partition = node_data.partition
    sizes = list(nodes.sizes(nodes.clients).values()) if partition is None else partition.sizes
    require_batches(config, task, sizes)
    algorithm = make_algorithm(config, task)
    round_, then = (state.round, RESUME) if state else (0, "or choose another run-dir")
    with disk_space_needed(directory.path, then):
        client_states = _client_states(grid, config, directory, algorithm, round_)
        ledger = _ledger(config, algorithm, directory, run_info, nodes.clients, state)
        if state is None:
            state = ServerState(0, theta, algorithm.start(theta))
            run_info |= {"nodes": len(available)} | _engine(grid)
            _write_first_files(directory, config, node_data, state)
        write_copies(directory.path, config)
    run_info |= digests(config)
    executed = executed_config(config, node_data, sizes, run_info, by_length=one_length)
    if executed.threads > max(config.threads, 1):
        log(INFO, "Threads: %d, as measured", executed.threads)
    with disk_space_needed(directory.path, then):
        write_config(directory, config, run_info)
    return FederatedStrategy(
        executed,
        algorithm,
        nodes,
        make_score(config, node_data.dataset),
        state,
        _upload(config, algorithm, task, state),
        client_states=client_states,
        ledger=ledger,
        population=run_info.get("clients"),
    )


def _upload(config: RunConfig, algorithm: Algorithm, task: Task, state: ServerState) -> Tensors:
    """Return tensors of the names, shapes and types that the clients upload, without values."""
    with calling(algorithm, "broadcast"):
        broadcast = algorithm.broadcast(state.algorithm)
    return upload_like(algorithm, network_context(config, task, state.theta, broadcast))


def _engine(grid: Grid) -> dict[str, Any]:
    if not isinstance(grid, LocalGrid):
        return {"engine": "flower"}
    nodes = {} if grid.num_nodes is None else {"nodes": grid.num_nodes}
    return nodes | grid.run_info


def _client_states(
    grid: Grid, config: RunConfig, directory: RunDirectory, algorithm: Algorithm, round_: int
) -> Callable[[], StateLocation] | None:
    """Return where clients keep state by round, if they do; all workers must share the folder."""
    if not algorithm.keeps_state:
        return None
    if isinstance(grid, LocalGrid):
        because = f"The clients of {config.algorithm!r} keep their state there"
        grid.require_shared(directory.path, "run-dir", because)
    return open_states(directory, round_, resumed=config.resume)


def _write_first_files(
    directory: RunDirectory, config: RunConfig, node_data: NodeData, state: ServerState
) -> None:
    """Write what a new run has before config.json, which makes the folder a run: all can be resumed."""
    save_checkpoint(directory.checkpoints, state)
    write_partition(directory.path, config, node_data)
    write_task(directory, node_data.dataset)


def _ledger(
    config: RunConfig,
    algorithm: Algorithm,
    directory: RunDirectory,
    run_info: dict[str, Any],
    clients: Sequence[int],
    state: ServerState | None,
) -> PrivacyLedger | None:
    """Return the ledger of a private run, new or as it stands at ``state``.

    If nodes are clients, those of a new run are its population, also after a resume.
    """
    privacy = algorithm.privacy(config)
    if privacy is None:
        return None
    clients = run_info.get("clients", clients)
    ledger = PrivacyLedger(directory.path, privacy, len(clients))
    if state is None:
        algorithm.require_clients(config, len(clients))
        if config.initial_model:
            log(WARNING, "initial-model counts as public: epsilon is that of this run alone")
        if not config.num_clients:
            run_info["clients"] = list(clients)
            log(
                INFO,
                "num-clients = 0: the bound is for the K = %d clients that are connected now",
                len(clients),
            )
        ledger.start(algorithm.name)
    else:
        ledger.resume(state.round)
    ledger.log_guarantee()
    return ledger


def standard_callbacks(
    directory: RunDirectory, config: RunConfig, *, one_length: bool = True
) -> list[Callback]:
    """Return the callbacks of every run, in the order in which they run.

    A run not of ``one_length`` keeps the scores of the round that was its last before it went on. One
    whose privacy comes from sampling is not ended by failures, which the clients' data cause.
    """
    algorithm = algorithm_of(config)
    checkpoints = Checkpoints(directory, config.checkpoint_every, config.checkpoint_seconds)
    callbacks: list[Callback] = [
        Metrics(directory, checkpoints, config.eval_every if one_length else 1),
        TensorBoardWriter(directory),
        ProgressReport(config.num_server_rounds),
        checkpoints,
        FinalOutputs(directory, config),
        *([OwnCallbacks(directory, config)] if config.callbacks else []),
        *([] if algorithm.poisson_sampling else [StopIfAllFail()]),
    ]
    if config.target_accuracy:
        callbacks.append(StopAtTarget(config.target_accuracy))
    return callbacks


def _open(config: RunConfig, node_data: NodeData) -> tuple[RunDirectory, dict[str, Any]]:
    """Create the run directory, or open that of the run to resume."""
    if not config.resume:
        run_info: dict[str, Any] = {
            "fingerprint": node_data.dataset.fingerprint,
            "device": describe_device(choose_device(config)),
            "sources": sources(config),
        }
        if config.initial_model:
            run_info["initial_model"] = weights_digest(config)
        if sampler := config.component("sampler").run_identity():
            run_info["sampler"] = sampler
        return create(config), run_info
    directory, run_info = reopen(config)
    _check_trace(config, run_info, directory)
    run_info["device"] = joined(run_info.get("device"), describe_device(choose_device(config)))
    if run_info.get("fingerprint") != node_data.dataset.fingerprint:
        raise CheckpointError(
            f"dataset = {config.dataset!r}: not the data that {directory.path} was made with "
            f"(fingerprint {node_data.dataset.fingerprint!r}, the run has "
            f"{run_info.get('fingerprint')!r}). Resume with the files as they were, "
            "with dataset=FOLDER (or table-statistics=FILE) if they have moved, or start another run, in "
            "another run-dir."
        )
    return directory, run_info


def _check_trace(config: RunConfig, run_info: Mapping[str, Any], directory: RunDirectory) -> None:
    """Refuse another availability trace than the run's; 0.2.0 did not note its digest."""
    sampler = config.component("sampler")
    if run_info.get("sampler", now := sampler.run_identity()) != now:
        trace = getattr(sampler, "trace", "")
        raise CheckpointError(
            f"availability.trace = {trace!r}: not the file that {directory.path} was made with. Resume "
            "with the file as it was, with availability.trace=FILE if it has moved, or start another "
            "run, in another run-dir."
        )


def _resumed(
    config: RunConfig, directory: RunDirectory, theta: Tensors, task: Task
) -> ServerState | None:
    """Return the last checkpoint of the run to resume, or None for a new run.

    Raises
    ------
    CheckpointError
        There is none, or it is of another model or algorithm.
    ConfigError
        ``num-server-rounds`` is less than the rounds done.
    """
    if not config.resume:
        return None
    reached = last_whole_round(read_metrics(directory.metrics))
    state = load_checkpoint(directory.checkpoints, reached)
    check_fits(state, theta, make_algorithm(config, task), directory.checkpoints)
    if config.num_server_rounds < state.round:
        raise ConfigError(
            f"num-server-rounds = {config.num_server_rounds}: {directory.path} has done {state.round} "
            f"rounds. Set at least {state.round}, or start another run, in another run-dir."
        )
    log(INFO, "Resuming after round %d", state.round)
    return state


def _last_round(config: RunConfig, directory: RunDirectory, state: ServerState) -> int:
    """Return T, or the checkpoint's round if the run to resume has reached its target."""
    if state.round and config.target_accuracy:
        records = read_metrics(directory.metrics)
        if has_reached(
            records,
            state.round,
            target=config.target_accuracy,
            eval_every=config.eval_every,
            planned=config.num_server_rounds,
        ):
            return state.round
    return config.num_server_rounds


def _nodes(
    config: RunConfig,
    node_data: NodeData,
    statistics: Statistics | None,
    queries: Queries | None,
) -> Nodes:
    dataset, partition = node_data.dataset, node_data.partition
    sizes = None if partition is None else partition.sizes
    nodes = Nodes(config, dataset.task, dataset.fingerprint, sizes, dataset.table, queries)
    nodes.tables.pooled = statistics
    return nodes


def _statistics(nodes: Nodes, available: Sequence[int], dataset: Dataset) -> Statistics:
    """Return the statistics of a table: the known ones, or those of the nodes that are there now."""
    if nodes.tables.pooled is not None:
        return nodes.tables.pooled
    log(
        INFO,
        "Statistics of the table: pooled over the training examples of %d nodes",
        len(available),
    )
    return nodes.tables.pool(available, summary_of(dataset), nodes.name_of)
