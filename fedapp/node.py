"""A node: its side of training, evaluation and queries."""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import INFO

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.logger import log

from fedapp.config.read import Items, config_of, items_of, read_by_nodes
from fedapp.config.run import TrainerName
from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Task
from fedapp.data.node_data import (
    NodeData,
    OwnClient,
    describe_own_code,
    own_client,
    read_node_data,
    read_task,
    task_problem,
)
from fedapp.data.table import Statistics
from fedapp.errors import DataError, reason_of
from fedapp.federation.messages import (
    decode_evaluate_request,
    decode_train_request,
    encode_reply,
    encode_scores,
)
from fedapp.federation.shared_evaluation import decode_part, encode_sums, is_part, part_sums
from fedapp.federation.table_statistics import statistics_in
from fedapp.machine import cores, keep_memory
from fedapp.training.algorithm import ClientContext, algorithm_of
from fedapp.training.build import (
    compiles_where_it_pays,
    make_evaluator,
    make_score,
    make_trainer,
)
from fedapp.training.client import initial_client_params, train_cohort
from fedapp.training.client_state import ClientStates, StateLocation, node_folder, shared_folder
from fedapp.training.device import choose_device, describe_device
from fedapp.training.evaluation import Score, ServerScore
from fedapp.training.networks import normalisation_names
from fedapp.training.trainer import Trainer


def train(
    message: Message, context: Context, wrap: Callable[[Trainer], Trainer] = lambda trainer: trainer
) -> Message:
    """Train the clients of the request and reply with their mean update.

    A benchmark may ``wrap`` the trainer.
    """
    setup = node_setup_of(context, message)
    _, node_data = config_and_data(setup)
    request, theta, extras = decode_train_request(message.content)
    trainer = wrap(trainer_of(setup, _set_threads(request.plan.threads), request.plan.trainer))
    states = _states(request.states, request.plan.round, node_data, context)
    reply = train_cohort(trainer, request, theta, extras, node_data.train, states)
    return Message(encode_reply(request, reply), reply_to=message)


def _set_threads(num_threads: int) -> int:
    """Set the number of CPU threads, at most one a core, and return it."""
    keep_memory()
    threads = min(num_threads, cores())
    torch.set_num_threads(threads)
    return threads


def _states(
    location: StateLocation | None, round_: int, node_data: NodeData, context: Context
) -> ClientStates | None:
    """Return the client states of round ``round_``, if the algorithm's clients keep any."""
    if location is None:
        return None
    if node_data.own is None:
        return ClientStates(shared_folder(location), location, round_)
    folder = node_folder(location, str(context.node_config.get("state-path", "")))
    return ClientStates(folder, location, round_)


def evaluate(message: Message, context: Context) -> Message:
    """Evaluate each client's initial parameters of a round on its own test or training examples.

    A client that raises is left out, and listed in ``failures``, as in training. Or evaluate batches of
    the server's examples.
    """
    setup = node_setup_of(context, message)
    if is_part(message.content):
        parameters, part = decode_part(message.content)
        _set_threads(part.threads)
        sums = part_sums(_CACHE.score(setup), parameters, part)
        return Message(encode_sums(sums), reply_to=message)
    config, node_data = config_and_data(setup)
    request, theta = decode_evaluate_request(message.content)
    _set_threads(request.threads)
    examples_of = node_data.train if request.split == "train" else node_data.test
    first = examples_of(request.clients[0])
    evaluator = make_evaluator(config, node_data.dataset.task, first)
    names = normalisation_names(evaluator.module)
    client_context = ClientContext({**theta, **evaluator.statistics}, normalisation=names)
    states = _states(request.states, request.round + 1, node_data, context)
    algorithm = algorithm_of(config)
    scores: dict[int, Score] = {}
    failures: dict[int, str] = {}
    for client in request.clients:
        try:
            params = initial_client_params(algorithm, client_context, states, client)
            scores[client] = evaluator.with_examples(examples_of(client)).score(params)
        except Exception as error:
            failures[client] = reason_of(error)
    return Message(encode_scores(scores, failures), reply_to=message)


def query(message: Message, context: Context) -> Message:
    """Describe this node's data, device and software, from which the server accepts or rejects it.

    The statistics of a table are left out where they are given, or where its examples are private.
    """
    config, node_data = config_and_data(node_setup_of(context))
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    device = describe_device(choose_device(config))
    answer = {**node_data.describe(), "device": device, "software": software}
    answer |= describe_own_code(config)
    if not config.table_statistics and algorithm_of(config).privacy(config) is None:
        answer |= node_data.describe_table()
    return Message(RecordDict({"node-data": ConfigRecord(answer)}), reply_to=message)


@dataclass(frozen=True)
class NodeSetup:
    """A node's settings, the client that it is (None: virtual clients), and what its data have to fit.

    ``statistics``: those of a table. ``task``: that of other data.
    """

    settings: Items
    own: OwnClient | None
    statistics: str = ""
    task: Task | None = None


def node_setup_of(context: Context, message: Message | None = None) -> NodeSetup:
    """Return the setup of a node; it is the same for all nodes of virtual clients.

    A request's ``message`` brings the statistics of a table or else the task, where nodes are clients.
    """
    settings = items_of(read_by_nodes(context.run_config))
    own = own_client(config_of(settings), context.node_config)
    if message is None:
        return NodeSetup(settings, own)
    task = message.content.config_records.get("task")
    statistics = statistics_in(message.content)
    return NodeSetup(settings, own, statistics, None if task is None else read_task(task))


class _Cache(threading.local):
    """What a thread reuses from message to message; batched runs have one thread each."""

    def __init__(self) -> None:
        self.data = functools.lru_cache(maxsize=4)(_read_data)
        self.trainer = functools.lru_cache(maxsize=4)(_make_trainer)
        self.score = functools.lru_cache(maxsize=1)(_make_score)


def config_and_data(setup: NodeSetup) -> tuple[RunConfig, NodeData]:
    """Return configuration and data, cached by content: nodes that are clients share them."""
    settings, own = setup.settings, setup.own
    shared = own and replace(own, client=0)
    node_data = replace(_CACHE.data(settings, shared, setup.statistics), own=own)
    if setup.task and (problem := task_problem(setup.task, node_data.dataset.task)):
        raise DataError(f"the node's data have changed: {problem}")
    return config_of(settings), node_data


def trainer_of(setup: NodeSetup, threads: int, name: TrainerName) -> Trainer:
    """Return the trainer of a node for this number of CPU threads; each Python thread has its own.

    ``name`` is what the server has chosen, if it is "auto" in the run-config.
    """
    _, node_data = config_and_data(setup)
    return _CACHE.trainer(setup.settings, node_data.dataset.task, threads, name)


def _read_data(settings: Items, own: OwnClient | None, statistics: str) -> NodeData:
    node_data = read_node_data(config_of(settings), own)
    return node_data.coded(Statistics.from_json(statistics)) if statistics else node_data


def _make_score(setup: NodeSetup) -> ServerScore:
    config, node_data = config_and_data(setup)
    return make_score(config, node_data.dataset)


def _make_trainer(settings: Items, task: Task, threads: int, name: TrainerName) -> Trainer:
    config = config_of(settings)
    if config.trainer == "auto" and name == "batched" and not compiles_where_it_pays(config):
        log(INFO, "No C++ compiler (g++ or clang++) is here, so clients are trained one by one")
        name = "auto"
    config = config.model_copy(update={"threads": threads, "trainer": name})
    trainer = make_trainer(config, task)
    log(INFO, "Trainer: %s, threads: %d", trainer, threads)
    return trainer


_CACHE = _Cache()
