"""The ClientApp: from a message to a cohort, to the trainer, to the reply."""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import INFO

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig, Scalar
from fedapp.data import Task
from fedapp.data.node_data import NodeData, OwnClient, own_client, read_node_data
from fedapp.errors import reason_of
from fedapp.federation.messages import (
    decode_evaluate_request,
    decode_train_request,
    encode_reply,
    encode_scores,
)
from fedapp.machine import cores, keep_memory
from fedapp.training.algorithm import ClientContext
from fedapp.training.build import choose_device, make_algorithm, make_evaluator, make_trainer
from fedapp.training.client import starting_point, train_cohort
from fedapp.training.client_state import ClientStates, StateLocation, node_folder, shared_folder
from fedapp.training.evaluation import Score
from fedapp.training.networks import normalisation_names
from fedapp.training.trainer import Trainer

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the message names and reply with their mean update."""
    return train_with(trainer_of, message, context)


def train_with(
    trainer_of: Callable[[Workplace, int], Trainer], message: Message, context: Context
) -> Message:
    """Return the reply of a node whose clients are trained by what ``trainer_of`` gives.

    It is asked for the trainer of a workplace and a number of threads.
    """
    workplace = workplace_of(context)
    config, node_data = read_workplace(workplace)
    request, theta, extras = decode_train_request(message.content)
    trainer = trainer_of(workplace, _set_threads(request.threads))
    states = _states(request.states, request.round, node_data, context)
    reply = train_cohort(config, trainer, request, theta, extras, node_data.train, states)
    return Message(encode_reply(request, reply), reply_to=message)


def _set_threads(asked: int) -> int:
    """Compute with as many CPU threads as the server asks for, or as there are cores; return them."""
    keep_memory()
    threads = min(asked, cores())
    torch.set_num_threads(threads)
    return threads


def _states(
    request: StateLocation | None, round_: int, node_data: NodeData, context: Context
) -> ClientStates | None:
    """Return where the clients of round ``round_`` keep their state, if their algorithm keeps any."""
    if request is None:
        return None
    if node_data.own is None:
        return ClientStates(shared_folder(request), request, round_)
    folder = node_folder(request, str(context.node_config.get("state-path", "")))
    return ClientStates(folder, request, round_)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score what each client that the message names starts from, on its own test examples.

    A client that raises is left out, and named in ``failures``, as in training.
    """
    config, node_data = read_workplace(workplace_of(context))
    request, theta = decode_evaluate_request(message.content)
    _set_threads(request.threads)
    evaluator = make_evaluator(config, node_data.dataset.task, node_data.test(request.clients[0]))
    names = normalisation_names(evaluator.module)
    turn = ClientContext({**theta, **evaluator.statistics}, normalisation=names)
    states = _states(request.states, request.round + 1, node_data, context)
    algorithm = make_algorithm(config)
    scores: dict[int, Score] = {}
    failures: dict[int, str] = {}
    for client in request.clients:
        try:
            params = starting_point(algorithm, turn, states, client)
            scores[client] = evaluator.on(node_data.test(client)).score(params)
        except Exception as error:
            failures[client] = reason_of(error)
    return Message(encode_scores(scores, failures), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say what this node holds, so that the server can refuse what does not fit."""
    config, node_data = read_workplace(workplace_of(context))
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    answer = {**node_data.describe(), "device": str(choose_device(config)), "software": software}
    return Message(RecordDict({"holdings": ConfigRecord(answer)}), reply_to=message)


Settings = tuple[tuple[str, Scalar, type], ...]
"""A run-config by content; with types, since 1, 1.0 and True are equal."""


@dataclass(frozen=True)
class Workplace:
    """What decides how a node works: the settings, and whose data it has (None: virtual clients)."""

    settings: Settings
    own: OwnClient | None


def workplace_of(context: Context) -> Workplace:
    """Return which settings and data a node works with; nodes of virtual clients are all alike."""
    run_config = context.run_config
    settings = tuple((key, value, type(value)) for key, value in sorted(run_config.items()))
    return Workplace(settings, own_client(_KEPT.config(settings), context.node_config))


class _Kept(threading.local):
    """What a thread keeps from message to message: stacked runs have one each.

    Nodes that are clients share what does not depend on which client they are.
    """

    def __init__(self) -> None:
        self.config = functools.lru_cache(maxsize=4)(_read_config)
        self.data = functools.lru_cache(maxsize=4)(_read_data)
        self.trainer = functools.lru_cache(maxsize=4)(_make_trainer)


def read_workplace(workplace: Workplace) -> tuple[RunConfig, NodeData]:
    """Return configuration and data; kept by content, since messages come to any idle process."""
    settings, own = workplace.settings, workplace.own
    anybody = own and replace(own, client=0)
    return _KEPT.config(settings), replace(_KEPT.data(settings, anybody), own=own)


def trainer_of(workplace: Workplace, threads: int) -> Trainer:
    """Return the trainer of such a node, for a process with so many threads; each thread has its own."""
    _, node_data = read_workplace(workplace)
    return _KEPT.trainer(workplace.settings, node_data.dataset.task, threads)


def _read_config(settings: Settings) -> RunConfig:
    return read_config({key: value for key, value, _ in settings})


def _read_data(settings: Settings, own: OwnClient | None) -> NodeData:
    return read_node_data(_KEPT.config(settings), own)


def _make_trainer(settings: Settings, task: Task, threads: int) -> Trainer:
    config = _KEPT.config(settings).model_copy(update={"threads": threads})
    trainer = make_trainer(config, task)
    log(INFO, "Trainer: %s, threads: %d", trainer, threads)
    return trainer


_KEPT = _Kept()
